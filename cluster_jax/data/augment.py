"""Augmentations on the device: functions of one image and one key, which the caller vmaps.

An image is `[H, W, C]`, C = 1 or 3, floats in [0, 1] of the canonical dtype (float64 when x64 is
on). The color functions follow torchvision's definitions. Saturation, hue and grayscale return a
gray image (C = 1) unchanged.

The random functions draw all their numbers at once, because each additional draw takes a third of
a second to compile on a CPU.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.ndimage import map_coordinates

Pixel = Array | int
Draw = Array | float  # a parameter of an augmentation, which is drawn at random

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in the luma, ITU-R BT.601
TRIES = 10  # boxes that RandomResizedCrop draws before it falls back to a central crop


def crop_resize(image: Array, box: tuple[Pixel, Pixel, Pixel, Pixel], size: int) -> Array:
    """Resizes the box (y, x, height, width) of `image` to `[size, size, C]`.

    Bilinear and antialiased. Pixels outside the box have no influence, as if the box had been
    cropped first.

    Args:
        image: `[H, W, C]`.
        box: integer pixels inside the image, possibly traced.
        size: side of the result in pixels.
    """
    y, x, height, width = box
    rows = _resize_weights(image.shape[0], y, height, size, image.dtype)
    columns = _resize_weights(image.shape[1], x, width, size, image.dtype)
    # Full precision, because weights rounded to bfloat16 (TPU) err by a gray level.
    return jnp.einsum("yh,xw,hwc->yxc", rows, columns, image, precision=lax.Precision.HIGHEST)


def random_box(
    key: Array, shape: tuple[int, ...], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Array, Array, Array, Array]:
    """Draws the box of torchvision's RandomResizedCrop: (y, x, height, width), int32.

    The area is uniform in `scale` times the area of the image, width / height log-uniform in
    `ratio`. The first of ten candidates that lies within the image is taken, else the largest
    central box of an allowed ratio. All candidates are drawn at once instead of in a loop.

    Args:
        key: random key.
        shape: shape of the image, which begins with its height and width.
        scale: lowest and highest fraction of the area.
        ratio: lowest and highest width / height, above 0; numbers of Python, not traced.
    """
    image_height, image_width = shape[:2]
    draws = jax.random.uniform(key, (2 * TRIES + 2,))
    area = image_height * image_width * _rescale(draws[:TRIES], *scale)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = jnp.exp(_rescale(draws[TRIES : 2 * TRIES], low, high))
    heights = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
    valid = (heights > 0) & (heights <= image_height) & (widths > 0) & (widths <= image_width)

    fallback_height, fallback_width = image_height, image_width
    if image_width / image_height < ratio[0]:
        fallback_height = round(image_width / ratio[0])
    elif image_width / image_height > ratio[1]:
        fallback_width = round(image_height * ratio[1])

    first, any_valid = jnp.argmax(valid), jnp.any(valid)
    height = jnp.where(any_valid, heights[first], fallback_height)
    width = jnp.where(any_valid, widths[first], fallback_width)
    y = jnp.floor(draws[-2] * (image_height - height + 1)).astype(jnp.int32)
    x = jnp.floor(draws[-1] * (image_width - width + 1)).astype(jnp.int32)
    y = jnp.where(any_valid, y, (image_height - fallback_height) // 2)
    x = jnp.where(any_valid, x, (image_width - fallback_width) // 2)
    return y, x, height, width


def flip(image: Array) -> Array:
    """Flips an image horizontally."""
    return image[:, ::-1]


def grayscale(image: Array) -> Array:
    """Replaces every channel by the luma, `[H, W, C]`."""
    return jnp.broadcast_to(_luma(image), image.shape)


def adjust_brightness(image: Array, factor: Draw) -> Array:
    """Computes `factor * image`, clipped to [0, 1]."""
    return _blend(image, jnp.zeros_like(image), factor)


def adjust_contrast(image: Array, factor: Draw) -> Array:
    """Scales the difference from the image's mean luma by `factor`, clipped to [0, 1]."""
    mean = jnp.mean(_luma(image))
    return _blend(image, jnp.broadcast_to(mean, image.shape), factor)


def adjust_saturation(image: Array, factor: Draw) -> Array:
    """Scales the difference from each pixel's luma by `factor`, clipped to [0, 1]."""
    if image.shape[-1] == 1:
        return image
    return _blend(image, grayscale(image), factor)


def adjust_hue(image: Array, turns: Draw) -> Array:
    """Rotates the hue of HSV by `turns` of the color circle; keeps saturation and value."""
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
    # A channel is below `value` by `chroma` times a trapezoid of the distance in hue.
    distance = sixths[..., None] + 6 * turns + jnp.array([5, 3, 1], image.dtype)[None, None]
    distance = jnp.mod(distance, 6)
    drop = jnp.clip(jnp.minimum(distance, 4 - distance), 0, 1)
    return value[..., None] - chroma[..., None] * drop


def random_jitter(
    key: Array, image: Array, strengths: tuple[float, float, float], hue: float
) -> Array:
    """Jitters colors: the four adjustments by random amounts in random order, as in torchvision.

    Factors of brightness, contrast and saturation are uniform in [max(0, 1 - a), 1 + a] for the
    strength a of each, the rotation of the hue in [-hue, hue] turns. The order is drawn as a
    permutation of the three blends and a position of the hue among them, so that the costly hue is
    computed only once for any order.
    """
    draws = jax.random.uniform(key, (8,), image.dtype)
    a = jnp.array(strengths, image.dtype)
    factors = _rescale(draws[:3], jnp.maximum(0, 1 - a), 1 + a)
    turns = _rescale(draws[3], -hue, hue)
    order = jnp.argsort(draws[4:7])
    place = jnp.floor(4 * draws[7]).astype(jnp.int32)
    return jitter(image, factors, turns, order, place)


def jitter(image: Array, factors: Array, turns: Array, order: Array, place: Array) -> Array:
    """Adjusts brightness, contrast and saturation in a given order, and the hue between them.

    Args:
        image: `[H, W, C]`.
        factors: `[3]`, of brightness, contrast and saturation, whatever the order is. A factor of 1
            changes nothing.
        turns: rotation of the hue in turns; 0 changes nothing.
        order: permutation of 0 (brightness), 1 (contrast) and 2 (saturation), int32 `[3]`; the
            first entry is applied first.
        place: how many of these three adjustments come before that of the hue, 0 to 3.
    """
    adjustments = (adjust_brightness, adjust_contrast, adjust_saturation)

    def blends(image: Array, is_applied: Array) -> Array:
        for slot in range(3):
            changed = lax.switch(order[slot], adjustments, image, factors[order[slot]])
            image = jnp.where(is_applied[slot], changed, image)
        return image

    before = jnp.arange(3) < place
    return blends(adjust_hue(blends(image, before), turns), ~before)


def gaussian_blur(image: Array, sigma: Draw, radius: int) -> Array:
    """Blurs with a Gaussian of `sigma` pixels, truncated at `radius`; the border is reflected.

    The reflection does not repeat the edge pixel, as in torchvision. `sigma` must be above 0, and
    `radius` below both sides, which is not checked.
    """
    offsets = jnp.arange(-radius, radius + 1, dtype=image.dtype)
    weights = jnp.exp(-0.5 * (offsets / sigma) ** 2)
    weights = weights / jnp.sum(weights)
    # A sum of shifted images, because a convolution with one kernel per image is slow under vmap.
    for axis in (0, 1):
        length = image.shape[axis]
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(3)]
        padded = jnp.pad(image, pad, mode="reflect")
        image = weights[0] * lax.slice_in_dim(padded, 0, length, axis=axis)
        for k in range(1, 2 * radius + 1):
            image += weights[k] * lax.slice_in_dim(padded, k, k + length, axis=axis)
    return image


def solarize(image: Array, threshold: float) -> Array:
    """Solarizes an image: replaces values x of at least `threshold` by 1 - x, per channel."""
    return jnp.where(image >= threshold, 1 - image, image)


def affine(image: Array, *, rotation: Draw, scale: Draw, shear: Draw, shift: Array) -> Array:
    """Maps an image about its center: shear, scale, rotation, shift; bilinear, zero outside.

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
    # The inverse map, from the pixels of the result to positions in `image`.
    y, x = jnp.meshgrid(
        jnp.arange(height, dtype=image.dtype) - center[0] - shift[0],
        jnp.arange(width, dtype=image.dtype) - center[1] - shift[1],
        indexing="ij",
    )
    rotated_y, rotated_x = cos * y + sin * x, -sin * y + cos * x
    positions = [rotated_y - shear * rotated_x + center[0], rotated_x + center[1]]
    planes = [map_coordinates(image[..., c], positions, order=1, cval=0.0) for c in range(channels)]
    return jnp.stack(planes, axis=-1)


def random_affine(
    key: Array, image: Array, *, rotation: float, scale: float, shear: float, shift: float
) -> Array:
    """Applies `affine` with angle, scale - 1, shear and shifts uniform within +- the arguments."""
    angle, magnification, slant, y, x = jax.random.uniform(key, (5,), image.dtype, -1.0, 1.0)
    return affine(
        image,
        rotation=rotation * angle,
        scale=1 + scale * magnification,
        shear=shear * slant,
        shift=shift * jnp.stack([y, x]),
    )


def noise(key: Array, image: Array, std: float) -> Array:
    """Adds Gaussian noise of standard deviation `std`; values may leave [0, 1]."""
    return image + std * jax.random.normal(key, image.shape, image.dtype)


def fit(image: Array, size: int) -> Array:
    """Crops the center `[size, size, C]`; a smaller image is cropped to a square and scaled up."""
    height, width, _ = image.shape
    side = min(height, width, size)
    y, x = (height - side) // 2, (width - side) // 2
    image = image[y : y + side, x : x + side]
    if side == size:
        return image
    return crop_resize(image, (0, 0, side, side), size)


def _rescale(draws: Array, low: Draw, high: Draw) -> Array:
    """Maps uniform draws of [0, 1) to [low, high)."""
    return low + (high - low) * draws


def _luma(image: Array) -> Array:
    """Computes the luma of an image, `[H, W, C]` -> `[H, W, 1]`."""
    if image.shape[-1] == 1:
        return image
    weights = jnp.array(LUMA, image.dtype)
    return jnp.sum(image * weights[None, None], axis=-1, keepdims=True)


def _blend(image: Array, other: Array, factor: Draw) -> Array:
    """Computes `factor * image + (1 - factor) * other`, clipped to [0, 1]."""
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def _resize_weights(length: int, start: Pixel, extent: Pixel, size: int, dtype: jnp.dtype) -> Array:
    """Computes weights `[size, length]` of antialiased bilinear resizing of a section of a line.

    Args:
        length: pixels of the line.
        start: first pixel of the section, possibly traced, like `extent`.
        extent: pixels of the section.
        size: pixels of the result.
        dtype: dtype of the weights.
    """
    pixels = jnp.arange(length, dtype=dtype)[None]
    step = jnp.asarray(extent, dtype) / size
    centers = start + (jnp.arange(size, dtype=dtype)[:, None] + 0.5) * step - 0.5
    weights = jnp.maximum(0, 1 - jnp.abs(pixels - centers) / jnp.maximum(step, 1))
    weights = jnp.where((pixels >= start) & (pixels < start + extent), weights, 0)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
