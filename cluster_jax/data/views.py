"""The augmentation pipeline of images, built from the config."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, outside
from cluster_jax.core.checks import BelowOne, Count, Fraction, InputError, NonNegative, Positive
from cluster_jax.data import augment

View = Callable[[Array, Array], Array]
NEEDS = ("augment",)  # what a module of `augment.more` defines
_KEYS = 6  # random keys of the augmentations of the package; those of `augment.more` follow


class Augment(NamedTuple):
    """Functions of one uint8 image `[H, W, C]`; the caller vmaps them.

    Attributes:
        view: `(key, image) -> float [size, size, C]`: augmented and standardized, view a.
        other: view b, which has its own probabilities of blur and solarization.
        clean: `image -> [size, size, C]`: cropped (`augment.fit`) and standardized, not augmented.
        small: makes the `view` of small crops, see `SmallCropConfig`; None: features have none.
    """

    view: View
    other: View
    clean: Callable[[Array], Array]
    small: "Callable[[SmallCropConfig], View] | None" = None


def _check_pair(name: str, value: float | tuple[float, float]) -> None:
    """Raises an `InputError` unless a number, or each of a pair, is from 0 to 1."""
    for probability in value if isinstance(value, tuple) else (value,):
        checks.between(name, probability, 0, 1)


def _check_odd(name: str, value: int) -> None:
    """Raises an `InputError` unless `value` is an odd whole number, at least 1."""
    checks.whole(name, value, 1)
    if value % 2 == 0:
        raise InputError(f"{name} must be odd; got {value}")


def _check_interval(name: str, value: tuple[float, float], highest: float) -> None:
    """Raises an `InputError` unless `value` is (low, high) with 0 < low <= high <= `highest`."""
    if not 0 < value[0] <= value[1] <= highest:
        must = f"{name} must be (low, high) with 0 < low <= high <= {highest:g}"
        raise InputError(f"{must}; got {value!r}")


# Types of config keys: a probability, or a pair for view a and view b; an interval.
PairOfFractions = Annotated[float | tuple[float, float], _check_pair]
Interval = Annotated[tuple[float, float], partial(_check_interval, highest=math.inf)]


@dataclasses.dataclass(frozen=True)
class CropConfig:
    """Section `augment.crop`: torchvision's RandomResizedCrop.

    Attributes:
        scale: lowest and highest fraction of the area.
        ratio: lowest and highest aspect ratio, width / height.
    """

    scale: Annotated[tuple[float, float], partial(_check_interval, highest=1.0)]
    ratio: Interval


@dataclasses.dataclass(frozen=True)
class SmallCropConfig:
    """Small crops of a method of more than two views (multi-crop).

    They are augmented as view a is. Their ratio of width to height is that of `augment.crop`, 3/4
    to 4/3 without one.

    Attributes:
        count: number of crops of each image.
        size: side of the crops in pixels; None: that of the views. Networks without an average over
            the last feature map, such as `small`, take no other.
        scale: lowest and highest fraction of the area.
    """

    count: Count
    size: Count | None
    scale: Annotated[tuple[float, float], partial(_check_interval, highest=1.0)]


@dataclasses.dataclass(frozen=True)
class JitterConfig:
    """Section `augment.jitter`: color jitter with the strengths of torchvision's ColorJitter.

    Attributes:
        probability: probability of jitter.
        brightness, contrast, saturation: largest deviation of the factor from 1.
        hue: largest rotation of the hue in turns, at most 0.5.
    """

    probability: Fraction
    brightness: NonNegative
    contrast: NonNegative
    saturation: NonNegative
    hue: Annotated[float, partial(checks.between, low=0, high=0.5)]


@dataclasses.dataclass(frozen=True)
class BlurConfig:
    """Section `augment.blur`: Gaussian blur of random width.

    Attributes:
        probability: probability of blur; a pair for view a and view b (BYOL: 1.0 and 0.1).
        sigma: smallest and largest standard deviation in pixels.
        kernel: size of the kernel, an odd number of pixels.
    """

    probability: PairOfFractions
    sigma: Interval
    kernel: Annotated[int, _check_odd]


@dataclasses.dataclass(frozen=True)
class SolarizeConfig:
    """Section `augment.solarize`: inversion of pixel values above a threshold.

    Attributes:
        probability: probability of solarization; a pair as for blur (BYOL: 0.0 and 0.2).
        threshold: pixel value on the scale [0, 1].
    """

    probability: PairOfFractions
    threshold: Fraction


@dataclasses.dataclass(frozen=True)
class AffineConfig:
    """Section `augment.affine`: bounds of the random affine map, `augment.random_affine`.

    Attributes:
        rotation: largest angle in radians.
        scale: largest deviation of the magnification from 1, below 1.
        shift: largest translation in pixels.
        shear: largest shear, y per x.
    """

    rotation: NonNegative
    scale: BelowOne
    shift: NonNegative
    shear: NonNegative


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """Section `augment`: size, standardization and augmentations; None turns one off.

    Attributes:
        size: side of the views in pixels.
        mean: channel means on the scale [0, 1] for standardization; None: measured on the images.
        std: standard deviations of the channels, on the same scale; None: measured on the images.
        crop: random crop; None for the central square.
        flip: probability of a horizontal flip.
        jitter: color jitter.
        grayscale: probability of grayscale.
        blur: Gaussian blur.
        solarize: solarization.
        affine: random affine map.
        noise: standard deviation of Gaussian noise on the scale [0, 1], before standardization.
        more: modules of one's own: the function `augment(key, image)` of each changes a float image
            `[size, size, C]`, on the scale [0, 1], after all others and before standardization.
    """

    size: Count
    mean: tuple[float, ...] | None
    std: tuple[Positive, ...] | None
    crop: CropConfig | None
    flip: Fraction
    jitter: JitterConfig | None
    grayscale: Fraction
    blur: BlurConfig | None
    solarize: SolarizeConfig | None
    affine: AffineConfig | None
    noise: NonNegative
    more: tuple[Annotated[str, outside.named((), *NEEDS)], ...]

    def __post_init__(self) -> None:
        if self.blur is not None:
            of = f"for views of {self.size} pixels"
            checks.at_most("augment.blur.kernel", self.blur.kernel, 2 * self.size - 1, of)


def make(config: AugmentConfig) -> Augment:
    """Makes the augmentation: crop, flip, jitter, gray, blur, solarization, affine map, noise, own.

    Each augmentation has its own random numbers, so turning one off does not change the others. The
    functions raise an `InputError` for an image of another number of channels than `mean` or `std`.

    Raises:
        ValueError: `mean` or `std` is None.
        InputError: a module of `more` cannot be imported.
    """
    if config.mean is None or config.std is None:
        raise ValueError("augment.mean and augment.std must be measured first; got None")
    standardized = partial(_standardized, config.mean, config.std)
    more = tuple(outside.module("augment.more", name, (), NEEDS).augment for name in config.more)

    def view(number: int, section: AugmentConfig, key: Array, image: Array) -> Array:
        blurred = _probability(config.blur, number)
        solarized = _probability(config.solarize, number)
        x = _augmented(section, key, _to_float(image), blurred, solarized)
        keys = jax.random.split(key, _KEYS + len(more))[_KEYS:]
        for name, function, own_key in zip(config.more, more, keys, strict=True):
            x = _changed(name, function, own_key, x)
        return standardized(x)

    def small(crops: SmallCropConfig) -> View:
        ratio = (3 / 4, 4 / 3) if config.crop is None else config.crop.ratio
        crop = CropConfig(crops.scale, ratio)
        size = crops.size or config.size
        return partial(view, 0, dataclasses.replace(config, size=size, crop=crop))

    clean = make_clean(config.size, config.mean, config.std)
    return Augment(partial(view, 0, config), partial(view, 1, config), clean, small)


def _changed(name: str, function: View, key: Array, image: Array) -> Array:
    """Returns an image that a module of `augment.more` has changed.

    Raises:
        InputError: it returns something else than floats of the same shape.
    """
    changed = jnp.asarray(function(key, image))
    if changed.shape != image.shape or not jnp.issubdtype(changed.dtype, jnp.floating):
        raise InputError(
            f"augment of augment.more {name} must return a float image {list(image.shape)}; got "
            f"{changed.dtype}{list(changed.shape)}"
        )
    return changed.astype(image.dtype)


def make_clean(size: int, mean: Sequence[float], std: Sequence[float]) -> Callable[[Array], Array]:
    """Makes the `Augment.clean` of images: cropped to `size` and standardized by channel.

    The function raises an `InputError` for an image of another number of channels than `mean`.
    """
    return lambda image: _standardized(mean, std, augment.fit(_to_float(image), size))


def _standardized(mean: Sequence[float], std: Sequence[float], image: Array) -> Array:
    """Computes `(image - mean) / std` by channel; see `make_clean` for the error."""
    channels = image.shape[-1]
    if not len(mean) == len(std) == channels:
        must = f"augment.mean and augment.std must have a value for each of the {channels} channels"
        raise InputError(f"{must}, or be None; got {len(mean)} and {len(std)}")
    center, scale = (jnp.array(values, image.dtype)[None, None] for values in (mean, std))
    return (image - center) / scale


# Compiled as a part of the step; jitted, so that the views of a batch are traced once.
@partial(jax.jit, static_argnames=("config", "blurred", "solarized"))
def _augmented(
    config: AugmentConfig, key: Array, x: Array, blurred: float, solarized: float
) -> Array:
    """Augments an image of floats in [0, 1] to one view, not standardized.

    `blurred` and `solarized` are the probabilities of blur and solarization in this view.
    """
    chance_key, crop_key, jitter_key, blur_key, affine_key, noise_key = jax.random.split(key, _KEYS)
    draws = jax.random.uniform(chance_key, (5,))
    flip_draw, jitter_draw, gray_draw, blur_draw, solarize_draw = draws
    crop = config.crop
    jitter = config.jitter
    blur = config.blur
    affine = config.affine
    if crop is not None:
        box = augment.random_box(crop_key, x.shape, crop.scale, crop.ratio)
        x = augment.crop_resize(x, box, config.size)
    else:
        x = augment.fit(x, config.size)
    if config.flip:
        x = jnp.where(flip_draw < config.flip, augment.flip(x), x)
    if jitter is not None and jitter.probability:
        strengths = jitter.brightness, jitter.contrast, jitter.saturation
        changed = augment.random_jitter(jitter_key, x, strengths, jitter.hue)
        x = jnp.where(jitter_draw < jitter.probability, changed, x)
    if config.grayscale:
        x = jnp.where(gray_draw < config.grayscale, augment.grayscale(x), x)
    if blur is not None and blurred:
        sigma = jax.random.uniform(blur_key, (), x.dtype, *blur.sigma)
        changed = augment.gaussian_blur(x, sigma, blur.kernel // 2)
        x = jnp.where(blur_draw < blurred, changed, x)
    if config.solarize is not None and solarized:
        changed = augment.solarize(x, config.solarize.threshold)
        x = jnp.where(solarize_draw < solarized, changed, x)
    if affine is not None and affine != AffineConfig(0, 0, 0, 0):
        x = augment.random_affine(affine_key, x, **dataclasses.asdict(affine))
    if config.noise:
        x = augment.noise(noise_key, x, config.noise)
    return x


def _to_float(image: Array) -> Array:
    """Converts uint8 to floats in [0, 1] of the canonical dtype."""
    return image.astype(jnp.result_type(float)) / 255


def _probability(config: BlurConfig | SolarizeConfig | None, number: int) -> float:
    """Returns the probability of an augmentation in view a, number 0, or in view b, number 1."""
    value = 0.0 if config is None else config.probability
    return value[number] if isinstance(value, tuple) else value
