"""Encoders by name, file and layout, and the image towers of CLIP and SigLIP beside PyTorch's."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.nets import backbone
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import convnext, vit
from cluster_jax.nets.pretrained import encoders, weights
from tests.nets import test_safetensors as files


@pytest.mark.parametrize("name", ["lite2", "efficientnet_lite2"])
def test_a_network_of_a_wheel(name):
    assert encoders.overrides(name) == {
        "name": "efficientnet_lite2",
        "weights": "efficientnet_lite2",
        "width": 32,
        "stem": None,
        "frozen": "head",
    }


@pytest.mark.parametrize(
    ("name", "meant"), [("Lite2", ": did you mean 'lite2'?"), ("lite", ": did you mean 'lite"),
                        ("effnet_lite1", ": did you mean 'efficientnet_lite1'?"), ("qq", "")]
)  # fmt: skip
def test_another_name(name, meant):
    must = "encoder must be one of 'lite0', 'lite1', 'lite2', a .safetensors file, or 'hf:ORG/NAME'"
    with pytest.raises(InputError, match=f"^{re.escape(f'{must}; got {name!r}{meant}')}"):
        encoders.overrides(name)
    with pytest.raises(InputError, match="encoder must be a name or a path; got 2"):
        encoders.overrides(2)


def of_shapes(monkeypatch, tensors):
    """The network of a file with these tensors."""
    shapes = {name: np.shape(tensor) for name, tensor in tensors.items()}
    monkeypatch.setattr(weights, "shapes", lambda _: shapes)
    values = encoders.overrides("w.safetensors")
    assert values["weights"] == "w.safetensors"
    return tuple(values[key] for key in ("name", "width", "stem", "frozen"))


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_a_resnet_is_known_by_its_blocks(monkeypatch, name):
    tensors = files.torch_resnet(name, *files.drawn(name))
    assert of_shapes(monkeypatch, tensors) == (name, 64, "imagenet", "stage4")
    tensors["conv1.weight"] = np.zeros((64, 3, 3, 3))
    assert of_shapes(monkeypatch, tensors) == (name, 64, "cifar", "stage4")
    tensors["layer3.9.conv1.weight"] = np.zeros((1, 1, 1, 1))
    with pytest.raises(InputError, match=r"one of resnet18, .* if it is a ResNet; got w\.safe"):
        of_shapes(monkeypatch, tensors)


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "vit_tiny_patch14", "vit_tiny_patch14_reg4"])
@pytest.mark.parametrize("layout", [files.torch_vit, files.transformers_vit])
def test_a_vit_is_known_by_its_patches_and_registers(monkeypatch, name, layout):
    if name == "vit_tiny_patch16" and layout is files.transformers_vit:
        return
    tensors = layout(files.drawn(name)[0])
    assert of_shapes(monkeypatch, tensors) == (name, 192, None, "block12")
    patches = next(key for key in tensors if key.endswith(("proj.weight", "projection.weight")))
    tensors[patches] = np.zeros((192, 3, 8, 8))
    with pytest.raises(InputError, match="tokens of 192 columns, patches of 8 pixels and"):
        of_shapes(monkeypatch, tensors)


@pytest.mark.parametrize(
    ("tensor", "nearest"),
    [
        ("vision_model.encoder.layers.0.layer_norm.weight", "a CLIP or SigLIP of transformers"),
        ("blocks.0.attn.q.weight", "a Vision Transformer of timm or DINOv2"),
        ("stages.0.blocks.0.dwconv.weight", "a ConvNeXt of timm"),
    ],
)
def test_another_layout_names_the_nearest(monkeypatch, tensor, nearest):
    message = f"got w.safetensors, with '{tensor}': the nearest known one is {nearest}"
    with pytest.raises(InputError, match=re.escape(message)):
        of_shapes(monkeypatch, {tensor: np.zeros(3)})


def test_a_file_that_is_missing_or_no_model(tmp_path):
    file = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="must be a whole safetensors file; got"):
        encoders.overrides(file)
    with pytest.raises(InputError, match=r"must be in the safetensors format.*got w\.bin"):
        encoders.overrides("w.bin")
    with pytest.raises(InputError, match="must be named 'hf:ORG/NAME'; got 'hf:x'"):
        encoders.overrides("hf:x")


# --- image towers --------------------------------------------------------------------------------

WIDTH, PROJECTED, SIDE = 64, 48, 32


@pytest.fixture
def small(monkeypatch):
    """Towers of two blocks of 64 columns, for images of 2 x 2 patches."""
    monkeypatch.setitem(vit.SIZES, "base", (WIDTH, 2, 4))
    monkeypatch.setitem(vit.PROJECTED, WIDTH, PROJECTED)
    for name, patches in vit.TOWERS.items():
        monkeypatch.setitem(vit.TOWERS, name, patches._replace(grid=SIDE // patches.size))


def module_of(name):
    return backbone.make(name, width=WIDTH, stem=None).module(Layers(None, None, 0, None))


def tower(params, kind):
    """Tensors of transformers' image tower, written out."""
    start, p = "vision_model", params["embedding"]
    tensors = {
        f"{start}.embeddings.patch_embedding.weight": files.torch_conv(p["patches"]["kernel"]),
        f"{start}.embeddings.position_embedding.weight": p["positions"],
        **files.torch_norm(f"{start}.post_layernorm", params["norm"]),
    }
    if kind == "clip":
        tensors[f"{start}.embeddings.class_embedding"] = p["class_token"][0]
        tensors[f"{start}.embeddings.position_ids"] = np.arange(5)[None]
        tensors |= files.torch_norm(f"{start}.pre_layrnorm", params["norm0"])
        tensors["visual_projection.weight"] = params["visual_projection"]["kernel"].T
        tensors |= {"logit_scale": np.zeros(()), "text_projection.weight": np.zeros((3, 3))}
    else:
        tensors[f"{start}.embeddings.patch_embedding.bias"] = p["patches"]["bias"]
        head, pool = f"{start}.head", params["pool"]
        tensors[f"{head}.probe"] = pool["probe"][None]
        tensors[f"{head}.attention.in_proj_weight"] = pool["pool_qkv"]["kernel"].T
        tensors[f"{head}.attention.in_proj_bias"] = pool["pool_qkv"]["bias"]
        tensors |= files.torch_dense(f"{head}.attention.out_proj", pool["pool_projection"])
        tensors |= files.torch_norm(f"{head}.layernorm", pool["pool_norm"])
        tensors |= files.torch_dense(f"{head}.mlp.fc1", pool["pool_hidden"])
        tensors |= files.torch_dense(f"{head}.mlp.fc2", pool["pool_out"])
        tensors |= {"logit_bias": np.zeros(1), "text_model.head.bias": np.zeros(3)}
    for i in range(2):
        p, prefix = params[f"block{i + 1}"], f"{start}.encoder.layers.{i}"
        for part, letter in enumerate("qkv"):
            columns = slice(WIDTH * part, WIDTH * (part + 1))
            third = {"kernel": p["qkv"]["kernel"][:, columns], "bias": p["qkv"]["bias"][columns]}
            tensors |= files.torch_dense(f"{prefix}.self_attn.{letter}_proj", third)
        tensors |= files.torch_dense(f"{prefix}.self_attn.out_proj", p["projection"])
        tensors |= files.torch_norm(f"{prefix}.layer_norm1", p["norm1"])
        tensors |= files.torch_norm(f"{prefix}.layer_norm2", p["norm2"])
        tensors |= files.torch_dense(f"{prefix}.mlp.fc1", p["hidden"])
        tensors |= files.torch_dense(f"{prefix}.mlp.fc2", p["out"])
    return tensors


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["vit_base_patch16_clip", "vit_base_patch16_siglip"])
def test_a_tower_comes_back(monkeypatch, name):
    image = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(module_of(name).init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), shapes)
    tensors = tower(params, vit.TOWERS[name].kind)
    files.check_equal(weights.convert(tensors, name, shapes, {}), (params, {}))
    assert of_shapes(monkeypatch, tensors) == (name, WIDTH, None, "block2")


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
    shapes = jax.eval_shape(module_of(name).init, jax.random.key(0), images)["params"]
    tensors = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    params, _ = weights.convert(tensors, name, shapes, {})
    np.testing.assert_allclose(module_of(name).apply({"params": params}, images), expected,
                               rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.fixture
def small_convnext(monkeypatch):
    monkeypatch.setitem(convnext.SIZES, "convnext_tiny", ((1, 2, 1, 1), 8))
    module = backbone.make("convnext_tiny", width=8, stem=None).module(Layers(None, None, 0, None))
    images = np.random.default_rng(0).standard_normal((3, 64, 64, 3)).astype(np.float32)
    return module, jax.eval_shape(module.init, jax.random.key(0), images)["params"], images


def test_a_convnext_comes_back(monkeypatch, small_convnext):
    _, shapes, _ = small_convnext
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), shapes)
    tensors = files.torch_norm("head.norm", params["norm"])
    tensors |= {"head.fc.weight": np.zeros((9, 64)), "head.fc.bias": np.zeros(9)}
    tensors |= files.torch_norm("stem.1", params["stem_norm"])
    convolutions = {"stem.0": params["stem"]}
    for stage in range(1, 5):
        prefix = f"stages.{stage - 1}"
        if stage > 1:
            convolutions[f"{prefix}.downsample.1"] = params[f"stage{stage}_conv"]
            tensors |= files.torch_norm(f"{prefix}.downsample.0", params[f"stage{stage}_norm"])
        for block in range(1 + (stage == 2)):
            p, name = params[f"stage{stage}_block{block}"], f"{prefix}.blocks.{block}"
            convolutions[f"{name}.conv_dw"] = {**p["depthwise"], "bias": p["bias"]}
            tensors |= files.torch_norm(f"{name}.norm", p["norm"])
            tensors |= files.torch_dense(f"{name}.mlp.fc1", p["hidden"])
            tensors |= files.torch_dense(f"{name}.mlp.fc2", p["out"])
            tensors[f"{name}.gamma"] = p["gamma"]
    for name, p in convolutions.items():
        tensors |= {f"{name}.weight": files.torch_conv(p["kernel"]), f"{name}.bias": p["bias"]}
    files.check_equal(weights.convert(tensors, "convnext_tiny", shapes, {}), (params, {}))
    assert of_shapes(monkeypatch, tensors) == ("convnext_tiny", 8, None, "stage4")
    tensors["stages.3.blocks.5.gamma"] = np.zeros(3)
    with pytest.raises(InputError, match="stages of 1, 2, 1, 2 blocks and 8 channels"):
        of_shapes(monkeypatch, tensors)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_a_convnext_computes_as_timm(small_convnext):
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.models.ConvNeXt(depths=(1, 2, 1, 1), dims=(8, 16, 32, 64), num_classes=0).eval()
    module, shapes, images = small_convnext
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.add_(0.3 * torch.randn_like(tensor))
        expected = network(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    tensors = {key: tensor.numpy() for key, tensor in network.state_dict().items()}
    params, _ = weights.convert(tensors, "convnext_tiny", shapes, {})
    np.testing.assert_allclose(module.apply({"params": params}, images), expected, atol=1e-4)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "model", "expected"),
    [
        ("torchvision.models", "resnet50", "resnet50"),
        ("timm", "resnet18", "resnet18"),
        ("timm", "convnext_tiny", "convnext_tiny"),
        ("timm", "vit_tiny_patch16_224", "vit_tiny_patch16"),
        ("timm", "vit_small_patch14_dinov2", "vit_small_patch14"),
        ("timm", "vit_small_patch14_reg4_dinov2", "vit_small_patch14_reg4"),
        ("transformers", "dinov2-small", "vit_small_patch14"),
    ],
)
def test_files_of_libraries_are_recognized_and_loaded(
    monkeypatch, tmp_path, library, model, expected
):
    module = pytest.importorskip(library)
    if library == "timm":
        network = module.create_model(model, pretrained=False)
    elif library == "transformers":
        sizes = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
        network = module.Dinov2Model(module.Dinov2Config(**sizes))
    else:
        network = getattr(module, model)(weights=None)
    tensors = {key: tensor.numpy() for key, tensor in network.state_dict().items()}
    if library == "transformers":  # Names in its files are not those in memory.
        network.save_pretrained(tmp_path)
        tensors = weights.read(tmp_path / "model.safetensors")
    name, width, stem, _ = of_shapes(monkeypatch, tensors)
    assert name == expected
    made = backbone.make(name, width=width, stem=stem)
    built = made.module(Layers(files.norm, files.norm, frozen=0, dtype=None))
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    variables = jax.eval_shape(built.init, jax.random.key(0), image)
    weights.convert(tensors, name, variables["params"], variables.get("batch_stats", {}))
