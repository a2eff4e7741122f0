"""Two processes of two devices: where one ends, both do within a minute; and the job resumes."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest

from cluster_jax.cli import train
from cluster_jax.core import io
from cluster_jax.runs import run as records
from tests import toy
from tests.faults.jobs import Job

STEPS = 300
FLAGS = (
    "--config.network.width=4", "--config.network.projector.hidden=16",
    "--config.network.projector.out=8", "--config.train.batch_size=16",
    f"--config.train.duration={STEPS} steps", "--config.train.log_every=10",
    "--config.train.checkpoint_every=10", "--config.optimizer.warmup=1 step",
    "--config.eval.reduce=pca", "--config.eval.linear_probe.epochs=1",
    "--config.data.name=folder", "--config.data.cache_mb=0", "--config.nrcc.weight=0.0",
)  # fmt: skip


def _job(folder, workdir, *more):
    """A training on the images in `photos` of a folder, whose files are read in every step."""
    flags = ["train", "--config=nrcc_digits", *FLAGS, f"--config.data.dir={folder}/photos"]
    return Job([*flags, f"--workdir={workdir}", *more], workdir)


def _photos(folder):
    toy.save(folder / "photos", toy.images()[0])
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the job gives when nothing happens."""
    folder = _photos(tmp_path_factory.mktemp("whole"))
    codes, errors = _job(folder, folder / "run").end(400)
    assert codes == [0, 0], errors
    return folder


def _assert_resumes(whole, workdir):
    """The same command ends as the run that nothing happened to, bit for bit."""
    codes, errors = _job(whole, workdir).end(400)
    assert codes == [0, 0], errors
    names = "embedding.npz", "encoder.npz"
    one, two = ([io.read_arrays(run / name) for name in names] for run in (whole / "run", workdir))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def _interrupted(job, number, rank):
    """The job with one step saved everywhere, after a signal to one of its processes."""
    job.wait_for("checkpoints/10").hosts[rank].send_signal(number)
    codes, errors = job.end()
    assert codes == [75, 75], errors
    assert all("Run the same command again to resume." in text for text in errors)
    assert all("Traceback" not in text for text in errors)
    saved = [int(file.name) for file in (job.workdir / "checkpoints").glob("[0-9]*")]
    assert max(saved) not in (10, STEPS)
    return job


@pytest.mark.slow
def test_a_signal_to_one_process_ends_both(tmp_path):
    _interrupted(_job(_photos(tmp_path), tmp_path / "run"), signal.SIGTERM, 1)


SHORT = (
    "--config.train.duration=4 steps", "--config.network.name=mlp", "--config.data.labels=folders",
    "--config.eval.knn=(1, 5)", "--config.eval.n_init=2",
)  # fmt: skip


def _clustered_by_one(workdir, folder):
    """The run in a folder again, clustered by one process from the features that it has."""
    shutil.copytree(workdir, folder)
    for name in ("run-1.npz", "run-2.npz", "results.json", "report.html", "assignments.csv"):
        (folder / name).unlink(missing_ok=True)
    train.main([f"--workdir={folder}"])
    return folder


def _not_clustered(workdir, folder):
    """The run in a folder again, with its features alone."""
    folder.mkdir()
    for name in ("config.json", "images.json", "embedding.npz", "encoder.npz", "metrics.jsonl"):
        shutil.copy(workdir / name, folder)
    return folder


def _assert_same_results(one, two):
    """Tables, clusters of k-means and all metrics, up to rounding."""
    tables = [toy.table(folder) for folder in (one, two)]
    for name in tables[0][0]:
        columns = [[row[name] for row in table] for table in tables]
        if name == "distance":
            np.testing.assert_allclose(*(np.array(c, float) for c in columns), atol=1e-5)
        else:
            assert columns[0] == columns[1], name
    runs = [records.read(folder) for folder in (one, two)]
    np.testing.assert_array_equal(runs[0].kmeans_labels, runs[1].kmeans_labels)
    metrics = [run.results["metrics"] for run in runs]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *map(_numbers, metrics))
    assert metrics[0]["knn"]["5"] is not None
    assert metrics[0]["linear_probe"] is not None


def _numbers(metrics):
    """The metrics that are numbers; a verdict is a text."""
    is_text = lambda value: np.nan if isinstance(value, str) else value  # noqa: E731
    return jax.tree.map(is_text, metrics)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """A folder with photos, and the run of a job on them."""
    folder = tmp_path_factory.mktemp("clustered")
    toy.save_by_label(folder / "photos", *toy.images())
    _job(folder, folder / "run", *SHORT).succeed(400)
    return folder


def test_a_job_ends_with_clusters_and_a_page_as_one_process_does(clustered, tmp_path):
    assert "nrcc_digits" in (clustered / "run" / "report.html").read_text()
    _assert_same_results(_clustered_by_one(clustered / "run", tmp_path / "one"), clustered / "run")


@pytest.mark.slow
def test_a_job_embeds_by_the_network_of_a_training(clustered, tmp_path):
    """Each process a part of the images, with their labels."""
    run = clustered / "run"
    Job(["embed", f"--workdir={run}", "--split=train", f"--out={tmp_path}/parts"], run).succeed()
    features = [np.load(tmp_path / "parts" / f"features-0000{i}-of-00002.npy") for i in "01"]
    labels = [np.load(tmp_path / "parts" / f"rows-0000{i}-of-00002.npz")["labels"] for i in "01"]
    stored = io.read_arrays(run / "embedding.npz")
    np.testing.assert_allclose(np.concatenate(features), stored["projection"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate(labels), stored["labels"])
    assert min(len(part) for part in labels) > 20


# A table of one's own, of one short training.
TABLE = """
tables:
  short:
    title: Four steps
    metrics: ACC 5-NN
    rows:
    - - short
      - config: nrcc_digits
        changes:
          train.duration: 4 steps
          train.batch_size: 16
          optimizer.warmup: 1 step
          network.name: mlp
          network.width: 4
          nrcc.weight: 0.0
          data.limit: 64
          eval.reduce: pca
          eval.linear_probe.epochs: 1
      - kmeans
"""


@pytest.mark.slow
def test_a_table_of_ones_own_on_two_processes(tmp_path):
    """The first one writes and prints, once."""
    (tmp_path / "mine.yaml").write_text(TABLE)
    command = (f"{tmp_path}/mine.yaml", "--seeds", "5", f"--runs={tmp_path}/runs")
    job = Job(command, tmp_path, module="experiments.run")
    ends = [host.communicate(timeout=300) for host in job.hosts]
    assert [host.returncode for host in job.hosts] == [0, 0], ends
    (said, _), (silent, _) = ends
    assert "| short |" in said
    assert "| short |" not in silent
    (line,) = (tmp_path / "mine.jsonl").read_text().splitlines()
    scores = json.loads(line)["metrics"]
    assert 0 < scores["kmeans"]["acc"] < 1
    assert 0 < scores["knn"]["5"] < 1


@pytest.mark.slow
def test_a_job_clusters_a_sample_as_one_process_does(clustered, tmp_path):
    workdir = shutil.copytree(clustered / "run", tmp_path / "run")
    _job(clustered, workdir, *SHORT, "--config.eval.sample=40").succeed(400)
    assert records.read(workdir).results["metrics"]["gridshift"]["rows_clustered"] == 40
    _assert_same_results(_clustered_by_one(workdir, tmp_path / "one"), workdir)


# A clusterer of one's own that takes longer than the others wait.
SLOW = """
import time

import numpy as np

from cluster_jax.core import hosts

hosts.LONGEST_WAIT = 3


def fit(x, n_clusters, seed):
    time.sleep(0 if hosts.jax.process_count() == 1 else 600)
    return np.arange(len(x)) % 3
"""


@pytest.mark.slow
def test_a_job_ends_if_the_first_process_clusters_too_long(clustered, tmp_path, monkeypatch):
    """And one process goes on."""
    (tmp_path / "slow_clusters.py").write_text(SLOW)
    workdir = _not_clustered(clustered / "run", tmp_path / "run")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    job = _job(clustered, workdir, *SHORT, "--config.eval.method=slow_clusters")
    codes, errors = job.end(120)
    assert codes == [75, 75], errors
    assert all("have waited 0.05 minutes for the first one" in text for text in errors), errors
    assert all("Traceback" not in text for text in errors)
    train.main([f"--workdir={workdir}"])
    assert records.read(workdir).results["metrics"]["slow_clusters"]["n_large"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("clustering; 1 of 2 hosts wait, at most 15 minutes\n", 1),
        ("k-means, k-NN", 0),
        ("writing the report", 0),
    ],
    ids=["clustering", "k-means", "report"],
)
def test_an_evaluation_that_is_killed_goes_on(clustered, tmp_path, line, rank):
    workdir = _not_clustered(clustered / "run", tmp_path / "run")
    job = _job(clustered, workdir, *SHORT)
    while not (said := job.hosts[0].stdout.readline()).startswith(line):
        assert said, job.end()
    job.hosts[rank].kill()
    codes, errors = job.end()
    assert codes[1 - rank] not in (0, 75), errors
    assert not (workdir / "results.json").exists()
    _job(clustered, workdir, *SHORT).succeed(400)
    _assert_same_results(clustered / "run", workdir)


@pytest.mark.slow
def test_a_process_that_is_killed(whole, tmp_path):
    job = _job(whole, tmp_path / "run").wait_for("checkpoints/10")
    job.hosts[1].kill()
    codes, errors = job.end()
    assert codes[0] not in (0, 75), errors
    _assert_resumes(whole, job.workdir)
