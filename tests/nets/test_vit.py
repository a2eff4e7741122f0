"""Vision Transformers: published sizes, the forward pass in NumPy, interpolation, precision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from cluster_jax.core.checks import InputError
from cluster_jax.nets import backbone
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import vit

# timm's number of parameters without a classifier, at 224 pixels; those of DINOv2 at 518 pixels
# in Hugging Face's transformers, which include one more token, `mask_token`.
PUBLISHED = {
    "vit_tiny_patch16": 5_524_416,
    "vit_small_patch16": 21_665_664,
    "vit_base_patch16": 85_798_656,
    "vit_large_patch16": 303_301_632,
    "vit_small_patch14": 22_056_576 - 384,
    "vit_small_patch14_reg4": 22_058_112 - 384,
    "vit_base_patch14": 86_580_480 - 768,
    "vit_large_patch14": 304_368_640 - 1024,
}


def build(name, frozen=0, dtype=None):
    """The Flax module."""
    made = backbone.make(name, width=vit.architecture(name)[0], stem=None)
    return made.module(Layers(None, None, frozen, dtype))


def drawn(module, images, dtype=np.float64, seed=0):
    """Parameters with every entry random, so that none hides behind a zero or a one."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(module.init, jax.random.key(0), images)["params"]

    def draw(path, leaf):
        scale = {"kernel": math.prod(leaf.shape[:-1]) ** -0.5}.get(path[-1].key, 0.4)
        mean = 1.0 if "scale" in path[-1].key else 0.0
        return (mean + scale * rng.standard_normal(leaf.shape)).astype(dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def images_of(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    side = 224 if name.endswith("patch16") else 518
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    params = jax.eval_shape(build(name).init, jax.random.key(0), image)["params"]
    assert sum(math.prod(p.shape) for p in jax.tree.leaves(params)) == PUBLISHED[name]


def test_initial_values(keys):
    """Weights and tokens are normal; biases are zero."""
    embedding, block = vit.Embedding("vit_tiny_patch14_reg4", None), vit.Block(3, True, None)
    tokens = jax.jit(embedding.init)(next(keys), jnp.zeros((1, 14, 14, 3)))["params"]
    for token in ("class_token", "positions", "registers"):
        assert np.std(tokens[token]) == pytest.approx(0.02, rel=0.15)
    params = jax.jit(block.init)(next(keys), jnp.zeros((1, 2, 192)))["params"]
    for layer in ("qkv", "projection", "hidden", "out"):
        assert np.std(params[layer]["kernel"]) == pytest.approx(0.02, rel=0.02)
        assert not np.any(params[layer]["bias"])
    np.testing.assert_array_equal(params["scale1"], np.full(192, np.float32(1e-5)))


# --- the forward pass in NumPy -------------------------------------------------------------------


def normalized(p, x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def block_by_hand(p, x, heads):
    """One image: `[n, width] -> [n, width]`, head by head and query by query."""
    width = x.shape[-1]
    d = width // heads
    qkv = dense(p["qkv"], normalized(p["norm1"], x))
    q, k, v = qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]
    attended = np.zeros_like(x)
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        for i in range(len(x)):
            weights = np.exp(k[:, part] @ q[i, part] / math.sqrt(d))
            attended[i, part] = weights @ v[:, part] / weights.sum()
    x = x + p.get("scale1", 1.0) * dense(p["projection"], attended)
    hidden = dense(p["hidden"], normalized(p["norm2"], x))
    hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
    return x + p.get("scale2", 1.0) * dense(p["out"], hidden)


@pytest.mark.parametrize("layer_scale", [False, True])
def test_a_block_equals_its_definition(x64, layer_scale):
    block = vit.Block(heads=3, layer_scale=layer_scale, dtype=None)
    x = images_of(2, 5, 12)
    params = drawn(block, x)
    assert ("scale1" in params) == ("scale2" in params) == layer_scale
    out = jax.jit(block.apply)({"params": params}, x)
    assert out.dtype == np.float64
    expected = np.stack([block_by_hand(params, image, 3) for image in x])
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "vit_tiny_patch14_reg4"])
def test_network_equals_its_definition(x64, name):
    """On images of 2 x 3 patches, whose positions a test below checks."""
    width, depth, heads, patches = vit.architecture(name)
    images = images_of(2, 2 * patches.size, 3 * patches.size, 2)
    module = build(name)
    params = drawn(module, images)
    p = params["embedding"]
    grid = p["positions"][1:].reshape(patches.grid, patches.grid, width)
    positions = np.asarray(vit.resize(grid, (2, 3), patches.antialias))
    expected = []
    for image in images:
        tokens = [p["class_token"][0] + p["positions"][0], *p.get("registers", ())]
        for i in range(2):
            for j in range(3):
                rows, columns = (slice(n * patches.size, (n + 1) * patches.size) for n in (i, j))
                patch = np.tensordot(image[rows, columns], p["patches"]["kernel"], 3)
                tokens.append(patch + p["patches"]["bias"] + positions[i, j])
        x = np.stack(tokens)
        for number in range(1, depth + 1):
            x = block_by_hand(params[f"block{number}"], x, heads)
        expected.append(normalized(params["norm"], x[0]))
    out = jax.jit(module.apply)({"params": params}, images)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)
    assert np.abs(out[0] - out[1]).max() > 0.01, "a dead network would agree with anything"


# --- positions -----------------------------------------------------------------------------------


def cubic_by_hand(line, new):
    """Keys' interpolation of a line with parameter -0.75; the border goes on outside."""
    old, out = len(line), []
    for i in range(new):
        center = (i + 0.5) * old / new - 0.5
        first, value = math.floor(center) - 1, 0.0
        for tap in range(first, first + 4):
            x, a = abs(tap - center), -0.75
            if x <= 1:
                weight = (a + 2) * x**3 - (a + 3) * x**2 + 1
            else:
                weight = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
            value = value + weight * line[min(max(tap, 0), old - 1)]
        out.append(value)
    return np.stack(out)


@pytest.mark.parametrize("size", [(2, 3), (5, 7), (9, 4), (11, 16)])
def test_interpolation_without_antialiasing_equals_its_definition(x64, size):
    grid = images_of(5, 7, 3)
    rows = cubic_by_hand(grid, size[0])
    expected = cubic_by_hand(rows.transpose(1, 0, 2), size[1]).transpose(1, 0, 2)
    out = vit.resize(jnp.asarray(grid), size, antialias=False)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12)


# --- precision and errors ------------------------------------------------------------------------


def test_bfloat16_is_close_to_float32():
    name = "vit_tiny_patch14_reg4"
    images = images_of(2, 28, 42, 3).astype(np.float32)
    module, coarse = build(name), build(name, dtype=jnp.dtype(jnp.bfloat16))
    params = drawn(module, images, np.float32)
    start = jax.eval_shape(coarse.init, jax.random.key(0), images)
    assert {leaf.dtype for leaf in jax.tree.leaves(start)} == {jnp.dtype("f4")}
    exact = jax.jit(module.apply)({"params": params}, images)
    as_asked = jax.jit(coarse.apply, compiler_options={"xla_allow_excess_precision": False})
    rough = as_asked({"params": params}, images)
    assert (exact.dtype, rough.dtype) == (jnp.float32, jnp.bfloat16)
    error = np.sqrt(np.mean((rough.astype("f4") - exact) ** 2) / np.mean(exact**2))
    assert 1e-4 < error < 0.03


def test_logits_of_bfloat16_are_in_float32():
    """256.5 and 256 are the same in bfloat16; halved, they are 0.25 apart."""
    q = jnp.asarray([16, 1, 0, 0], jnp.bfloat16).reshape(1, 1, 1, 4)
    k = jnp.asarray([[16, 0.5, 0, 0], [16, 0, 0, 0]], jnp.bfloat16).reshape(1, 2, 1, 4)
    v = jnp.asarray([1, 0], jnp.bfloat16).reshape(1, 2, 1, 1)
    out = vit.attention(q, k, v)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype("f4").item(), 1 / (1 + math.exp(-0.25)), rtol=2**-7)


def test_layer_norm_keeps_its_digits_where_the_mean_is_large():
    x = np.float32(4096) + images_of(3, 64).astype(np.float32)
    norm = vit.layer_norm(None, None)
    out = norm.apply(norm.init(jax.random.key(0), x), x)
    exact = x.astype(np.float64)
    exact = exact - exact.mean(axis=1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(out, exact, atol=2e-3)


@pytest.mark.parametrize("shape", [(8, 8), (16, 24), (40, 16)])
def test_image_that_is_no_multiple_of_the_patch(shape):
    side = next(side for side in shape if side % 16)
    message = (
        f"each side of an image must be a multiple of vit_tiny_patch16's patch, 16; got {side}"
    )
    with pytest.raises(InputError) as error:
        build("vit_tiny_patch16").init(jax.random.key(0), jnp.zeros((1, *shape, 3)))
    assert str(error.value) == message


def test_wrong_width_and_stem():
    name = "vit_base_patch14"
    with pytest.raises(InputError, match=f"^network.width of {name} must be 768; got 64$"):
        backbone.make(name, width=64, stem=None)
    with pytest.raises(InputError, match=f"^network.stem of {name} must be None; got 'cifar'$"):
        backbone.make(name, width=768, stem="cifar")
