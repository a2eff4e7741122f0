"""The backbones: published sizes and costs, and the forward pass in numpy, pixel by pixel."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.nets import backbone
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import vit
from cluster_jax.nets.norm import BatchNorm

norm = partial(BatchNorm, train=False, axis=None, group=None, dtype=None)

# torchvision's documentation of the ImageNet weights: parameters, and multiplications and
# additions of a 224x224 image (its column "GFLOPS"), both with the linear layer of 1000 classes.
PUBLISHED = {
    "resnet18": (11_689_512, 1.81e9),
    "resnet34": (21_797_672, 3.66e9),
    "resnet50": (25_557_032, 4.09e9),
}


def build(name, width, stem=None):
    """The Flax module and the size of its representation."""
    built = backbone.make(name, width=width, stem=stem)
    return built.module(Layers(norm, norm, frozen=0, dtype=None)), built.features


def multiplications(module, side, channels):
    """Products of all convolutions and matrices, read from the traced program."""
    image = jax.ShapeDtypeStruct((1, side, side, channels), jnp.float32)
    variables = jax.eval_shape(module.init, jax.random.key(0), image)
    count = 0
    for eqn in jax.make_jaxpr(module.apply)(variables, image).eqns:
        if eqn.primitive.name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            count += math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel[:-1])
    return count


# Of each family the smallest.
SMALLEST = ("efficientnet_lite2", "mlp", "resnet18", "small", "vit_tiny_patch16")


def test_blocks_and_submodules_of_every_family():
    """A submodule of every block, in the order in which they are applied."""
    for name in SMALLEST:
        width = vit.architecture(name)[0] if name in vit.NAMES else 2
        width = 32 if name.startswith("efficientnet") else width
        stem = "cifar" if name.startswith("resnet") else None
        built = backbone.make(name, width=width, stem=stem)
        module = built.module(Layers(norm, norm, frozen=0, dtype=None))
        side = vit.architecture(name)[3].size if name in vit.NAMES else 32
        image = jax.ShapeDtypeStruct((1, side, side, 1), jnp.float32)
        params = jax.eval_shape(module.init, jax.random.key(0), image)["params"]
        numbers = [built.block_of(submodule) for submodule in params]
        assert set(numbers) == set(range(len(built.blocks))), name


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_cost_are_the_published_ones(name):
    module, features = build(name, 64, "imagenet")
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), image)["params"]
    count = sum(math.prod(p.shape) for p in jax.tree.leaves(params))
    assert count + features * 1000 + 1000 == PUBLISHED[name][0]
    cost = multiplications(module, 224, 3) + features * 1000
    assert cost == pytest.approx(PUBLISHED[name][1], abs=0.005e9)


# --- the forward pass in numpy, in evaluation mode -----------------------------------------------


def drawn(key, module, images):
    """Variables with every entry random, so that none hides behind a zero or a one."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    variables = jax.tree.map(
        lambda s: rng.uniform(0.2, 0.6, s.shape), jax.eval_shape(module.init, key, images)
    )
    kernels = jax.tree.map(
        lambda v: v if v.ndim == 1 else (v - 0.4) * 5 / math.sqrt(math.prod(v.shape[:-1])),
        variables["params"],
    )
    return {**variables, "params": kernels}


class Numpy:
    """Applies the layers of one module: by name, or in the order in which they were made."""

    def __init__(self, variables):
        self.variables = jax.tree.map(np.asarray, variables)
        self.made = {}

    def next(self, kind, tree="params"):
        if kind in self.variables[tree]:
            return self.variables[tree][kind]
        i = self.made[kind] = self.made.get(kind, -1) + (tree == "params")
        return self.variables[tree][f"{kind}_{i}"]

    def conv(self, x, stride, name="Conv"):
        kernel = self.next(name)["kernel"]
        size, half = kernel.shape[0], kernel.shape[0] // 2
        b, h, w, _ = x.shape
        x = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
        y = np.zeros((b, (h - 1) // stride + 1, (w - 1) // stride + 1, kernel.shape[-1]))
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                patch = x[:, stride * i : stride * i + size, stride * j : stride * j + size]
                y[:, i, j] = np.tensordot(patch, kernel, 3)
        return y

    def bn(self, x, name="BatchNorm"):
        p, s = self.next(name), self.next(name, "batch_stats")
        return (x - s["mean"]) / np.sqrt(s["var"] + 1e-5) * p["scale"] + p["bias"]

    def block(self, x, name, strides, features):
        inner = Numpy({k: self.variables[k][name] for k in ("params", "batch_stats")})
        y = x
        for i, s in enumerate(strides, start=1):
            y = inner.bn(inner.conv(y, s, f"conv{i}"), f"bn{i}")
            y = np.maximum(y, 0) if i < len(strides) else y
        if max(strides) != 1 or x.shape[-1] != features:
            x = inner.bn(inner.conv(x, max(strides), "downsample_0"), "downsample_1")
        return np.maximum(x + y, 0)


@pytest.mark.parametrize(
    ("name", "stem", "side"),
    [("resnet18", "cifar", 9), ("resnet50", "cifar", 6), ("resnet18", "imagenet", 22)],
)
def test_resnet_equals_its_definition(x64, keys, name, stem, side):
    width = 2
    module, _ = build(name, width, stem)
    images = jax.random.normal(next(keys), (2, side, side + 1, 3))
    variables = drawn(next(keys), module, images)
    net = Numpy(variables)

    x = net.conv(np.asarray(images), 2 if stem == "imagenet" else 1, "conv1")
    x = np.maximum(net.bn(x, "bn1"), 0)
    if stem == "imagenet":
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        rows, columns = ((n - 1) // 2 + 1 for n in x.shape[1:3])
        x = np.stack(
            [
                [
                    padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max(axis=(1, 2))
                    for j in range(columns)
                ]
                for i in range(rows)
            ]
        ).transpose(2, 0, 1, 3)
    for stage, depth in enumerate((3, 4, 6, 3) if name == "resnet50" else (2, 2, 2, 2)):
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            strides, wider = ((1, stride, 1), 4) if name == "resnet50" else ((stride, 1), 1)
            x = net.block(x, f"layer{stage + 1}_{i}", strides, width * 2**stage * wider)

    out = jax.jit(module.apply)(variables, images)
    np.testing.assert_allclose(out, x.mean(axis=(1, 2)), rtol=1e-9)
    assert np.std(out) > 1e-3 * np.mean(np.abs(out)) > 0, "a dead network would agree with anything"


@pytest.mark.parametrize(("side", "last"), [(8, 4), (17, 5), (28, 7)])
def test_small_equals_its_definition(x64, keys, side, last):
    width = 2
    module, features = build("small", width)
    images = jax.random.normal(next(keys), (3, side, side, 2))
    variables = drawn(next(keys), module, images)
    net = Numpy(variables)
    x = np.asarray(images)
    for stride in (1, 2 if side > 16 else 1, 2, 1):
        x = np.maximum(net.bn(net.conv(x, stride)), 0)
    assert x.shape == (3, last, last, 2 * width)
    expected = np.maximum(net.bn(x.reshape(3, -1) @ net.next("Dense")["kernel"]), 0)
    out = jax.jit(module.apply)(variables, images)
    assert out.shape == (3, features)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12)
    assert np.count_nonzero(out) > out.size // 4


def test_convolutions_start_with_the_variance_of_kaiming(keys):
    module, _ = build("resnet18", 16, "cifar")
    params = jax.jit(module.init)(next(keys), jnp.zeros((1, 8, 8, 3)))["params"]
    kernel = params["layer4_1"]["conv2"]["kernel"]  # 3x3, 128 -> 128
    fan_out = 9 * 128
    assert kernel.shape == (3, 3, 128, 128)
    assert float(jnp.var(kernel)) == pytest.approx(2 / fan_out, rel=0.02)
    strided = params["layer4_0"]["conv1"]["kernel"]  # 64 -> 128: fan_in is half of it
    assert float(jnp.var(strided)) == pytest.approx(2 / fan_out, rel=0.02)
