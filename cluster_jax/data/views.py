"""The chain of augmentations that makes a view, built from the config."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.data import augment

JITTER = ("brightness", "contrast", "saturation", "hue")

Settings = Mapping[str, float | tuple[float, float]]
View = Callable[[Array, Array], Array]


class Augment(NamedTuple):
    """Functions of one uint8 image `[H, W, C]`; the caller vmaps them.

    Attributes:
        view: `(key, image) -> [size, size, C]`: an augmented view, standardized; view a.
        other: the same with view b's probabilities of blur and solarization.
        clean: `image -> [size, size, C]`: the image itself (`augment.fit`), standardized.
    """

    view: View
    other: View
    clean: Callable[[Array], Array]


def make(
    *,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    crop: Settings | None,
    flip: float,
    jitter: Settings | None,
    grayscale: float,
    blur: Settings | None,
    solarize: Settings | None,
    affine: Settings | None,
    noise: float,
) -> Augment:
    """Views by crop, flip, jitter, gray, blur, solarization, affine map and noise, in this order.

    Every part has random numbers of its own: switching one off leaves the others as they were.
    The mappings may be ConfigDicts.

    Args:
        size: side of the views in pixels.
        mean: of each channel on the scale [0, 1]; the views are (x - mean) / std.
        std: of each channel on the scale [0, 1].
        crop: None for the central square, or {"scale": (low, high) share of the area, "ratio":
            (low, high) width / height}.
        flip: probability of a left-right flip.
        jitter: None or {"probability", "brightness", "contrast", "saturation", "hue"}, strengths
            as torchvision's ColorJitter, hue in turns, at most 0.5.
        grayscale: probability of losing the color.
        blur: None or {"probability", "sigma": (low, high) pixels, "kernel": odd number of pixels}.
            The probability may be a pair, of view a and of view b (BYOL: 1.0 and 0.1), which a
            config file sets: a flag or an override keeps the default's type, mostly a float.
        solarize: None or {"probability", "threshold" on the scale [0, 1]}; the probability may be a
            pair as that of blur may (BYOL: 0.0 and 0.2).
        affine: None or {"rotation" in radians, "scale", "shear", "shift" in pixels}: the largest
            amounts of `augment.random_affine`.
        noise: standard deviation of normal noise on the scale [0, 1], before standardisation.

    Raises:
        ValueError: a value out of its range, or a key that is missing or not known.
    """
    _check_size(size, mean, std)
    crop = _named("crop", crop, ("scale", "ratio"))
    jitter = _named("jitter", jitter, ("probability", *JITTER))
    blur = _named("blur", blur, ("probability", "sigma", "kernel"))
    solarize = _named("solarize", solarize, ("probability", "threshold"))
    affine = _named("affine", affine, ("rotation", "scale", "shear", "shift"))
    _check_probability("flip", flip)
    _check_probability("grayscale", grayscale)
    _check_at_least_zero("noise", noise)
    _check_settings(size, crop, jitter, blur, solarize, affine)

    def standardized(image: Array) -> Array:
        if image.shape[-1] != len(mean):
            raise ValueError(
                f"images have {image.shape[-1]} channels but augment.mean has {len(mean)} values; "
                "give one mean and one std for each channel"
            )
        center, spread = jnp.array(mean, image.dtype), jnp.array(std, image.dtype)
        return (image - center[None, None]) / spread[None, None]

    def clean(image: Array) -> Array:
        return standardized(augment.fit(_floats(image), size))

    def view(key: Array, image: Array, blurred: float, solarized: float) -> Array:
        x = _floats(image)
        chance_key, crop_key, jitter_key, blur_key, affine_key, noise_key = jax.random.split(key, 6)
        flips, jitters, grays, blurs, solarises = jax.random.uniform(chance_key, (5,))
        if crop:
            box = augment.random_box(crop_key, x.shape, crop["scale"], crop["ratio"])
            x = augment.crop_resize(x, box, size)
        else:
            x = augment.fit(x, size)
        if flip:
            x = jnp.where(flips < flip, augment.flip(x), x)
        if jitter and jitter["probability"]:
            strengths = {name: jitter[name] for name in JITTER}
            changed = augment.random_jitter(jitter_key, x, **strengths)
            x = jnp.where(jitters < jitter["probability"], changed, x)
        if grayscale:
            x = jnp.where(grays < grayscale, augment.grayscale(x), x)
        if blurred:
            low, high = blur["sigma"]
            sigma = jax.random.uniform(blur_key, (), x.dtype, low, high)
            changed = augment.gaussian_blur(x, sigma, blur["kernel"] // 2)
            x = jnp.where(blurs < blurred, changed, x)
        if solarized:
            x = jnp.where(solarises < solarized, augment.solarize(x, solarize["threshold"]), x)
        if affine and any(affine.values()):
            x = augment.random_affine(affine_key, x, **affine)
        if noise:
            x = augment.noise(noise_key, x, noise)
        return standardized(x)

    chances = zip(_pair(blur), _pair(solarize), strict=True)
    a, b = (partial(view, blurred=blurred, solarized=solarized) for blurred, solarized in chances)
    return Augment(a, b, clean)


def _floats(image: Array) -> Array:
    """uint8 as floats in [0, 1] of the canonical dtype."""
    return image.astype(jnp.result_type(float)) / 255


def _named(part: str, settings: Settings | None, keys: tuple[str, ...]) -> dict | None:
    """The settings of one part as a dict with exactly these keys."""
    if settings is None:
        return None
    given = dict(settings)
    if set(given) != set(keys):
        wrong = ", ".join(sorted(set(given) ^ set(keys)))
        raise ValueError(
            f"augment.{part} needs exactly the keys {', '.join(keys)}; missing or unknown: {wrong}"
        )
    return given


def _pair(settings: dict | None) -> tuple[float, float]:
    """A part's probability in view a and in view b."""
    if settings is None:
        return 0.0, 0.0
    value = settings["probability"]
    if not isinstance(value, Sequence):
        return value, value
    if len(value) != 2:
        raise ValueError(f"a pair of probabilities is of view a and of view b; got {value}")
    return tuple(value)


def _check_size(size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    if size < 1:
        raise ValueError(f"augment.size = {size}; expected a positive number of pixels")
    if len(mean) != len(std) or not all(s > 0 for s in std):
        raise ValueError(
            f"augment.mean = {mean} and augment.std = {std}; expected as many of each, std positive"
        )


def _check_settings(
    size: int,
    crop: dict | None,
    jitter: dict | None,
    blur: dict | None,
    solarize: dict | None,
    affine: dict | None,
) -> None:
    if crop:
        _check_interval("crop.scale", crop["scale"], 1.0)
        _check_interval("crop.ratio", crop["ratio"], float("inf"))
    if jitter:
        _check_probability("jitter.probability", jitter["probability"])
        for name in JITTER:
            _check_at_least_zero(f"jitter.{name}", jitter[name])
        if jitter["hue"] > 0.5:
            raise ValueError(f"augment.jitter.hue = {jitter['hue']} turns; expected 0 to 0.5")
    if blur:
        for chance in _pair(blur):
            _check_probability("blur.probability", chance)
        _check_interval("blur.sigma", blur["sigma"], float("inf"))
        kernel = blur["kernel"]
        if kernel < 1 or kernel % 2 == 0 or kernel // 2 >= size:
            raise ValueError(
                f"augment.blur.kernel = {kernel}; expected an odd number of pixels from 1 to "
                f"{2 * size - 1} for views of {size}"
            )
    if solarize:
        for chance in _pair(solarize):
            _check_probability("solarize.probability", chance)
        if not 0 <= solarize["threshold"] <= 1:
            raise ValueError(
                f"augment.solarize.threshold = {solarize['threshold']}; expected 0 to 1"
            )
    if affine:
        for name, value in affine.items():
            _check_at_least_zero(f"affine.{name}", value)
        if affine["scale"] >= 1:
            raise ValueError(f"augment.affine.scale = {affine['scale']}; expected below 1")


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"augment.{name} = {value}; expected a probability from 0 to 1")


def _check_at_least_zero(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"augment.{name} = {value}; expected 0 (off) or a positive number")


def _check_interval(name: str, value: tuple[float, float], top: float) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= top:
        raise ValueError(
            f"augment.{name} = {value}; expected (low, high) with 0 < low <= high <= {top:g}"
        )
