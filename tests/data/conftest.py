import os
import pathlib

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def real_data():
    """Folder with photos and a prepared CIFAR-10; the test is skipped without it."""
    folder = os.environ.get("CLUSTER_JAX_TEST_DATA")
    if not folder:
        pytest.skip("CLUSTER_JAX_TEST_DATA is not set to a folder of images and TFDS sets")
    assert pathlib.Path(folder).is_dir(), f"CLUSTER_JAX_TEST_DATA={folder} is not a folder"
    return pathlib.Path(folder)


@pytest.fixture
def write(tmp_path, rng):
    """Writes random images of (height, width) as `name`; returns their uint8 RGB values."""

    def one(name: str, height: int = 6, width: int = 8) -> np.ndarray:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return one
