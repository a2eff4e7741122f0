"""Every command on buckets, on a server that fails each twentieth request."""

import asyncio
import io
import itertools
import json
import re
import time

import numpy as np
import pytest

from cluster_jax.cli import app
from cluster_jax.core import buckets, disk
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import checkpoint, progress
from tests import toy
from tests.faults import gcs_server
from tests.faults.gcs_server import CUT, LOST, Server, always, every
from tests.faults.jobs import Job, kill_all
from tests.faults.runs import before_step

pytest.importorskip("gcsfs")
pytestmark = [
    pytest.mark.usefixtures("one_device", "traced_once", "compiled_once", "shallow_lite"),
    # Of gcsfs and its parts, which close connections when Python ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*quota project.*:UserWarning"),
]
FAILING = (503, CUT, 429, LOST)


@pytest.fixture(scope="module")
def store():
    """One server for all, as TensorStore reads its address once; who waits waits a fiftieth."""
    store, sleep = Server("bucket"), asyncio.sleep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", lambda seconds, *more: sleep(seconds / 50, *more))
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    kill_all()
    store.close()


@pytest.fixture
def server(store):
    """The server without faults yet, and afterwards with the objects that it had before."""
    objects = dict(store.objects)
    store.faults.clear()
    store.requests.clear()
    store.seconds, store.most = 0.0, 0
    yield store
    store.faults.clear()
    store.objects = objects


class _Killed(BaseException):
    """What no code but a test's handles."""


@pytest.mark.parametrize("look", [checkpoint.steps, lambda x: _opened(x).close()])
@pytest.mark.parametrize("number", range(1, 9))
def test_a_folder_of_checkpoints_that_goes_while_it_is_looked_at(server, look, number):
    """A save that was killed left a file, with which the folder goes at one of the requests."""
    name, asked = "run/checkpoints/2/_CHECKPOINT_METADATA", itertools.count(1)
    server.put("bucket", name, b"{}")

    def gone(request):
        if request.kind == "list" and next(asked) == number:
            server.objects.pop(("bucket", name), None)

    server.faults.append(gone)
    look(buckets.path("gs://bucket/run/checkpoints"))
    server.objects.pop(("bucket", name), None)


def _opened(folder):
    return checkpoint.Checkpoints(folder, keep=2)


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory, one_device, traced_once, compiled_once):
    """A training in `gs://bucket/whole` that was left alone: its config and its requests."""
    config = toy.config(toy.file(tmp_path_factory.mktemp("images")), train={"log_every": 1})
    store.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "SECONDS", 3600.0)
        pipeline.run_pipeline(config, "gs://bucket/whole", "toy")
    return config, [*store.requests]


def test_few_requests(server, trained):
    """As many as of 1,000 steps: what counts are checkpoints, and seconds."""
    server.requests = trained[1]
    # A line of the log that is a request, and one of TensorBoard, would be six more.
    assert server.count(without="checkpoints") <= 40
    each = (server.count() - server.count(without="checkpoints")) / 2
    assert 75 < each < 225
    files = server.files("bucket/whole/")
    lines = files["metrics.jsonl"].splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert {"checkpoints", "tensorboard"} <= {name.split("/")[0] for name in files}
    assert not [name for name in files if "partial" in name or "writable" in name]


@pytest.mark.parametrize(
    "where",
    [
        "^(?!.*(ocdbt|/d/))",  # TensorStore waits for a second and more.
        pytest.param("", marks=pytest.mark.slow),
    ],
    ids=["few fail", "all fail"],
)
def test_a_training_that_is_killed_resumes_bit_for_bit(server, trained, monkeypatch, caplog, where):
    """It ends as one that was left alone."""
    config, left = trained[0], {}

    def kill():
        while "checkpoints/2/commit_success.txt" not in server.files("bucket/killed/"):
            time.sleep(0.01)
        left.update(server.objects)
        raise _Killed

    server.faults.append(every(20, FAILING, where=where))
    with monkeypatch.context() as patch:
        before_step(patch, 4, kill)
        with pytest.raises(_Killed):
            pipeline.run_pipeline(config, "gs://bucket/killed", "toy")
    server.objects = left
    assert "results.json" not in server.files("bucket/killed/")
    caplog.set_level("INFO")
    pipeline.run_pipeline(config, "gs://bucket/killed", "toy")
    assert "the training goes on after step 2" in caplog.text
    _assert_same(server, "killed", "whole")


def _assert_same(server, first, second):
    """The same figures, clusters and embeddings bit for bit; images may have other names."""
    one, two = server.files(f"bucket/{first}/"), server.files(f"bucket/{second}/")
    metrics = [json.loads(files["results.json"])["metrics"] for files in (one, two)]
    assert metrics[0] == metrics[1]
    for name in ("embedding.npz", "clusters.npz"):
        left, right = (np.load(io.BytesIO(files[name])) for files in (one, two))
        assert left.keys() == right.keys()
        for key, array in left.items():
            if array.dtype.kind != "U":
                np.testing.assert_array_equal(right[key], array)


def _ends(arguments, capsys):
    """Exit code and last line of a command."""
    with pytest.raises(SystemExit) as stop:
        app.main(arguments)
    return stop.value.code, capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "command", [["update", "--workdir=gs://bucket/run"], ["report", "x", "--export=gs://bucket/x"]]
)
def test_what_needs_a_local_folder(server, capsys, command):
    code, line = _ends(command, capsys)
    assert code == 2
    assert re.search("must be a local (folder|one); got gs://bucket/", line)
    assert not server.count("write")


TRAIN = ["train", "--config=nrcc_digits", "--config.train.duration=1 step"]


@pytest.mark.parametrize(
    ("fault", "path", "said"),
    [
        (None, "gs://no-such-bucket/run", "no such file or bucket"),
        (None, "gs://No_Bucket/run", "Invalid bucket name"),
        (always(403, "write"), "gs://bucket/run", "403: The caller does not have permission"),
        (always(403), "gs://bucket/run", "403: The caller does not have permission"),
        (always(401), "gs://bucket/run", "Anonymous caller does not have access"),
        (always(412, "write"), "gs://bucket/run", "412"),
        (always(429), "gs://bucket/run", "The rate limit of the project"),
    ],
)  # fmt: skip
def test_a_bucket_that_cannot_be_written(server, capsys, monkeypatch, fault, path, said):
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    server.faults += [fault] if fault else []
    before = server.files()
    code, line = _ends([*TRAIN, f"--workdir={path}"], capsys)
    assert code == 1
    assert line.startswith("error: gs://")
    assert said in line
    assert server.files() == before


def test_a_busy_server_is_waited_for(server, monkeypatch, caplog):
    """gcsfs itself gives up after half a minute."""
    slept = []

    async def sleep(seconds, *_):
        slept.append(seconds)

    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", sleep)
    server.faults.append(lambda request: 429 if len(server.requests) <= 20 else None)
    caplog.set_level("INFO")
    buckets.write("gs://bucket/patient", b"1")
    assert sum(slept) > 60
    (line,) = (record.getMessage() for record in caplog.records if record.name == "cluster_jax")
    assert re.fullmatch(r"gs://bucket does not answer \(The rate .*\): trying .* s", line)
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    server.faults[:] = [always(429)]
    with pytest.raises(disk.WriteError, match=r"gs://bucket/x cannot be written \(.* limit of the"):
        disk.check(buckets.epath.Path("gs://bucket/x"))


@pytest.mark.slow
def test_two_processes_and_a_bucket(server, tmp_path):
    """One is killed in the training; the same command ends as if nothing had happened."""
    flags = [
        "train", "--config=nrcc_digits", "--config.network.width=4",
        "--config.network.projector.hidden=16", "--config.network.projector.out=8",
        "--config.train.batch_size=16", "--config.train.duration=20 steps",
        "--config.train.log_every=10", "--config.train.checkpoint_every=10",
        "--config.optimizer.warmup=1 step", "--config.eval.reduce.method=pca",
        "--config.eval.linear_probe.epochs=1", "--config.data.limit=64",
    ]  # fmt: skip
    server.faults.append(every(20, FAILING))
    Job([*flags, "--workdir=gs://bucket/two"], tmp_path).succeed()
    job = Job([*flags, "--workdir=gs://bucket/dies"], tmp_path)
    while "checkpoints/10/commit_success.txt" not in server.files("bucket/dies/"):
        assert all(host.poll() is None for host in job.hosts), job.end()
        time.sleep(0.1)
    job.hosts[1].kill()
    codes, errors = job.end()
    assert codes[0] not in (0, 75), errors
    Job([*flags, "--workdir=gs://bucket/dies"], tmp_path).succeed()
    _assert_same(server, "two", "dies")


def test_the_faults_are_met(server):
    server.faults.append(gcs_server.every(2, FAILING))
    for i in range(8):
        buckets.write(f"gs://bucket/met/{i}", b"x")
    assert buckets.names("gs://bucket/met") == {str(i) for i in range(8)}
    assert server.count() > 9


@pytest.mark.parametrize(
    ("answer", "where", "reason"),
    [
        (403, "ocdbt|/d/", "permission"),  # of TensorStore
        (403, "checkpoints/2", "permission"),  # of Orbax, by gcsfs
        (412, "checkpoints", "changed meanwhile (412)"),
        (412, "manifest", "timed out after 1."),  # TensorStore would try for ever.
    ],
)
def test_a_checkpoint_that_cannot_be_written(server, trained, monkeypatch, answer, where, reason):
    """The reason is the library's own; what was there stays."""
    monkeypatch.setattr(buckets, "PATIENCE", 1.0)
    server.faults.append(always(answer, "write", where=where))
    with pytest.raises(disk.WriteError) as caught:
        pipeline.run_pipeline(trained[0], "gs://bucket/refused", "toy")
    said = str(caught.value)
    assert said.startswith("gs://bucket/refused/checkpoints cannot be written (")
    assert reason in said.lower()
    assert "free space" not in said
    assert not any("commit_success" in name for name in server.files("bucket/refused/"))
