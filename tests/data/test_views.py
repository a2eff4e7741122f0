"""The chain of augmentations: keys, batches, standardisation, switches, bad values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.config import parse_section
from cluster_jax.data import augment, views
from tests.rows import every_row

OFF = {
    "size": 8,
    "mean": (0.4, 0.5, 0.6),
    "std": (0.2, 0.3, 0.25),
    "crop": None,
    "flip": 0.0,
    "jitter": None,
    "grayscale": 0.0,
    "blur": None,
    "solarize": None,
    "affine": None,
    "noise": 0.0,
    "more": (),
}
ON = OFF | {
    "crop": {"scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3)},
    "flip": 0.5,
    "jitter": {
        "probability": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1,
    },
    "grayscale": 0.2,
    "blur": {"probability": 0.5, "sigma": (0.1, 2.0), "kernel": 5},
    "solarize": {"probability": 0.3, "threshold": 0.5},
    "affine": {"rotation": 0.3, "scale": 0.18, "shear": 0.3, "shift": 1.0},
    "noise": 0.05,
}  # fmt: skip


def augmentation(**values):
    """The views of a section of the config."""
    return views.make(parse_section(views.AugmentConfig, "augment", values))


@pytest.fixture
def pictures(rng):
    return jnp.asarray(rng.integers(0, 256, (6, 10, 9, 3), dtype=np.uint8))


def test_a_view_depends_on_its_image_and_key_alone(keys, pictures, x64):
    view = jax.jit(jax.vmap(augmentation(**ON).view))
    image_keys = jax.random.split(next(keys), 6)
    whole = view(image_keys, pictures)
    assert whole.shape == (6, 8, 8, 3)
    assert whole.dtype == jnp.float64
    assert np.isfinite(whole).all()
    other = jnp.array([4, 1, 1, 5, 4, 0])  # other neighbors, another place in the batch
    np.testing.assert_allclose(view(image_keys[other], pictures[other]), whole[other], rtol=1e-12)

    of_one = np.asarray(view(image_keys, jnp.broadcast_to(pictures[:1], pictures.shape)))
    distances = np.abs(of_one[:, None] - of_one[None]).max((2, 3, 4))
    assert (distances[~np.eye(6, dtype=bool)] > 0.1).all()


def test_all_off_is_the_clean_image_standardized(keys, pictures, x64):
    made = augmentation(**OFF)
    expected = (np.asarray(pictures[0])[1:9, :8] / 255 - OFF["mean"]) / OFF["std"]
    np.testing.assert_allclose(made.clean(pictures[0]), expected, atol=1e-12)
    np.testing.assert_allclose(made.view(next(keys), pictures[0]), expected, atol=1e-12)


def one(pictures, key, **changes):
    """View without standardisation, everything off but the changes."""
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    return jax.jit(augmentation(**OFF | plain | changes).view)(key, pictures[0])


def test_certain_parts_do_what_they_say(keys, pictures, x64):
    key = next(keys)
    base = one(pictures, key)
    np.testing.assert_allclose(one(pictures, key, flip=1.0), base[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(
        one(pictures, key, grayscale=1.0), augment.grayscale(base), atol=1e-12
    )
    blur = {"probability": 1.0, "sigma": (1.3, 1.3), "kernel": 5}
    np.testing.assert_allclose(
        one(pictures, key, blur=blur), augment.gaussian_blur(base, 1.3, 2), atol=1e-12
    )
    solarize = {"probability": 1.0, "threshold": 0.6}
    np.testing.assert_allclose(
        one(pictures, key, solarize=solarize), augment.solarize(base, 0.6), atol=1e-12
    )
    whole = {"scale": (1.0, 1.0), "ratio": (9 / 10, 9 / 10)}
    np.testing.assert_allclose(
        one(pictures, key, crop=whole),
        augment.crop_resize(pictures[0].astype(float) / 255, (0, 0, 10, 9), 8),
        atol=1e-12,
    )
    jitter = dict.fromkeys(("contrast", "saturation", "hue"), 0.0) | {"brightness": 0.5}
    brighter = np.asarray(one(pictures, key, jitter=jitter | {"probability": 1.0}))
    dark = np.asarray(base) < 0.5  # bright pixels may be clipped
    factors = brighter[dark & (np.asarray(base) > 0)] / base[dark & (np.asarray(base) > 0)]
    np.testing.assert_allclose(factors, factors[0], atol=1e-9)
    assert 0.01 < abs(factors[0] - 1) <= 0.5
    off = {
        "jitter": jitter | {"probability": 0.0},
        "blur": blur | {"probability": 0.0},
        "solarize": solarize | {"probability": 0.0},
    }
    np.testing.assert_allclose(one(pictures, key, **off), base, atol=1e-12)


def test_each_view_has_its_own_probabilities(keys, pictures, x64):
    """BYOL's and Barlow Twins': view a always blurred, only view b solarized."""
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    blur = {"sigma": (1.3, 1.3), "kernel": 5}
    solarize = {"threshold": 0.5}
    made = augmentation(
        **OFF
        | plain
        | {"blur": blur | {"probability": (1.0, 0.0)}}
        | {"solarize": solarize | {"probability": [0.0, 1.0]}}
    )
    key, clean = next(keys), made.clean(pictures[0])
    a, b = jax.jit(made.view)(key, pictures[0]), jax.jit(made.other)(key, pictures[0])
    np.testing.assert_allclose(a, augment.gaussian_blur(clean, 1.3, 2), atol=1e-12)
    np.testing.assert_allclose(b, augment.solarize(clean, 0.5), atol=1e-12)


def test_probabilities_are_frequencies(keys, pictures):
    made = jax.jit(jax.vmap(augmentation(**OFF | {"flip": 0.3}).view, (0, None)))
    out = np.asarray(made(jax.random.split(next(keys), 1000), pictures[0]))
    unchanged = np.asarray(augmentation(**OFF).clean(pictures[0]))
    share = 1 - np.isclose(out, unchanged, atol=1e-5).all((1, 2, 3)).mean()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 1000)


def test_switching_one_part_off_leaves_the_others(keys, pictures, x64):
    key = next(keys)
    crop = {"crop": ON["crop"]}
    noisy = one(pictures, key, **crop, noise=0.05) - one(pictures, key, **crop)
    np.testing.assert_allclose(
        noisy, one(pictures, key, noise=0.05) - one(pictures, key), atol=1e-9
    )


def test_noise_is_on_the_scale_of_the_pixels(keys, pictures, x64):
    key = next(keys)
    plain = one(pictures, key, noise=0.1) - one(pictures, key)
    scaled = augmentation(**OFF | {"noise": 0.1}).view(key, pictures[0])
    scaled = scaled - augmentation(**OFF).view(key, pictures[0])
    np.testing.assert_allclose(scaled, np.asarray(plain) / OFF["std"], atol=1e-9)


def test_channels_must_match(pictures):
    with pytest.raises(ValueError, match="each of the 1 channels, or be None; got 3 and 3"):
        augmentation(**OFF).clean(pictures[0, ..., :1])
    with pytest.raises(ValueError, match="each of the 3 channels, or be None; got 3 and 1"):
        augmentation(**OFF | {"std": (0.5,)}).clean(pictures[0])


def changed(part: str, **values) -> dict:
    return {part: ON[part] | values}


@every_row(
    ("change", "message"),
    [
        ({"std": (0.2, 0.0, 0.1)}, "augment.std must be greater than 0"),
        (changed("crop", scale=(0.0, 1.0)), r"augment\.crop\.scale must be .* got \(0\.0, 1\.0\)"),
        (changed("blur", kernel=4), r"augment\.blur\.kernel must be odd; got 4"),
        (changed("blur", kernel=17), r"at most 15 for views of 8 pixels; got 17"),
        (
            changed("blur", probability=(0.5, 1.5)),
            r"augment\.blur\.probability must be between 0 and 1; got 1\.5",
        ),
        ({"blur": {"probability": 0.5, "kernel": 3}}, r"missing config key augment\.blur\.sigma"),
        (changed("crop", scal=1), r"unknown config key augment\.crop\.scal;"),
    ],
)
def test_bad_values(change, message):
    with pytest.raises(ValueError, match=message):
        augmentation(**ON | change)
