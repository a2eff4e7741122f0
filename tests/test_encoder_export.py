"""`Encoder.export`: another program runs an encoder without this package."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import cluster_jax
from cluster_jax.core.checks import InputError

PHOTOS = pathlib.Path(__file__).parent.parent / "experiments" / "guide" / "photos.md"
# The call of the guide.
(CALL,) = re.findall(r"`(jax\.export\.deserialize\(.*\.call\(images\))`", PHOTOS.read_text())
LOADED = f"""
import sys, numpy as np, jax.export
images = np.load("images.npy")
np.save("rows.npy", {CALL})
assert not any(name.startswith("cluster_jax") for name in sys.modules)
"""


@pytest.mark.usefixtures("one_device", "shallow_lite")
def test_a_program_without_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder = cluster_jax.Encoder.pretrained("lite2")
    encoder.export("encoder.bin")
    images = np.random.default_rng(0).integers(0, 256, (3, *encoder.shape), dtype=np.uint8)
    np.save("images.npy", images)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", LOADED], check=True, env=environment)
    np.testing.assert_allclose(np.load("rows.npy"), encoder(images), atol=1e-5)


@pytest.mark.usefixtures("shallow_lite")
def test_an_encoder_of_features(tmp_path):
    encoder = dataclasses.replace(cluster_jax.Encoder.pretrained("lite2"), shape=(1, 8))
    with pytest.raises(InputError, match="must take images to be exported; got one of features"):
        encoder.export(tmp_path / "encoder.bin")
