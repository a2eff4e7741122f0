"""A run of the command `cluster`, which the modules about states copy and change."""

import shutil

import numpy as np
import pytest

from cluster_jax.cli import cluster


@pytest.fixture(scope="module")
def first(request, tmp_path_factory):
    """A run on the rows `FIRST` of a module; never to be changed."""
    folder = tmp_path_factory.mktemp("first")
    np.save(folder / "rows.npy", request.module.FIRST)
    cluster.main([f"--features={folder}/rows.npy", f"--workdir={folder}/run", "--reduce=pca"])
    return folder / "run"


@pytest.fixture
def run(first, tmp_path):
    """A copy of it."""
    return shutil.copytree(first, tmp_path / "run")
