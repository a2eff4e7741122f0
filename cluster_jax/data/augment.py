"""Augmentations on the device: functions of one image and one key, to be vmapped by the caller.

An image is `[H, W, C]`, C = 1 or 3, floats in [0, 1] of the canonical dtype (float64 when x64 is
on). The color functions follow torchvision's definitions. Of a gray image (C = 1), saturation,
hue and greyness cannot change: those functions return it as it is.

The random functions make a single draw of all the numbers they need: each further draw would
cost a third of a second of compilation on a CPU.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.ndimage import map_coordinates

LUMA = (0.299, 0.587, 0.114)  # gray of red, green and blue, ITU-R BT.601
TRIES = 10  # boxes that RandomResizedCrop draws before it falls back


def crop_resize(image: Array, box: tuple[Array, Array, Array, Array], size: int) -> Array:
    """The box (y, x, height, width) of `image`, resized to `[size, size, C]`.

    Bilinear over a support that grows with the reduction (antialiased). Pixels outside the box
    do not count, as if the box had been cut out first.

    Args:
        image: `[H, W, C]`.
        box: whole numbers of pixels inside the image, possibly traced.
        size: side of the result in pixels.
    """
    y, x, height, width = box
    rows = _triangle(image.shape[0], y, height, size, image.dtype)
    columns = _triangle(image.shape[1], x, width, size, image.dtype)
    # Full precision: rounded to bfloat16 (TPU) a weight would be off by a gray level.
    return jnp.einsum("yh,xw,hwc->yxc", rows, columns, image, precision=lax.Precision.HIGHEST)


def random_box(
    key: Array, shape: tuple[int, ...], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Array, Array, Array, Array]:
    """The box of torchvision's RandomResizedCrop: (y, x, height, width), int32.

    The area is uniform in `scale` times the image's, width / height log-uniform in `ratio`. The
    first of ten tries that lies within the image counts; if none does, the largest central box
    of an allowed ratio. All tries are drawn at once instead of in a loop.
    """
    tall, wide = shape[:2]
    draws = jax.random.uniform(key, (2 * TRIES + 2,))
    area = tall * wide * _between(draws[:TRIES], *scale)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = jnp.exp(_between(draws[TRIES : 2 * TRIES], low, high))
    heights = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
    valid = (heights > 0) & (heights <= tall) & (widths > 0) & (widths <= wide)

    fallback_height, fallback_width = tall, wide
    if wide / tall < ratio[0]:
        fallback_height = round(wide / ratio[0])
    elif wide / tall > ratio[1]:
        fallback_width = round(tall * ratio[1])

    first, some = jnp.argmax(valid), jnp.any(valid)
    height = jnp.where(some, heights[first], fallback_height)
    width = jnp.where(some, widths[first], fallback_width)
    y = jnp.floor(draws[-2] * (tall - height + 1)).astype(jnp.int32)
    x = jnp.floor(draws[-1] * (wide - width + 1)).astype(jnp.int32)
    y = jnp.where(some, y, (tall - fallback_height) // 2)
    x = jnp.where(some, x, (wide - fallback_width) // 2)
    return y, x, height, width


def flip(image: Array) -> Array:
    """Left and right exchanged."""
    return image[:, ::-1]


def grayscale(image: Array) -> Array:
    """Every channel replaced by the luma `[H, W, C]`."""
    return jnp.broadcast_to(_luma(image), image.shape)


def adjust_brightness(image: Array, factor: Array | float) -> Array:
    """`factor * image`, clipped to [0, 1]."""
    return _blend(image, jnp.zeros_like(image), factor)


def adjust_contrast(image: Array, factor: Array | float) -> Array:
    """Distance from the image's mean luma times `factor`, clipped to [0, 1]."""
    mean = jnp.mean(_luma(image))
    return _blend(image, jnp.broadcast_to(mean, image.shape), factor)


def adjust_saturation(image: Array, factor: Array | float) -> Array:
    """Distance from each pixel's luma times `factor`, clipped to [0, 1]."""
    return image if image.shape[-1] == 1 else _blend(image, grayscale(image), factor)


def adjust_hue(image: Array, turns: Array | float) -> Array:
    """Hue of HSV turned by `turns` of the color circle, saturation and value kept."""
    if image.shape[-1] == 1:
        return image
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    value = jnp.max(image, axis=-1)
    chroma = value - jnp.min(image, axis=-1)
    safe = jnp.where(chroma > 0, chroma, 1)
    sixths = jnp.where(
        value == red,
        (green - blue) / safe,
        jnp.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    # A channel falls from `value` by `chroma` times a trapezium of the distance in hue.
    distance = sixths[..., None] + 6 * turns + jnp.array([5, 3, 1], image.dtype)[None, None]
    distance = jnp.mod(distance, 6)
    drop = jnp.clip(jnp.minimum(distance, 4 - distance), 0, 1)
    return value[..., None] - chroma[..., None] * drop


def random_jitter(
    key: Array,
    image: Array,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Array:
    """The four adjustments by random amounts in random order, as torchvision's ColorJitter.

    Factors are uniform in [max(0, 1 - a), 1 + a], the hue in [-a, a] turns. An order of four is
    an order of the three blends and a place for the hue among them: the costly hue is computed
    once, though every order must be there to choose from.
    """
    draws = jax.random.uniform(key, (8,), image.dtype)
    strengths = jnp.array([brightness, contrast, saturation], image.dtype)
    factors = _between(draws[:3], jnp.maximum(0, 1 - strengths), 1 + strengths)
    turns = _between(draws[3], -hue, hue)
    order = jnp.argsort(draws[4:7])
    place = jnp.floor(4 * draws[7]).astype(jnp.int32)
    return jitter(image, factors, turns, order, place)


def jitter(image: Array, factors: Array, turns: Array, order: Array, place: Array) -> Array:
    """Brightness (0), contrast (1), saturation (2) in `order`, hue before the one at `place`.

    Args:
        image: `[H, W, C]`.
        factors: of the three blends `[3]`.
        turns: of the hue.
        order: permutation of 0, 1, 2, int32 `[3]`.
        place: 0 to 3; 3 is hue last.
    """
    adjustments = (adjust_brightness, adjust_contrast, adjust_saturation)

    def blends(image: Array, wanted: Array) -> Array:
        for slot in range(3):
            changed = lax.switch(order[slot], adjustments, image, factors[order[slot]])
            image = jnp.where(wanted[slot], changed, image)
        return image

    before = jnp.arange(3) < place
    return blends(adjust_hue(blends(image, before), turns), ~before)


def gaussian_blur(image: Array, sigma: Array | float, radius: int) -> Array:
    """Gaussian of standard deviation `sigma` pixels, cut at `radius`; mirrored at the edges.

    The edge pixel itself is not repeated, as in torchvision. `radius` must be below both sides.
    """
    offsets = jnp.arange(-radius, radius + 1, dtype=image.dtype)
    weights = jnp.exp(-0.5 * (offsets / sigma) ** 2)
    weights = weights / jnp.sum(weights)
    # A sum of shifted images: a convolution with a kernel per image is slow under vmap.
    for axis in (0, 1):
        length = image.shape[axis]
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(3)]
        padded = jnp.pad(image, pad, mode="reflect")
        image = sum(
            weights[k] * lax.slice_in_dim(padded, k, k + length, axis=axis)
            for k in range(2 * radius + 1)
        )
    return image


def solarize(image: Array, threshold: float) -> Array:
    """Pixels of at least `threshold` inverted, `1 - x`, each channel by itself."""
    return jnp.where(image >= threshold, 1 - image, image)


def affine(
    image: Array,
    *,
    rotation: Array | float,
    scale: Array | float,
    shear: Array | float,
    shift: Array,
) -> Array:
    """Shear, scale and rotate about the center, then shift; bilinear, zero outside.

    A point p (y, x from the center) moves to `scale * R(rotation) @ [[1, shear], [0, 1]] @ p +
    shift`.

    Args:
        image: `[H, W, C]`.
        rotation: angle in radians, from y toward x.
        scale: magnification, positive.
        shear: y per x.
        shift: `[2]`, y and x in pixels.
    """
    height, width, channels = image.shape
    center = jnp.array([(height - 1) / 2, (width - 1) / 2], image.dtype)
    cos, sin = jnp.cos(rotation) / scale, jnp.sin(rotation) / scale
    # The inverse map, from the pixels of the result to places in `image`.
    y, x = jnp.meshgrid(
        jnp.arange(height, dtype=image.dtype) - center[0] - shift[0],
        jnp.arange(width, dtype=image.dtype) - center[1] - shift[1],
        indexing="ij",
    )
    turned_y, turned_x = cos * y + sin * x, -sin * y + cos * x
    places = [turned_y - shear * turned_x + center[0], turned_x + center[1]]
    planes = [map_coordinates(image[..., c], places, order=1, cval=0.0) for c in range(channels)]
    return jnp.stack(planes, axis=-1)


def random_affine(
    key: Array, image: Array, *, rotation: float, scale: float, shear: float, shift: float
) -> Array:
    """`affine` with angle, scale - 1, shear and both shifts uniform within plus or minus these."""
    angle, magnification, lean, y, x = jax.random.uniform(key, (5,), image.dtype, -1.0, 1.0)
    return affine(
        image,
        rotation=rotation * angle,
        scale=1 + scale * magnification,
        shear=shear * lean,
        shift=shift * jnp.stack([y, x]),
    )


def noise(key: Array, image: Array, std: float) -> Array:
    """Normal noise added, standard deviation `std`; values may leave [0, 1]."""
    return image + std * jax.random.normal(key, image.shape, image.dtype)


def fit(image: Array, size: int) -> Array:
    """The central `[size, size, C]`; an image that is too small is scaled up to it first."""
    height, width, _ = image.shape
    side = min(height, width, size)
    y, x = (height - side) // 2, (width - side) // 2
    image = image[y : y + side, x : x + side]
    return image if side == size else crop_resize(image, (0, 0, side, side), size)


def _between(draws: Array, low: Array | float, high: Array | float) -> Array:
    """Uniform draws of [0, 1) moved to [low, high)."""
    return low + (high - low) * draws


def _luma(image: Array) -> Array:
    """`[H, W, C]` -> `[H, W, 1]`."""
    if image.shape[-1] == 1:
        return image
    weights = jnp.array(LUMA, image.dtype)
    return jnp.sum(image * weights[None, None], axis=-1, keepdims=True)


def _blend(image: Array, other: Array, factor: Array | float) -> Array:
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def _triangle(length: int, start: Array, extent: Array, size: int, dtype) -> Array:
    """Weights `[size, length]` of the pixels of a line for resizing a stretch of it."""
    pixels = jnp.arange(length, dtype=dtype)[None]
    step = jnp.asarray(extent, dtype) / size
    centers = start + (jnp.arange(size, dtype=dtype)[:, None] + 0.5) * step - 0.5
    weights = jnp.maximum(0, 1 - jnp.abs(pixels - centers) / jnp.maximum(step, 1))
    weights = jnp.where((pixels >= start) & (pixels < start + extent), weights, 0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
