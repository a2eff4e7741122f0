"""Weights of PyTorch: reading, names, transposes, every error, and PyTorch's own outputs."""

import functools
import re
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.nets import backbone, pretrained
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import resnet, vit
from cluster_jax.nets.norm import BatchNorm
from tests.rows import every_row

norm = functools.partial(BatchNorm, train=False, axis=None, group=None, dtype=None)


WIDTH, PROJECTED, SIDE = 64, 48, 32


@pytest.fixture
def small(monkeypatch):
    """Towers of two blocks of 64 columns, for images of 2 x 2 patches."""
    monkeypatch.setitem(vit.SIZES, "base", (WIDTH, 2, 4))
    monkeypatch.setitem(vit.PROJECTED, WIDTH, PROJECTED)
    for name, patches in vit.TOWERS.items():
        monkeypatch.setitem(vit.TOWERS, name, patches._replace(grid=SIDE // patches.size))


def module_of(name):
    width, stem = (64, "imagenet") if name in resnet.NAMES else (vit.architecture(name)[0], None)
    made = backbone.make(name, width=width, stem=stem)
    return made.module(Layers(norm, norm, frozen=0, dtype=None))


@functools.cache
def shapes_of(name):
    """Shapes of parameters and statistics."""
    side = SIDE if name in vit.TOWERS else 14 if "patch14" in name else 16
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    variables = jax.eval_shape(module_of(name).init, jax.random.key(0), image)
    return variables["params"], variables.get("batch_stats", {})


def drawn(name, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), shapes_of(name)
    )


# --- PyTorch's names ------------------------------------------------------------------------------

# Network and a tensor that tells the layout of its file -> path in Flax and the names in the files
# of torchvision, timm and transformers, one of each kind.
TIMM, HF = "cls_token", "embeddings.cls_token"
NAMES = {
    ("resnet18", ""): """
        conv1/kernel conv1.weight
        bn1/mean bn1.running_mean
        layer1_0/conv2/kernel layer1.0.conv2.weight
        layer2_0/downsample_0/kernel layer2.0.downsample.0.weight
        layer2_0/downsample_1/var layer2.0.downsample.1.running_var
        layer4_12/bn2/scale layer4.12.bn2.weight
    """,
    ("vit_tiny_patch14", TIMM): """
        embedding/class_token cls_token
        embedding/positions pos_embed
        embedding/patches/bias patch_embed.proj.bias
        norm/scale norm.weight
        block12/norm2/bias blocks.11.norm2.bias
        block12/qkv/kernel blocks.11.attn.qkv.weight
        block12/projection/bias blocks.11.attn.proj.bias
        block12/hidden/kernel blocks.11.mlp.fc1.weight
        block12/scale2 blocks.11.ls2.gamma
    """,
    ("vit_tiny_patch14_reg4", TIMM): """
        embedding/registers register_tokens
    """,
    ("vit_tiny_patch14_reg4", "reg_token"): """
        embedding/registers reg_token
    """,
    ("vit_tiny_patch14", HF): """
        embedding/class_token embeddings.cls_token
        embedding/positions embeddings.position_embeddings
        embedding/patches/kernel embeddings.patch_embeddings.projection.weight
        norm/bias layernorm.bias
        block12/norm1/scale encoder.layer.11.norm1.weight
        block12/qkv/bias encoder.layer.11.attention.attention.{query,key,value}.bias
        block12/projection/kernel encoder.layer.11.attention.output.dense.weight
        block12/out/bias encoder.layer.11.mlp.fc2.bias
        block12/scale1 encoder.layer.11.layer_scale1.lambda1
    """,
    ("vit_base_patch16_clip", ""): """
        embedding/patches/kernel vision_model.embeddings.patch_embedding.weight
        embedding/positions vision_model.embeddings.position_embedding.weight
        embedding/class_token vision_model.embeddings.class_embedding
        norm0/scale vision_model.pre_layrnorm.weight
        norm/bias vision_model.post_layernorm.bias
        visual_projection/kernel visual_projection.weight
        block2/qkv/kernel vision_model.encoder.layers.1.self_attn.{q,k,v}_proj.weight
        block2/projection/bias vision_model.encoder.layers.1.self_attn.out_proj.bias
        block2/norm2/bias vision_model.encoder.layers.1.layer_norm2.bias
        block2/hidden/kernel vision_model.encoder.layers.1.mlp.fc1.weight
    """,
    ("vit_base_patch16_siglip", ""): """
        pool/probe vision_model.head.probe
        pool/pool_qkv/kernel vision_model.head.attention.in_proj_weight
        pool/pool_projection/bias vision_model.head.attention.out_proj.bias
        pool/pool_norm/scale vision_model.head.layernorm.weight
        pool/pool_out/kernel vision_model.head.mlp.fc2.weight
    """,
}


def test_names_are_those_of_the_files():
    for (network, layout), rows in NAMES.items():
        for path, name in (row.split() for row in rows.strip().splitlines()):
            start, *kinds = re.split("[{}]", name)
            expected = (
                [f"{start}{kind}{kinds[1]}" for kind in kinds[0].split(",")] if kinds else [name]
            )
            found = pretrained._names(network, tuple(path.split("/")), {layout: None})
            assert found == tuple(expected), (network, path)


# --- tensors -------------------------------------------------------------------------------------


def written(name, params, stats, layout=""):
    """PyTorch's tensors of a network, of which each path has a name of its own."""
    tensors = {}
    for path in pretrained._paths(params, stats):
        leaf = functools.reduce(dict.__getitem__, path, stats if path[-1] in STATS else params)
        names = pretrained._names(name, path, {layout: None})
        for torch, part in zip(names, np.split(leaf, len(names), axis=-1), strict=True):
            assert torch not in tensors
            # Outputs first, then inputs; tokens have a leading axis of one.
            part = np.moveaxis(part, (-2, -1), (1, 0)) if path[-1] == "kernel" else part
            tensors[torch] = part[None] if path[-1] in TOKENS else part
    return tensors


STATS, TOKENS = ("mean", "var"), ("class_token", "positions", "registers", "probe")
# What is not loaded.
SPARE = ("fc.weight", "bn1.num_batches_tracked", "head.bias", "mask_token", "logit_scale")


def check_equal(converted, expected):
    """Equal in structure, dtype and every bit."""
    assert jax.tree.structure(converted) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(converted), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("resnet18", ""),
        # The same blocks as in ResNet-18, more of them.
        pytest.param("resnet34", "", marks=pytest.mark.slow),
        ("resnet50", ""),
        ("vit_tiny_patch16", TIMM),
        ("vit_tiny_patch14_reg4", TIMM),
        ("vit_tiny_patch14_reg4", HF),
        ("vit_base_patch16_clip", ""),
        ("vit_base_patch16_siglip", ""),
    ],
)
def test_what_is_written_comes_back(name, layout, small):
    params, stats = drawn(name)
    tensors = {**written(name, params, stats, layout), **dict.fromkeys(SPARE, np.ones(3))}
    check_equal(pretrained.convert(tensors, name, *shapes_of(name)), (params, stats))


def test_timm_has_added_the_position_of_the_class_token_to_it():
    name = "vit_tiny_patch14_reg4"
    params, stats = drawn(name)
    params["embedding"]["positions"][0] = 0
    tensors = written(name, params, stats, TIMM)
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    check_equal(pretrained.convert(tensors, name, *shapes_of(name)), (params, stats))


def test_other_precisions_become_float32():
    params, stats = drawn("resnet18")
    tensors = written("resnet18", params, stats)
    halves = {name: tensor.astype(jnp.bfloat16) for name, tensor in tensors.items()}
    converted, _ = pretrained.convert(halves, "resnet18", *shapes_of("resnet18"))
    kernel = converted["conv1"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_allclose(kernel, params["conv1"]["kernel"], rtol=2**-8)


def refused(message, call, *arguments):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call(*arguments)


def without(tensors, *names):
    return {name: x for name, x in tensors.items() if name not in names}


@every_row(
    ("name", "change", "said"),
    [
        ("resnet18", lambda x: without(x, "bn1.bias"), "got tensors without 'bn1.bias' (1 in all)"),
        ("resnet18", lambda x: {**x, "a": 0, "b": 0}, "its tensors alone; got also 'a' (2 in all)"),
        (
            "resnet18",
            lambda x: {**x, "layer1.0.conv1.weight": np.zeros((3, 3, 64, 64))},
            "'layer1.0.conv1.weight', with outputs last, must have the shape (3, 3, 64, 64); got ",
        ),
        (
            "vit_tiny_patch14",
            lambda x: {**x, "pos_embed": np.zeros((1, 197, 192))},
            "must have the shape (1370, 192); got (1, 197, 192)",
        ),
        (
            "vit_tiny_patch14_reg4",
            lambda x: without(x, "register_tokens"),
            "got tensors without 'register_tokens' (1 in all)",
        ),
        ("small", lambda x: {}, "must be a ResNet or a Vision Transformer"),
    ],
)
def test_tensors_that_do_not_fit(name, change, said):
    of = "resnet18" if name == "small" else name
    params, stats = drawn(of)
    with pytest.raises(InputError, match=re.escape(said)):
        pretrained.convert(change(written(of, params, stats, TIMM)), name, params, stats)


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """A file of two tensors."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    tensors = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float16)}
    numpy_files.save_file(tensors, path)
    return path


def test_read(file):
    tensors = pretrained.read(str(file))
    assert set(tensors) == {"a", "b"}
    np.testing.assert_array_equal(tensors["a"], np.arange(6.0).reshape(2, 3))
    assert tensors["b"].dtype == np.float16


@every_row(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data.replace(b'"F16"', b'"F32"'),
        lambda data: struct.pack("<Q", 2**40) + data[8:],
    ],
)
def test_a_file_that_is_damaged_or_away(file, damage):
    file.write_bytes(damage(file.read_bytes()))
    for path in (file, file.with_name("other.safetensors")):
        start = f"a file of pretrained weights must be a whole safetensors file; got {path}: "
        with pytest.raises(InputError, match=f"^{re.escape(start)}") as error:
            pretrained.read(path)
        assert "\n" not in str(error.value)


@every_row(
    ("library", "call"),
    [
        ("safetensors", lambda: pretrained.read("x.safetensors")),
        ("huggingface_hub", lambda: pretrained.from_hub("hf:a/b", "x")),
    ],
)
def test_missing_library(monkeypatch, library, call):
    monkeypatch.setitem(sys.modules, library, None)
    said = rf"^the library {library} must be installed: pip install .*; got (x|hf:a)"
    with pytest.raises(InputError, match=said):
        call()


# --- the hub -------------------------------------------------------------------------------------


def test_hub_gives_a_path(monkeypatch, file):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(
        hub, "hf_hub_download", lambda repository, name: str(file.parent / repository / name)
    )
    found = pretrained.from_hub("hf:a/b.c", "model.safetensors")
    assert found == file.parent / "a/b.c/model.safetensors"


@pytest.mark.parametrize("name", ["a/b", "hf:a", "hf:a/b/c", "hf:/b", "hf:a/", "hf:a/b c", "hf:"])
def test_hub_name(name):
    message = (
        f"pretrained weights on the Hugging Face Hub must be named 'hf:ORG/NAME'; got {name!r}"
    )
    refused(message, pretrained.from_hub, name, "model.safetensors")


def test_hub_is_offline_or_has_no_such_file(monkeypatch, tmp_path):
    """Offline through the library itself; the other error as it raises it."""
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("huggingface_hub.constants")
    message = (
        "model.safetensors of 'hf:a/b' must be within reach on the Hugging Face Hub; got "
        "LocalEntryNotFoundError: try again with a network, or download the files of the model "
        "elsewhere into a folder b and give the path of model.safetensors"
    )
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    refused(message, pretrained.from_hub, "hf:a/b", "model.safetensors")

    def download(repository, name):
        raise hub.errors.EntryNotFoundError("404")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert pretrained.from_hub("hf:a/b", "model.safetensors") is None
    with pytest.raises(InputError, match=r"must have a file model\.safetensors; got 'hf:a/b'"):
        pretrained.load("hf:a/b", "resnet18", {}, {})


# --- PyTorch itself ------------------------------------------------------------------------------


def transformers_tower(kind):
    """A small model of transformers with random weights, and its features of images."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": SIDE, "patch_size": 16,
    }  # fmt: skip
    text = {**sizes, "vocab_size": 20, "max_position_embeddings": 8}
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config=text, vision_config=sizes, projection_dim=PROJECTED
        )
        model = transformers.CLIPModel(config)
    else:
        model = transformers.SiglipModel(
            transformers.SiglipConfig(text_config=text, vision_config=sizes)
        )
    with torch.no_grad():
        for tensor in model.parameters():  # so that no bias is zero and no scale one
            tensor.add_(0.1 * torch.randn_like(tensor))
    return torch, model.eval()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["vit_base_patch16_clip", "vit_base_patch16_siglip"])
def test_a_tower_computes_as_transformers(name):
    torch, model = transformers_tower(vit.TOWERS[name].kind)
    images = np.random.default_rng(0).standard_normal((3, SIDE, SIDE, 3)).astype(np.float32)
    with torch.inference_mode():
        expected = model.get_image_features(torch.from_numpy(images).permute(0, 3, 1, 2))
    expected = getattr(expected, "pooler_output", expected).numpy()
    tensors = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    params, _ = pretrained.convert(tensors, name, *shapes_of(name))
    found = module_of(name).apply({"params": params}, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def shaken(torch, model):
    """The model with statistics, scales, tokens and biases off their initial values."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var") or name.endswith("gamma"):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("num_batches_tracked"):
                continue
            elif "token" in name or "pos_embed" in name:
                tensor.normal_(0, 0.5)
            elif tensor.ndim == 1:
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model.eval()


def compare(torch, tmp_path, name, model, features, shape):
    """Both outputs for the same images, through a file."""
    path = tmp_path / "model.safetensors"
    import safetensors.torch

    safetensors.torch.save_file(model.state_dict(), path)
    params, stats = pretrained.convert(pretrained.read(path), name, *shapes_of(name))
    images = torch.randn(2, 3, *shape)
    with torch.no_grad():
        expected = features(images).numpy()
    variables = {"params": params, "batch_stats": stats}
    out = module_of(name).apply(variables, images.permute(0, 2, 3, 1).numpy())
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.peers
@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_equals_its_peers(tmp_path, library, name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    if library == "timm":
        model = pytest.importorskip("timm").create_model(name)
    else:
        model = getattr(pytest.importorskip("torchvision").models, name)()
    model = shaken(torch, model)
    inputs = []
    model.fc.register_forward_pre_hook(lambda layer, given: inputs.append(given[0]))

    def features(images):
        model(images)
        return inputs[-1]

    compare(torch, tmp_path, name, model, features, (64, 96))


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(518, 518), (224, 224), (70, 98)])
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("vit_small_patch14_reg4", "vit_small_patch14_reg4_dinov2"),
        ("vit_small_patch16", "vit_small_patch16_224"),
    ],
)
def test_vit_equals_timm(tmp_path, name, theirs, shape):
    torch = pytest.importorskip("torch")
    timm = pytest.importorskip("timm")
    if name == "vit_small_patch16":
        shape = tuple(n // 14 * 16 for n in shape)
    torch.manual_seed(0)
    model = shaken(torch, timm.create_model(theirs, num_classes=0, dynamic_img_size=True))
    compare(torch, tmp_path, name, model, lambda x: model.forward_features(x)[:, 0], shape)
