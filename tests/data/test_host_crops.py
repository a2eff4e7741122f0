"""Random crops on the host: drawn from seed, step and index alone, and cut where they say."""

import functools
import io

import jax
import numpy as np
import pytest
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import augment, batches, datasets, host_crops, images, views
from cluster_jax.data import decode as decoding
from cluster_jax.data.images import HostCrops
from tests.rows import every_row

CROPS = HostCrops(4, (0.2, 1.0), (3 / 4, 4 / 3), "bilinear")
AUGMENT = views.AugmentConfig(
    4, (0.5,) * 3, (0.5,) * 3, views.CropConfig((0.2, 1.0), (3 / 4, 4 / 3)),
    0.0, None, 0.0, None, None, None, 0.0,
)  # fmt: skip


@pytest.fixture
def dataset(tmp_path, write):
    """Seven images of different sizes, with crops."""
    for i in range(7):
        write(f"{i}.png", 9 + i, 14 - i)
    config = datasets.DataConfig(
        "folder", str(tmp_path), None, "label", 8, "bilinear", None, 100.0, 0.0, "host"
    )
    loaded = datasets.load(config)
    assert loaded.images is None
    return host_crops.with_crops(loaded, config, AUGMENT)


def decode(data, crops, draws, channels):
    out = np.empty((len(draws), crops.size, crops.size, channels), np.uint8)
    return host_crops.decode(data, crops, draws, out)


def encoded(pixels, format="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format, **options)
    return stream.getvalue()


def test_crops_follow_from_seed_step_and_index(dataset):
    fetch = functools.partial(host_crops.fetch, dataset)
    whole = fetch(np.arange(7), seed=3, step=5)
    assert (whole.shape, whole.dtype) == ((7, 2, 4, 4, 3), np.uint8)
    np.testing.assert_array_equal(fetch(np.array([4, 4, 0]), seed=3, step=5), whole[[4, 4, 0]])
    for other in (fetch(np.arange(7), seed=3, step=6), fetch(np.arange(7), seed=4, step=5)):
        assert (other != whole).any(axis=(1, 2, 3, 4)).all()
    assert (whole[:, 0] != whole[:, 1]).any(axis=(1, 2, 3)).all()
    some = images.select(dataset, np.array([6, 2]))
    assert host_crops.fetch(some, np.array([1]), seed=3, step=5).shape == (1, 2, 4, 4, 3)


def test_a_training_goes_on_with_the_same_crops(dataset):
    options = {
        "seed": 0, "batch_size": 3, "labeled": None,
        "prefetch": 2,
    }  # fmt: skip
    once = list(batches.stream(dataset, steps=range(5), **options))
    again = list(batches.stream(dataset, steps=range(3, 5), **options))
    assert once[3]["image"].shape == (3, *dataset.batch_shape)
    for a, b in zip(once[3:], again, strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["index"], b["index"])


@every_row(("width", "height"), [(40, 30), (30, 40), (9, 90), (90, 9)])
def test_boxes_are_those_of_the_device(width, height):
    """Equal means of area, aspect and place over many draws of both implementations."""
    rng = np.random.default_rng(0)
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    crops = CROPS._replace(scale=scale, ratio=ratio)
    found = np.array(
        [host_crops.random_box(row, width, height, crops) for row in rng.random((4000, 22))]
    )
    left, top, w, h = found.T
    assert min(left.min(), top.min()) >= 0
    assert (left + w).max() <= width
    assert (top + h).max() <= height
    if max(width, height) == 40:  # else all boxes are the central one
        assert (left + w)[w < width - 5].max() == width
        assert (top + h)[h < height - 5].max() == height
    draw = jax.jit(jax.vmap(lambda key: augment.random_box(key, (height, width, 3), scale, ratio)))
    device = np.stack(draw(jax.random.split(jax.random.key(0), 4000)), axis=1)
    np.testing.assert_allclose(found.mean(0), device[:, [1, 0, 3, 2]].mean(0), atol=0.5)
    np.testing.assert_allclose(found.std(0), device[:, [1, 0, 3, 2]].std(0), atol=0.5)


def test_a_crop_is_the_resized_box(rng):
    pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    draws = rng.random((2, 22)).tolist()
    got = decode(encoded(pixels), CROPS, draws, 3)
    for view, row in zip(got, draws, strict=True):
        left, top, w, h = host_crops.random_box(row, 30, 20, CROPS)
        box = Image.fromarray(pixels).crop((left, top, left + w, top + h))
        wanted = np.asarray(box.resize((4, 4), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(view, wanted)
    gray = decode(encoded(pixels), CROPS, draws, 1)
    assert gray.shape == (2, 4, 4, 1)


def test_a_large_jpeg_is_decoded_at_a_fraction(rng, monkeypatch):
    smooth = np.asarray(
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((800, 600))
    )
    data, draws, sizes = encoded(smooth, "JPEG", quality=95), rng.random((2, 22)).tolist(), []
    original = decoding.to_8_bit
    monkeypatch.setattr(
        decoding,
        "to_8_bit",
        lambda image, *others: sizes.append(image.size) or original(image, *others),
    )
    crops = CROPS._replace(size=40)
    part = decode(data, crops, draws, 3)
    boxes = [host_crops.random_box(row, 800, 600, CROPS) for row in draws]
    smallest = min(min(w, h) for _, _, w, h in boxes) * sizes[0][0] / 800
    assert sizes[0][0] < 800
    assert 2 * 40 <= smallest < 4 * 40  # at half the size it would be too small
    monkeypatch.setattr(Image.Image, "draft", lambda *_: None)
    whole = decode(data, crops, draws, 3)
    assert np.abs(part.astype(int) - whole).max() <= 12


def test_views_take_their_crop_and_crop_no_more(rng):
    made = views.make(AUGMENT)
    pair = rng.integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    for number, view in enumerate((made.view, made.other)):
        got = view(jax.random.key(0), pair)
        np.testing.assert_allclose(got, pair[number] / 255 * 2 - 1, atol=1e-6)
    with pytest.raises(InputError, match=r"data\.crop must be 'square' where a training needs"):
        made.clean(pair)


def test_sets_without_files_and_without_crops_are_refused(dataset):
    config = datasets.DataConfig(
        "digits", None, None, "label", 8, "bilinear", None, 1.0, 0.0, "host"
    )
    with pytest.raises(InputError, match=r"data\.crop must be 'square' for digits, which is not"):
        host_crops.with_crops(datasets.load(config), config, AUGMENT)
    none = views.AugmentConfig(4, None, None, None, 0.0, None, 0.0, None, None, None, 0.0)
    with pytest.raises(InputError, match=r"augment\.crop must be set with data\.crop 'host'"):
        host_crops.with_crops(dataset, config, none)
