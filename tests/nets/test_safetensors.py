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


def module_of(name):
    width, stem = (64, "imagenet") if name in resnet.NAMES else (vit.architecture(name)[0], None)
    made = backbone.make(name, width=width, stem=stem)
    return made.module(Layers(norm, norm, frozen=0, dtype=None))


@functools.cache
def shapes_of(name):
    """Shapes of parameters and statistics."""
    side = 14 if "patch14" in name else 16
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    variables = jax.eval_shape(module_of(name).init, jax.random.key(0), image)
    return variables["params"], variables.get("batch_stats", {})


def drawn(name, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), shapes_of(name)
    )


# --- PyTorch's names, written out from its modules -----------------------------------------------


def torch_batch_norm(theirs, params, stats):
    return {
        f"{theirs}.weight": params["scale"],
        f"{theirs}.bias": params["bias"],
        f"{theirs}.running_mean": stats["mean"],
        f"{theirs}.running_var": stats["var"],
        f"{theirs}.num_batches_tracked": np.asarray(7),
    }


def torch_conv(kernel):
    """`[h, w, in, out] -> [out, in, h, w]`."""
    return np.moveaxis(kernel, (3, 2), (0, 1))


def torch_resnet(name, params, stats):
    """torchvision's `state_dict` of a ResNet."""
    tensors = {"conv1.weight": torch_conv(params["Conv_0"]["kernel"])}
    tensors |= torch_batch_norm("bn1", params["BatchNorm_0"], stats["BatchNorm_0"])
    kind = "Bottleneck" if name == "resnet50" else "BasicBlock"
    number = 0
    for layer, depth in enumerate({"resnet18": (2, 2, 2, 2)}.get(name, (3, 4, 6, 3)), 1):
        for i in range(depth):
            p, s = params[f"{kind}_{number}"], stats[f"{kind}_{number}"]
            number += 1
            prefix, last = f"layer{layer}.{i}", 3 if name == "resnet50" else 2
            names = {j: (f"{prefix}.conv{j + 1}", f"{prefix}.bn{j + 1}") for j in range(last)}
            if f"Conv_{last}" in p:
                names[last] = (f"{prefix}.downsample.0", f"{prefix}.downsample.1")
            for j, (conv, bn) in names.items():
                tensors[f"{conv}.weight"] = torch_conv(p[f"Conv_{j}"]["kernel"])
                tensors |= torch_batch_norm(bn, p[f"BatchNorm_{j}"], s[f"BatchNorm_{j}"])
    return {**tensors, "fc.weight": np.zeros((1000, 512)), "fc.bias": np.zeros(1000)}


def torch_dense(theirs, p):
    return {f"{theirs}.weight": p["kernel"].T, f"{theirs}.bias": p["bias"]}


def torch_norm(theirs, p):
    return {f"{theirs}.weight": p["scale"], f"{theirs}.bias": p["bias"]}


def torch_vit(params):
    """DINOv2's `state_dict`; without registers and layer scale timm's, with a classifier."""
    p = params["embedding"]
    tensors = {
        "cls_token": p["class_token"][None],
        "pos_embed": p["positions"][None],
        "patch_embed.proj.weight": torch_conv(p["patches"]["kernel"]),
        "patch_embed.proj.bias": p["patches"]["bias"],
        "mask_token": np.zeros((1, 192)),
        "head.weight": np.zeros((10, 192)),
        "head.bias": np.zeros(10),
        **torch_norm("norm", params["norm"]),
    }
    if "registers" in p:
        tensors["register_tokens"] = p["registers"][None]
    for i in range(12):
        p, prefix = params[f"block{i + 1}"], f"blocks.{i}"
        tensors |= torch_norm(f"{prefix}.norm1", p["norm1"])
        tensors |= torch_dense(f"{prefix}.attn.qkv", p["qkv"])
        tensors |= torch_dense(f"{prefix}.attn.proj", p["projection"])
        tensors |= torch_norm(f"{prefix}.norm2", p["norm2"])
        tensors |= torch_dense(f"{prefix}.mlp.fc1", p["hidden"])
        tensors |= torch_dense(f"{prefix}.mlp.fc2", p["out"])
        for scale, gamma in (("scale1", "ls1.gamma"), ("scale2", "ls2.gamma")):
            if scale in p:
                tensors[f"{prefix}.{gamma}"] = p[scale]
    return tensors


def transformers_vit(params):
    """DINOv2's `state_dict` in Hugging Face's transformers."""
    p = params["embedding"]
    tensors = {
        "embeddings.cls_token": p["class_token"][None],
        "embeddings.position_embeddings": p["positions"][None],
        "embeddings.patch_embeddings.projection.weight": torch_conv(p["patches"]["kernel"]),
        "embeddings.patch_embeddings.projection.bias": p["patches"]["bias"],
        "embeddings.mask_token": np.zeros((1, 192)),
        **torch_norm("layernorm", params["norm"]),
    }
    if "registers" in p:
        tensors["embeddings.register_tokens"] = p["registers"][None]
    for i in range(12):
        p, prefix = params[f"block{i + 1}"], f"encoder.layer.{i}"
        for part, name in enumerate(("query", "key", "value")):
            columns = slice(192 * part, 192 * (part + 1))
            third = {"kernel": p["qkv"]["kernel"][:, columns], "bias": p["qkv"]["bias"][columns]}
            tensors |= torch_dense(f"{prefix}.attention.attention.{name}", third)
        tensors |= torch_dense(f"{prefix}.attention.output.dense", p["projection"])
        tensors |= torch_norm(f"{prefix}.norm1", p["norm1"])
        tensors |= torch_norm(f"{prefix}.norm2", p["norm2"])
        tensors |= torch_dense(f"{prefix}.mlp.fc1", p["hidden"])
        tensors |= torch_dense(f"{prefix}.mlp.fc2", p["out"])
        tensors[f"{prefix}.layer_scale1.lambda1"] = p["scale1"]
        tensors[f"{prefix}.layer_scale2.lambda1"] = p["scale2"]
    return tensors


def check_equal(converted, expected):
    """Equal in structure, dtype and every bit."""
    assert jax.tree.structure(converted) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(converted), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", resnet.NAMES)
def test_resnet_comes_back(name):
    params, stats = drawn(name)
    tensors = torch_resnet(name, params, stats)
    check_equal(pretrained.convert(tensors, name, *shapes_of(name)), (params, stats))


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "vit_tiny_patch14", "vit_tiny_patch14_reg4"])
def test_vit_comes_back(name):
    params, stats = drawn(name)
    assert stats == {}
    check_equal(pretrained.convert(torch_vit(params), name, *shapes_of(name)), (params, stats))


@pytest.mark.parametrize("name", ["vit_tiny_patch14", "vit_tiny_patch14_reg4"])
def test_vit_of_transformers_comes_back(name):
    params, stats = drawn(name)
    tensors = transformers_vit(params)
    check_equal(pretrained.convert(tensors, name, *shapes_of(name)), (params, stats))


def test_timm_has_added_the_position_of_the_class_token_to_it():
    name = "vit_tiny_patch14_reg4"
    params, stats = drawn(name)
    params["embedding"]["positions"][0] = 0
    tensors = torch_vit(params)
    tensors["reg_token"] = tensors.pop("register_tokens")
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    check_equal(pretrained.convert(tensors, name, *shapes_of(name)), (params, stats))


def test_other_precisions_become_float32():
    params, stats = drawn("resnet18")
    tensors = torch_resnet("resnet18", params, stats)
    halves = {name: tensor.astype(jnp.bfloat16) for name, tensor in tensors.items()}
    converted, _ = pretrained.convert(halves, "resnet18", *shapes_of("resnet18"))
    kernel = converted["Conv_0"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_allclose(kernel, params["Conv_0"]["kernel"], rtol=2**-8)


# --- bad tensors ---------------------------------------------------------------------------------


def refused(message, call, *arguments):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call(*arguments)


def resnet18():
    return torch_resnet("resnet18", *drawn("resnet18"))


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
            "vit_tiny_patch14",
            lambda x: {**x, **transformers_vit(drawn("vit_tiny_patch14")[0])},
            "its tensors alone; got also 'blocks.0.attn.proj.bias' (",
        ),
        (
            "vit_tiny_patch14_reg4",
            lambda x: without(x, "register_tokens"),
            "got tensors without 'register_tokens' (1 in all)",
        ),
        ("small", lambda x: {}, "must be a ResNet or a Vision Transformer with weights of this"),
    ],
)
def test_tensors_that_do_not_fit(name, change, said):
    params, stats = drawn("resnet18" if name == "small" else name)
    tensors = torch_vit(params) if "vit" in name else torch_resnet("resnet18", params, stats)
    with pytest.raises(InputError, match=re.escape(said)):
        pretrained.convert(change(tensors), name, params, stats)


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


@every_row("suffix", [".pth", ".pt", ".bin"])
def test_pickled_files_are_refused_unread(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    message = (
        "a file of pretrained weights must be in the safetensors format, as a pickled one can run "
        f"code; got {path}: convert it with `safetensors.torch.save_file(torch.load(FILE, "
        'weights_only=True), "model.safetensors")`'
    )
    refused(message, pretrained.read, path)


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
    with pytest.raises(InputError, match=r"has a file model\.safetensors; got 'hf:a/b'"):
        pretrained.load("hf:a/b", "resnet18", {}, {})


# --- image towers --------------------------------------------------------------------------------

WIDTH, PROJECTED, SIDE = 64, 48, 32


@pytest.fixture
def small(monkeypatch):
    """Towers of two blocks of 64 columns, for images of 2 x 2 patches."""
    monkeypatch.setitem(vit.SIZES, "base", (WIDTH, 2, 4))
    monkeypatch.setitem(vit.PROJECTED, WIDTH, PROJECTED)
    for name, patches in vit.TOWERS.items():
        monkeypatch.setitem(vit.TOWERS, name, patches._replace(grid=SIDE // patches.size))


def tower_module(name):
    return backbone.make(name, width=WIDTH, stem=None).module(Layers(None, None, 0, None))


def tower(params, kind):
    """Tensors of transformers' image tower, written out."""
    start, p = "vision_model", params["embedding"]
    tensors = {
        f"{start}.embeddings.patch_embedding.weight": torch_conv(p["patches"]["kernel"]),
        f"{start}.embeddings.position_embedding.weight": p["positions"],
        **torch_norm(f"{start}.post_layernorm", params["norm"]),
    }
    if kind == "clip":
        tensors[f"{start}.embeddings.class_embedding"] = p["class_token"][0]
        tensors[f"{start}.embeddings.position_ids"] = np.arange(5)[None]
        tensors |= torch_norm(f"{start}.pre_layrnorm", params["norm0"])
        tensors["visual_projection.weight"] = params["visual_projection"]["kernel"].T
        tensors |= {"logit_scale": np.zeros(()), "text_projection.weight": np.zeros((3, 3))}
    else:
        tensors[f"{start}.embeddings.patch_embedding.bias"] = p["patches"]["bias"]
        head, pool = f"{start}.head", params["pool"]
        tensors[f"{head}.probe"] = pool["probe"][None]
        tensors[f"{head}.attention.in_proj_weight"] = pool["pool_qkv"]["kernel"].T
        tensors[f"{head}.attention.in_proj_bias"] = pool["pool_qkv"]["bias"]
        tensors |= torch_dense(f"{head}.attention.out_proj", pool["pool_projection"])
        tensors |= torch_norm(f"{head}.layernorm", pool["pool_norm"])
        tensors |= torch_dense(f"{head}.mlp.fc1", pool["pool_hidden"])
        tensors |= torch_dense(f"{head}.mlp.fc2", pool["pool_out"])
        tensors |= {"logit_bias": np.zeros(1), "text_model.head.bias": np.zeros(3)}
    for i in range(2):
        p, prefix = params[f"block{i + 1}"], f"{start}.encoder.layers.{i}"
        for part, letter in enumerate("qkv"):
            columns = slice(WIDTH * part, WIDTH * (part + 1))
            third = {"kernel": p["qkv"]["kernel"][:, columns], "bias": p["qkv"]["bias"][columns]}
            tensors |= torch_dense(f"{prefix}.self_attn.{letter}_proj", third)
        tensors |= torch_dense(f"{prefix}.self_attn.out_proj", p["projection"])
        tensors |= torch_norm(f"{prefix}.layer_norm1", p["norm1"])
        tensors |= torch_norm(f"{prefix}.layer_norm2", p["norm2"])
        tensors |= torch_dense(f"{prefix}.mlp.fc1", p["hidden"])
        tensors |= torch_dense(f"{prefix}.mlp.fc2", p["out"])
    return tensors


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["vit_base_patch16_clip", "vit_base_patch16_siglip"])
def test_a_tower_comes_back(name):
    image = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(tower_module(name).init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), shapes)
    tensors = tower(params, vit.TOWERS[name].kind)
    check_equal(pretrained.convert(tensors, name, shapes, {}), (params, {}))


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
    shapes = jax.eval_shape(tower_module(name).init, jax.random.key(0), images)["params"]
    tensors = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    params, _ = pretrained.convert(tensors, name, shapes, {})
    np.testing.assert_allclose(tower_module(name).apply({"params": params}, images), expected,
                               rtol=1e-4, atol=1e-4)  # fmt: skip


# --- PyTorch itself ------------------------------------------------------------------------------


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
