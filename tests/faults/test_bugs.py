"""A bug keeps its traceback: only a user's value becomes one sentence."""

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import cluster, images, train
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.losses import infonce
from tests.cli.test_train import TINY

pytestmark = pytest.mark.usefixtures("one_device")


def _bug(error):
    def broken(*arguments, **options):
        raise error

    return broken


@pytest.mark.parametrize(
    "error", [TypeError("2 arguments"), ValueError("shapes (3,) and (4,)")], ids=["type", "value"]
)
def test_a_bug_in_a_loss(tmp_path, monkeypatch, error):
    monkeypatch.setattr(infonce, "info_nce_views", _bug(error))
    with pytest.raises(type(error)) as caught:
        train.main(["--config=nrcc_digits", *TINY, f"--workdir={tmp_path / 'run'}"])
    assert caught.value is error


def test_shapes_that_do_not_fit_in_a_loss(tmp_path, monkeypatch):
    def broken(a, b, **options):
        return (a[:-1] + b).sum(), {}

    monkeypatch.setattr(infonce, "info_nce_views", broken)
    with pytest.raises(TypeError, match="shape"):
        train.main(["--config=nrcc_digits", *TINY, f"--workdir={tmp_path / 'run'}"])


def test_a_bug_in_a_clusterer(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(30, 4)))
    error = ValueError("all rows are equal")
    monkeypatch.setattr(SmoothTree, "fit_rows", _bug(error))
    with pytest.raises(ValueError, match="rows") as caught:
        cluster.main([f"--features={tmp_path / 'x.npy'}", f"--out={tmp_path / 'run'}"])
    assert caught.value is error


def test_a_bug_in_a_reader(tmp_path, monkeypatch):
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    error = TypeError("an integer is required")
    monkeypatch.setattr("cluster_jax.data.folder.find", _bug(error))
    with pytest.raises(TypeError) as caught:
        images.main([str(tmp_path), f"--out={tmp_path / 'run'}"])
    assert caught.value is error
