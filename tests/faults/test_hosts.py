"""`embed`, `cluster` and `predict` on two processes of two devices: as one process."""

import csv

import numpy as np
import pytest

from cluster_jax.cli import cluster, embed
from cluster_jax.data.arrays import Shards
from tests import toy
from tests.faults.jobs import Job

FLAGS = (
    "--config=images", "--config.data.image_size=32",
    "--config.eval.batch_size=16", "--config.data.max_corrupt_fraction=0.1",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images in `photos`, of which one cannot be read, and their features by one process."""
    folder = tmp_path_factory.mktemp("hosts")
    toy.save_by_label(folder / "photos", *toy.images(41, channels=3))
    (folder / "photos" / "0" / "bad.png").write_bytes(b"no image")
    embed.main(_embed(folder, "one.npz")[1:])
    return folder


def _embed(folder, out):
    data = f"--config.data.dir={folder}/photos", "--config.data.labels=folders"
    return "embed", *FLAGS, *data, f"--out={folder}/{out}"


def _assert_same(folder, features, rows):
    one = np.load(folder / "one.npz")
    np.testing.assert_allclose(features, one["features"], rtol=1e-5, atol=1e-5)
    for name in ("labels", "files"):
        np.testing.assert_array_equal(rows[name], one[name])


def _assert_same_clusters(*tables, count=41):
    one, two = (list(csv.reader(table.read_text().splitlines())) for table in tables)
    assert [row[:2] for row in one] == [row[:2] for row in two]
    distances = np.array([[float(row[2]) for row in rows[1:]] for rows in (one, two)])
    np.testing.assert_allclose(*distances, rtol=1e-4, atol=1e-6)
    assert distances.shape == (2, count)


@pytest.mark.slow
def test_parts_of_all_hosts_and_their_clusters(folder):
    Job(_embed(folder, "shards"), folder).succeed()
    shards = Shards(str(folder / "shards"))
    assert [file.name for file in shards.files] == [f"features-0000{i}-of-00002.npy" for i in "01"]
    assert min(np.diff(shards.starts)) > 10
    parts = [np.load(folder / "shards" / f"rows-0000{i}-of-00002.npz") for i in "01"]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in ("labels", "files")}
    _assert_same(folder, shards[:], rows)
    assert not list((folder / "shards").glob("*.parts"))

    command = f"--features={folder}/shards", "--method=kmeans", "--n-clusters=4", "--n-init=2"
    cluster.main([*command, f"--workdir={folder}/one"])
    Job(["cluster", *command, f"--workdir={folder}/two"], folder).succeed()
    _assert_same_clusters(folder / "one" / "assignments.csv", folder / "two" / "assignments.csv")
