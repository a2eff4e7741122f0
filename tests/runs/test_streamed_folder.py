"""A streamed folder with files that cannot be read: trained on, evaluated, and resumed."""

import json

import numpy as np
import pytest

from cluster_jax.core import io
from cluster_jax.data import images
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import run as records
from tests import toy

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
BAD = (0, 7, 63)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A run of 64 gray files, three of which cannot be read."""
    monkeypatch.setattr(images.ItemReader.__init__, "__defaults__", (1, None))
    photos = tmp_path / "photos"
    toy.save_by_label(photos, *toy.images())
    files = sorted(photos.rglob("*.png"))
    for i in BAD:
        files[i].write_text("no image")
    config = toy.config("x")
    config.data.name, config.data.dir, config.data.image_size = "folder", str(photos), 8
    config.data.cache_mb, config.data.max_corrupt_fraction = 0.0, 0.1
    return config


def test_files_without_a_row(tmp_path, config, caplog):
    caplog.set_level("INFO")
    workdir = tmp_path / "run"
    results = pipeline.run_pipeline(config, workdir)
    assert "3 files cannot be read" in caplog.text
    assert results["provenance"]["images_skipped"] == 3
    assert results["provenance"]["images_trained"] == 61
    names = sorted(str(f.relative_to(tmp_path / "photos")) for f in tmp_path.rglob("*.png"))
    rows = toy.table(workdir)
    left = [name for i, name in enumerate(names) if i not in BAD]
    assert [row["image"] for row in rows] == left
    run = records.read(workdir)
    assert len(run.features) == len(run.labels) == 61
    assert run.names == tuple(left)
    # Another evaluation of the embedding that is there.
    config.eval.n_init = 2
    again = pipeline.run_pipeline(config, workdir)
    assert again["provenance"]["images_skipped"] == 3
    embedding = io.read_arrays(workdir / "embedding.npz")
    assert np.flatnonzero(embedding["unreadable"]).tolist() == list(BAD)
    assert json.loads((workdir / "images.json").read_text())["size"] == 64
