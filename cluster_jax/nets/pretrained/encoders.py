"""Frozen encoders by name: the values of the section `network` for a name, a file or a model."""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any

from cluster_jax.core.checks import InputError
from cluster_jax.nets import backbone
from cluster_jax.nets.backbones import convnext, efficientnet_lite, resnet, vit
from cluster_jax.nets.config import BUNDLED, WEIGHTS
from cluster_jax.nets.pretrained import weights

SHORT = {name.removeprefix("efficientnet_"): name for name in BUNDLED}
# Layouts of files -> a tensor that only files of this layout have.
LAYOUTS = {
    "a ResNet of torchvision or timm": r"layer1\.0\.conv1\.weight",
    "a ConvNeXt of timm": r"stages\.0\.blocks\.0\.conv_dw\.weight",
    "a Vision Transformer of timm or DINOv2": r"blocks\.0\.attn\.qkv\.weight",
    "a DINOv2 of transformers": r"encoder\.layer\.0\.attention\.attention\.query\.weight",
    "a CLIP or SigLIP of transformers": r"vision_model\.encoder\.layers\.0\.layer_norm1\.weight",
}
_RESNET, _CONVNEXT, *_ = LAYOUTS


def check(name: Any) -> None:
    """Raises an `InputError` unless `name` may be that of an encoder; no file is read."""
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    if not isinstance(name, str):
        raise InputError(f"encoder must be a name or a path; got {name!r}")
    if name not in (*SHORT, *BUNDLED) and not re.search(WEIGHTS, name):
        close = difflib.get_close_matches(name.lower(), [*SHORT, *BUNDLED], 1, 0.4)
        raise InputError(
            f"encoder must be one of {', '.join(map(repr, SHORT))}, a .safetensors file, or "
            f"'hf:ORG/NAME'; got {name!r}" + "".join(f": did you mean {c!r}?" for c in close)
        )


def overrides(name: str | os.PathLike) -> dict[str, Any]:
    """Returns an encoder's values of the section `network`, by keys; nothing of it is trained.

    Args:
        name: "lite0", "lite1" or "lite2", one of `BUNDLED`, a `.safetensors` file, or
            "hf:ORG/NAME", whose network follows from the tensors in it.

    Raises:
        InputError: there is no such encoder, its file cannot be read, or its layout is not known.

    Example:
        >>> overrides("lite2")["frozen"]
        'head'
    """
    check(name)
    name = os.fspath(name)
    weights_name = SHORT.get(name, name)
    width, stem = efficientnet_lite.WIDTH, None
    if weights_name in BUNDLED:
        network = weights_name
    else:
        network, width, stem = _network(weights_name, weights.shapes(weights_name))
    frozen = backbone.make(network, width=width, stem=stem).blocks[-1]
    values = {"name": network, "weights": weights_name, "width": width, "stem": stem}
    return {**values, "frozen": frozen}


def config_values(name: str | os.PathLike, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an encoder's values of a config by dotted key, at the place that the config has.

    Raises:
        InputError: see `overrides`.
    """
    values = overrides(name)
    if "encoder" in config:
        return {"encoder": os.fspath(name)}
    part = "network" if config.get("embedder") is None else "embedder"
    return {f"{part}.{key}": value for key, value in values.items() if key != "frozen"}


def _network(weights_name: str, shapes: Mapping[str, tuple]) -> tuple[str, int, str | None]:
    """Identifies backbone, width and stem whose tensors have these shapes."""
    candidates = [
        layout for layout, key in LAYOUTS.items() if any(re.fullmatch(key, name) for name in shapes)
    ]
    if not candidates:
        raise InputError(
            f"encoder must have the tensors of a known network; got {weights_name}, with "
            f"{min(shapes, default='none')!r}: the nearest known one is {_nearest(shapes)}"
        )
    if candidates[0] == _RESNET:
        return _resnet(weights_name, shapes)
    if candidates[0] == _CONVNEXT:
        return _convnext(weights_name, shapes)
    return _vit(weights_name, shapes)


def _nearest(shapes: Mapping[str, tuple]) -> str:
    """Finds the layout one of whose names is most like one of the tensors'."""
    plain = {layout: key.replace("\\", "") for layout, key in LAYOUTS.items()}

    def likeness(layout: str) -> float:
        matcher = difflib.SequenceMatcher(b=plain[layout])
        best = 0.0
        for name in shapes:
            matcher.set_seq1(name)
            best = max(best, matcher.ratio())
        return best

    return max(LAYOUTS, key=likeness)


def _resnet(weights_name: str, shapes: Mapping[str, tuple]) -> tuple[str, int, str | None]:
    depths = _depths(shapes, "layer{}.", 1)
    is_bottleneck = "layer1.0.conv3.weight" in shapes
    for name, published in resnet.DEPTHS.items():
        if published == depths and is_bottleneck == (name == "resnet50"):
            width, *_, size = shapes.get("conv1.weight", (64, 3, 7, 7))
            return name, width, "imagenet" if size == 7 else "cifar"
    kind = "bottleneck" if is_bottleneck else "basic"
    raise InputError(
        f"encoder must be one of {', '.join(resnet.NAMES)} if it is a ResNet; got {weights_name}, "
        f"with stages of {', '.join(map(str, depths))} {kind} blocks"
    )


def _convnext(weights_name: str, shapes: Mapping[str, tuple]) -> tuple[str, int, str | None]:
    depths = _depths(shapes, "stages.{}.blocks.", 0)
    width = shapes.get("stem.0.weight", (0,))[0]
    for name, published in convnext.SIZES.items():
        if published == (depths, width):
            return name, width, None
    raise InputError(
        f"encoder must be one of {', '.join(convnext.NAMES)} if it is a ConvNeXt; got "
        f"{weights_name}, with stages of {', '.join(map(str, depths))} blocks and {width} channels"
    )


def _depths(shapes: Mapping[str, tuple], start: str, first: int) -> tuple[int, ...]:
    """Counts the blocks of each of four stages; the names of a stage's tensors start alike."""
    starts = [start.format(stage) for stage in range(first, first + 4)]
    return tuple(
        len({n.removeprefix(s).split(".")[0] for n in shapes if n.startswith(s)}) for s in starts
    )


def _vit(weights_name: str, shapes: Mapping[str, tuple]) -> tuple[str, int, str | None]:
    """Identifies the published size with these tokens, patches and registers."""

    def shape(*names: str) -> tuple:
        return next((shapes[name] for name in names if name in shapes), (0, 0))

    width, *_, patch = shape(
        "patch_embed.proj.weight",
        "embeddings.patch_embeddings.projection.weight",
        "vision_model.embeddings.patch_embedding.weight",
    )
    registers = shape("register_tokens", "embeddings.register_tokens", "reg_token")[-2:][0]
    kind = "class"
    if "vision_model.embeddings.patch_embedding.weight" in shapes:
        kind = "clip" if "visual_projection.weight" in shapes else "siglip"
    for name in vit.NAMES:
        published, _, _, patches = vit.architecture(name)
        published_sizes = published, patches.size, patches.registers, patches.kind
        if published_sizes == (width, patch, registers, kind):
            return name, width, None
    raise InputError(
        f"encoder must be one of {', '.join(vit.NAMES)} if it is a Vision Transformer; got "
        f"{weights_name}, with tokens of {width} columns, patches of {patch} pixels and "
        f"{registers} registers ({kind})"
    )
