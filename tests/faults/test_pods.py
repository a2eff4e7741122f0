"""Four processes of two devices are as one of eight; one that is killed ends all, which resume."""

import numpy as np
import pytest

from experiments.benchmark import processes
from tests.faults.jobs import Job
from tests.methods import cases

pytestmark = pytest.mark.slow
NAMES = [f"{method}{'+nrcc' * nrcc}" for method, nrcc in cases.EVERY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A job, and its run that was left alone."""
    folder = processes.write_job(tmp_path_factory.mktemp("pod"))
    processes.start(folder, "whole").succeed()
    return folder


@pytest.mark.parametrize("names", [NAMES[i::4] for i in range(4)], ids=str)
def test_twenty_steps_of_every_method_and_k_means(names):
    found = processes.differences(names)
    assert set(names) < set(found)
    assert max(found[name] for name in names) < 1e-10, found
    for metric in ("euclidean", "spherical"):
        assert found[f"labels by {metric} k-means"] == 0


@pytest.mark.parametrize(("place", "rank"), processes.KILLED.items())
def test_one_is_killed(folder, place, rank):
    processes.killed(folder, place, rank)


def test_one_is_killed_in_the_k_means_of_all_hosts(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(900, 5)))
    flags = ("cluster", f"--features={tmp_path}/x.npy", "--method=kmeans", "--k=7")
    one, four = (tmp_path / name / "assignments.csv" for name in ("one", "four"))
    Job([*flags, f"--out={one.parent}"], tmp_path, processes=1, devices=8).succeed()
    command = [*flags, f"--out={four.parent}"]
    processes.ended(Job(command, tmp_path, processes=4, dies=(2, "k-means on all")), 2)
    assert not four.parent.exists()
    Job(command, tmp_path, processes=4).succeed()
    rows = [line.split(",")[:2] for line in one.read_text().splitlines()]
    assert rows == [line.split(",")[:2] for line in four.read_text().splitlines()]
