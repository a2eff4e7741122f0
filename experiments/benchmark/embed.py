"""Images/s of frozen encoders: Lite2 beside PyTorch and ONNX Runtime; others alone.

On all cores, taking turns, with the same weights and the same 64 generated images of 224 pixels,
from uint8 on the host to features on the host, as when a folder is embedded. PyTorch runs eagerly,
as its users run it; its network is that of the package efficientnet-lite-pytorch, which ONNX
Runtime runs as exported. The others have random weights.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cluster_jax.core import devices
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.nets import network, pretrained
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import Preprocessing
from cluster_jax.training import state as states
from experiments.benchmark import _measure

BATCH, SIDE, REPEATS, SEED = 64, 224, 5, 0
NETWORKS = ("efficientnet_lite2",)
# Network -> width and stem.
OTHERS = {
    "resnet50": (64, "imagenet"),
    "vit_small_patch14": (384, None),
    "vit_base_patch16": (768, None),
    "vit_base_patch16_siglip": (768, None),
    "vit_base_patch32_clip": (768, None),
    "vit_base_patch16_clip": (768, None),
}


def measure() -> dict[str, Any]:
    """Images/s, their ratios in each round, and the largest difference of features."""
    import onnxruntime
    import torch

    images = np.random.default_rng(SEED).integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    sides, differences = {}, {}
    for name in NETWORKS:
        theirs, session = _torch(name)
        sides |= {name: ours(name), f"{name}, torch": theirs, f"{name}, onnxruntime": session}
        rows = [sides[key](images) for key in sides if key.startswith(name)]  # also compiles
        differences[name] = max(float(np.abs(rows[0] - other).max()) for other in rows[1:])
    times = _measure.alternate(_calls(sides, images), REPEATS)
    others = {name: _random(name, *OTHERS[name]) for name in OTHERS}
    for forward in others.values():
        forward(images)
    rates = times | _measure.alternate(_calls(others, images), 3)
    return {
        "images_per_second": {
            name: _measure.spread([BATCH / t for t in values]) for name, values in rates.items()
        },
        "ratio": {
            f"{name}, {peer}": _measure.ratios(times[f"{name}, {peer}"], times[name])
            for name in NETWORKS
            for peer in ("torch", "onnxruntime")
        },
        "largest_difference": differences,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _calls(sides: dict[str, Callable], images: np.ndarray) -> dict[str, Callable]:
    return {name: functools.partial(forward, images) for name, forward in sides.items()}


def ours(name: str, side: int = SIDE) -> Callable[[np.ndarray], np.ndarray]:
    """The network `name`: images uint8 `[b, side, side, 3]` -> features float32 `[b, 1280]`."""
    section = NetworkConfig(**pretrained.overrides("lite2"))
    made = Encoder.of_weights(
        section, Preprocessing(pretrained.LITE2_MEAN, pretrained.LITE2_STD, side)
    )
    encode = made.on(states.make_mesh())
    return lambda images: np.asarray(encode(images))


def _random(name: str, width: int, stem: str | None) -> Callable[[np.ndarray], np.ndarray]:
    section = NetworkConfig(name, width, stem)
    variables = network.make(section).init(jax.random.key(SEED), jnp.zeros((1, SIDE, SIDE, 3)))
    made = Encoder(
        section,
        *variables,
        (SIDE, SIDE, 3),
        Preprocessing(pretrained.LITE2_MEAN, pretrained.LITE2_STD, SIDE),
    )
    encode = made.on(states.make_mesh())
    return lambda images: np.asarray(encode(images))


def _torch(name: str) -> tuple[Callable, Callable]:
    """PyTorch's network, and ONNX Runtime's."""
    import onnxruntime
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(devices.cores())
    network = EfficientNet.from_name(name.replace("_", "-"), image_size=SIDE)
    network.load_state_dict(torch.load(pretrained.lite2_file(), weights_only=True))
    network.eval()

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network.extract_features(x).mean((2, 3))

    module, file = Features().eval(), io.BytesIO()
    example = torch.zeros(BATCH, 3, SIDE, SIDE)
    several = {"x": {0: "images"}}
    torch.onnx.export(
        module, (example,), file, dynamo=False, input_names=["x"], dynamic_axes=several
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = devices.cores()
    session = onnxruntime.InferenceSession(file.getvalue(), options)

    def inputs(images: np.ndarray) -> torch.Tensor:
        return (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128

    def embed(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(inputs(images)).numpy()

    return embed, lambda images: session.run(None, {"x": inputs(images).numpy()})[0]
