"""Each operation on fixed parameters against Pillow, scipy or colorsys, in float64."""

import colorsys
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from PIL import Image, ImageEnhance, ImageOps

from cluster_jax.data import augment
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

PILLOW = 1e-5  # its float images are float32
LEVELS = 1.5 / 255  # its uint8 arithmetic rounds the reference color, then the result

# Compiled once for several tests.
crop_resize = jax.jit(augment.crop_resize, static_argnums=2)
adjust_hue = jax.jit(augment.adjust_hue)
affine = jax.jit(augment.affine)


@pytest.fixture
def image(rng):
    return jnp.asarray(rng.random((11, 14, 3)))


@pytest.fixture
def bytes_image(rng):
    """A uint8 image and the same as floats."""
    # A color cast, so that luma and plain mean differ.
    pixels = rng.integers(0, np.array([256, 160, 60]), (11, 14, 3), dtype=np.uint8)
    return Image.fromarray(pixels), jnp.asarray(pixels / 255)


def resized(plane: np.ndarray, box, size: int) -> np.ndarray:
    y, x, height, width = box
    cut = Image.fromarray(np.asarray(plane, np.float32)[y : y + height, x : x + width])
    return np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR))


@every_row(
    "box",
    [
        (0, 0, 11, 14),  # smaller
        (2, 3, 8, 9),
        (2, 3, 3, 2),  # larger
        (4, 1, 3, 12),  # one way each
        (10, 13, 1, 1),
    ],
)
def test_crop_resize_is_pillows(image, box):
    out = crop_resize(image, box, 5)
    assert out.dtype == jnp.float64
    assert out.shape == (5, 5, 3)
    for c in range(3):
        np.testing.assert_allclose(out[..., c], resized(image[..., c], box, 5), atol=PILLOW)


def test_crop_without_resizing_is_exact(image):
    out = crop_resize(image, (3, 6, 5, 5), 5)
    np.testing.assert_allclose(out, image[3:8, 6:11], atol=1e-15)


def torchvision_box(rng, shape, scale, ratio):
    """RandomResizedCrop.get_params, as its documentation tells it, one try after another."""
    tall, wide = shape
    for _ in range(10):
        area = tall * wide * rng.uniform(*scale)
        aspect = np.exp(rng.uniform(*np.log(ratio)))
        height, width = round(np.sqrt(area / aspect)), round(np.sqrt(area * aspect))
        if 0 < height <= tall and 0 < width <= wide:
            y = rng.integers(0, tall - height + 1)
            return y, rng.integers(0, wide - width + 1), height, width
    return None


def boxes(keys, count, shape, scale, ratio):
    draw = jax.jit(jax.vmap(lambda k: jnp.stack(augment.random_box(k, shape, scale, ratio))))
    return np.asarray(draw(jax.random.split(next(keys), count)))


@pytest.mark.parametrize("shape", [(60, 60), (40, 70)])
def test_random_box_has_torchvisions_distribution(keys, rng, shape):
    scale, ratio = (0.2, 1.0), (3 / 4, 2.0)
    ours = boxes(keys, 4000, (*shape, 3), scale, ratio)
    drawn = (torchvision_box(rng, shape, scale, ratio) for _ in range(4000))
    theirs = np.array([box for box in drawn if box is not None])
    y, x, height, width = ours.T
    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (height >= 1).all()
    assert (width >= 1).all()
    assert (y + height <= shape[0]).all()
    assert (x + width <= shape[1]).all()
    figures = [lambda b: b, lambda b: b[:, 2:3] * b[:, 3:], lambda b: b[:, 3:] / b[:, 2:3]]
    for figure in figures:
        for a, b in zip(figure(ours).T, figure(theirs).T, strict=True):
            # Two samples of 4000 of one law differ by more than 0.044 once in a thousand times.
            assert scipy.stats.ks_2samp(a, b).statistic < 0.044
    inner = (height < shape[0]) & (width < shape[1])
    places = (y / (shape[0] - height + 1))[inner], (x / (shape[1] - width + 1))[inner]
    assert abs(scipy.stats.pearsonr(*places).statistic) < 4 / np.sqrt(inner.sum())


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((9, 60), (0, 24, 9, 12)),  # too wide: the widest ratio, 4 / 3, in the middle
        ((60, 9), (24, 0, 12, 9)),
    ],
)
def test_random_box_falls_back_to_the_center(keys, shape, expected):
    fallbacks = boxes(keys, 20, (*shape, 3), (0.9, 1.0), (3 / 4, 4 / 3))
    np.testing.assert_array_equal(fallbacks, np.tile(expected, (20, 1)))


def test_flip(image):
    np.testing.assert_array_equal(augment.flip(image), np.fliplr(image))


@every_row("factor", [0.0, 0.4, 1.0, 1.7])
@every_row(
    ("ours", "theirs"),
    [
        (augment.adjust_brightness, ImageEnhance.Brightness),
        (augment.adjust_contrast, ImageEnhance.Contrast),
        (augment.adjust_saturation, ImageEnhance.Color),
    ],
)
def test_adjustments_are_pillows(bytes_image, ours, theirs, factor):
    picture, pixels = bytes_image
    out = ours(pixels, factor)
    expected = np.asarray(theirs(picture).enhance(factor)) / 255
    assert out.dtype == jnp.float64
    np.testing.assert_allclose(out, expected, atol=LEVELS)


def test_gray_is_pillows(bytes_image):
    picture, pixels = bytes_image
    out = augment.grayscale(pixels)
    assert out.shape == pixels.shape
    for c in range(3):
        np.testing.assert_allclose(out[..., c], np.asarray(picture.convert("L")) / 255, atol=LEVELS)


@every_row("turns", [-0.5, -0.13, 0.0, 0.08, 0.41])
def test_hue_is_that_of_colorsys(image, turns):
    # Grays, black and white have no hue; ties between channels choose their sector.
    special = [[0.3, 0.3, 0.3], [0, 0, 0], [1, 1, 1], [0.7, 0.7, 0.1], [0.1, 0.7, 0.7], [1, 0, 1]]
    image = image.at[0, :6].set(jnp.array(special))
    expected = np.empty(image.shape)
    for place in itertools.product(range(11), range(14)):
        h, s, v = colorsys.rgb_to_hsv(*np.asarray(image)[place].tolist())
        expected[place] = colorsys.hsv_to_rgb((h + turns) % 1.0, s, v)
    out = adjust_hue(image, turns)
    assert out.dtype == jnp.float64
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_gray_images_have_no_color(image):
    single = image[..., :1]
    assert augment.adjust_saturation(single, 1.7) is single
    assert augment.adjust_hue(single, 0.3) is single
    np.testing.assert_array_equal(augment.grayscale(single), single)
    repeated = augment.adjust_contrast(jnp.repeat(single, 3, -1), 1.6)
    np.testing.assert_allclose(augment.adjust_contrast(single, 1.6), repeated[..., :1], atol=1e-12)


def test_jitter_applies_every_order(image):
    factors, turns = jnp.array([1.4, 0.6, 1.8]), 0.09
    steps = [
        lambda x: augment.adjust_brightness(x, 1.4),
        lambda x: augment.adjust_contrast(x, 0.6),
        lambda x: augment.adjust_saturation(x, 1.8),
        lambda x: augment.adjust_hue(x, turns),
    ]
    run = jax.jit(augment.jitter)
    results = []
    for order in itertools.permutations(range(4)):
        place = order.index(3)
        blends = jnp.array([step for step in order if step != 3])
        expected = image
        for step in order:
            expected = steps[step](expected)
        out = run(image, factors, turns, blends, place)
        np.testing.assert_allclose(out, expected, atol=1e-12)
        results.append(out)
    distinct = {np.asarray(out).round(9).tobytes() for out in results}
    assert len(distinct) > 12  # most orders matter, so a wrong one would show


def test_random_jitter_uses_all_orders(keys, image):
    def spy(image, factors, turns, order, place):
        return jnp.concatenate([order, place[None]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "jitter", spy)
        draw = jax.jit(
            jax.vmap(lambda key: augment.random_jitter(key, image, (0.4, 0.4, 0.2), 0.1))
        )
        orders = np.asarray(draw(jax.random.split(next(keys), 2400)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@every_row(("sigma", "radius"), [(0.1, 4), (0.8, 1), (2.0, 4), (3.0, 10)])
def test_gaussian_blur_is_scipys(image, sigma, radius):
    out = jax.jit(augment.gaussian_blur, static_argnums=2)(image, sigma, radius)
    assert out.dtype == jnp.float64
    expected = scipy.ndimage.gaussian_filter(
        np.asarray(image), sigma, mode="mirror", radius=radius, axes=(0, 1)
    )
    np.testing.assert_allclose(out, expected, atol=1e-12)


@every_row("level", [0, 90, 128, 255])
def test_solarize_is_pillows(bytes_image, level):
    picture, pixels = bytes_image
    out = augment.solarize(pixels, level / 255)
    assert out.dtype == jnp.float64
    expected = np.asarray(ImageOps.solarize(picture, threshold=level)) / 255
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_affine_is_scipys(image):
    angle, scale, shear, shift = 0.3, 1.15, -0.25, np.array([0.7, -1.6])
    out = affine(image, rotation=angle, scale=scale, shear=shear, shift=jnp.array(shift))
    assert out.dtype == jnp.float64
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = np.linalg.inv(scale * turn @ np.array([[1, shear], [0, 1]]))
    center = (np.array(image.shape[:2]) - 1) / 2
    for c in range(3):
        expected = scipy.ndimage.affine_transform(
            np.asarray(image[..., c]),
            inverse,
            center - inverse @ (center + shift),
            order=1,
            mode="grid-constant",
        )
        np.testing.assert_allclose(out[..., c], expected, atol=1e-12)


def test_noise(keys, image):
    out = augment.noise(next(keys), jnp.zeros((100, 100, 1)), 0.08)
    assert out.dtype == jnp.float64
    assert scipy.stats.kstest(np.asarray(out).ravel(), scipy.stats.norm(0, 0.08).cdf).pvalue > 1e-3


def test_fit_cuts_the_center(image):
    np.testing.assert_array_equal(augment.fit(image, 6), image[2:8, 4:10])
    np.testing.assert_array_equal(augment.fit(image, 11), image[:, 1:12])
    square = image[:, :11]
    assert augment.fit(square, 11).shape == square.shape
    np.testing.assert_array_equal(augment.fit(square, 11), square)


def test_fit_scales_small_images_up(image):
    out = augment.fit(image, 20)
    for c in range(3):
        expected = resized(image[..., c], (0, 1, 11, 11), 20)
        np.testing.assert_allclose(out[..., c], expected, atol=PILLOW)
