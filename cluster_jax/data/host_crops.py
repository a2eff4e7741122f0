"""RandomResizedCrop of whole images on the host, as in the papers: `data.crop` "host".

A streamed image is decoded once for each batch, and two crops of it, for view a and view b, go to
the device instead of one square. A crop is a function of (seed, step, index of the image), so that
a resumed training sees the same crops.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from cluster_jax.core.checks import InputError
from cluster_jax.data import decode as decoding
from cluster_jax.data import images
from cluster_jax.data.augment import TRIES
from cluster_jax.data.decode import Item
from cluster_jax.data.images import DataConfig, Dataset, HostCrops
from cluster_jax.data.views import AugmentConfig

VIEWS = 2


def with_crops(dataset: Dataset, data: DataConfig, augment: AugmentConfig) -> Dataset:
    """Adds `crops` to the data set where `data.crop` is "host".

    Raises:
        InputError: the set has no image files, or its config has no random crops.
    """
    if dataset.read is None or not dataset.has_images:
        which = f"{dataset.name}, which is not read from image files"
        raise InputError(f"data.crop must be 'square' for {which}; got 'host'")
    if augment.crop is None:
        raise InputError("augment.crop must be set with data.crop 'host'; got None")
    scale, ratio = augment.crop.scale, augment.crop.ratio
    return dataset._replace(crops=HostCrops(augment.size, scale, ratio, data.interpolation))


def fetch(dataset: Dataset, indices: np.ndarray, *, seed: int, step: int) -> np.ndarray:
    """Returns the crops of a training batch, uint8 `[b, 2, size, size, C]`, decoded in threads.

    Args:
        dataset: images with `crops`.
        indices: int `[b]`.
        seed: random seed.
        step: training step.
    """
    read, crops = dataset.read, dataset.crops
    assert read is not None
    assert crops is not None
    batch = np.empty((len(indices), *dataset.batch_shape), np.uint8)

    def fill(row: int) -> None:
        index = int(indices[row])
        draws = random_draws(seed, step, index)
        options = {"crops": crops, "draws": draws, "out": batch[row]}
        read(index, functools.partial(decode, **options))

    images.map_indices(fill, np.arange(len(indices)))
    return batch


def random_draws(seed: int, step: int, index: int) -> list[list[float]]:
    """Draws the random numbers of both crops of an image in a step, each for `random_box`."""
    # Raw words, which are the same in every version of NumPy, as 53-bit fractions.
    generator = np.random.Philox(np.random.SeedSequence((seed, step, index)))
    words = generator.random_raw(VIEWS * (2 * TRIES + 2))
    return ((words >> 11) * 2.0**-53).reshape(VIEWS, -1).tolist()


def decode(
    item: Item, crops: HostCrops, draws: Sequence[Sequence[float]], out: np.ndarray
) -> np.ndarray:
    """Decodes an image and fills `out` with a crop of it for each row of `draws`.

    Colors, transparency and orientation are treated as in `decode.decode`. A JPEG is decoded at
    1/2, 1/4 or 1/8 of its size as long as the sides of all crops stay at least twice their size.

    Args:
        item: the image.
        crops: size and distribution.
        draws: for each crop, numbers in [0, 1), see `random_box`.
        out: uint8 `[n, size, size, C]`, C = 1 (gray) or 3 (RGB); also returned.
    """
    mode = "RGB" if out.shape[-1] == 3 else "L"
    with decoding.opened(item) as (file, (width, height)):
        boxes = [random_box(row, width, height, crops) for row in draws]
        factor = 2 * crops.size / min(min(box[2:]) for box in boxes)
        file.draft(None, (math.ceil(file.width * factor), math.ceil(file.height * factor)))
        image = decoding.to_8_bit(file, mode)
        x, y = image.width / width, image.height / height
        method = decoding.INTERPOLATIONS[crops.interpolation]
        for view, (left, top, w, h) in zip(out, boxes, strict=True):
            box = (round(left * x), round(top * y), round((left + w) * x), round((top + h) * y))
            # Cropped first, since the option `box` of `resize` also mixes pixels around the box.
            crop = image.crop(box).resize(view.shape[:2], method)
            view[:] = np.asarray(crop).reshape(view.shape)
    return out


def random_box(
    draws: Sequence[float], width: int, height: int, crops: HostCrops
) -> tuple[int, int, int, int]:
    """Computes the box (left, top, width, height) of torchvision's RandomResizedCrop.

    The same distribution as `augment.random_box`.

    Args:
        draws: 22 numbers in [0, 1): ten for the area, ten for the aspect ratio, two for the place.
        width: of the image, in pixels.
        height: of the image, in pixels.
        crops: scale and ratio.
    """
    scale, ratio = crops.scale, crops.ratio
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area, aspect in zip(draws[:TRIES], draws[TRIES : 2 * TRIES], strict=True):
        pixels = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        root = math.exp((low + (high - low) * aspect) / 2)
        w, h = round(math.sqrt(pixels) * root), round(math.sqrt(pixels) / root)
        if 0 < w <= width and 0 < h <= height:
            return int(draws[-1] * (width - w + 1)), int(draws[-2] * (height - h + 1)), w, h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    return (width - w) // 2, (height - h) // 2, w, h
