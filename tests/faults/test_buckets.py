"""A training in a bucket, on a server that fails each sixtieth request; nothing else is there."""

import json
import os
import time

import numpy as np
import pytest

from cluster_jax.cli import app
from cluster_jax.runs import begin as pipeline
from tests import toy
from tests.faults.gcs_server import CUT, LOST, Server, always, every
from tests.faults.jobs import kill_all
from tests.faults.runs import assert_same, before_step

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # gcsfs looks once: see `gcs_server`
pytestmark = [
    pytest.mark.usefixtures("one_device", "traced_once", "compiled_once"),
    # Of gcsfs and its parts, which close connections when Python ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*quota project.*:UserWarning"),
]
FAILING = (503, CUT, 429, LOST)


@pytest.fixture(scope="module")
def server():
    """One server for all, as TensorStore reads its address once."""
    pytest.importorskip("gcsfs")  # Here: of two processes one has the seconds of its import.
    server = Server("bucket")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    kill_all()
    server.close()


class _Killed(BaseException):
    """What no code but a test's handles."""


def test_a_training_that_is_killed_resumes_bit_for_bit(server, monkeypatch, caplog, tmp_path):
    config, left = toy.config(toy.file(tmp_path)), {}
    pipeline.run_pipeline(config, "gs://bucket/whole", "toy")
    lines = server.files("bucket/whole/")["metrics.jsonl"].splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]

    def kill():
        while "checkpoints/2/commit_success.txt" not in server.files("bucket/killed/"):
            time.sleep(0.01)
        left.update(server.objects)
        raise _Killed

    server.faults.append(every(60, FAILING))
    with monkeypatch.context() as patch:
        before_step(patch, 4, kill)
        with pytest.raises(_Killed):
            pipeline.run_pipeline(config, "gs://bucket/killed", "toy")
    server.objects = left
    assert "results.json" not in server.files("bucket/killed/")
    caplog.set_level("INFO")
    pipeline.run_pipeline(config, "gs://bucket/killed", "toy")
    server.faults.clear()
    assert "the training goes on after step 2" in caplog.text
    for name in ("whole", "killed"):
        for file, content in server.files(f"bucket/{name}/").items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert_same(tmp_path / "whole", tmp_path / "killed")


TRAIN = (
    "train", "--config=nrcc_digits", "--config.data.limit=64", "--config.train.batch_size=16",
    "--config.optimizer.warmup=1 step", "--config.train.duration=20 steps",
)  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("images", "gs://bucket/photos"),
        ("cluster", "--features=gs://bucket/x.npy"),
        ("embed", "--config=images", "--config.data.dir=photos", "--out=gs://bucket/x.npz"),
        ("update", "--workdir=gs://bucket/run"),
    ],
    ids=" ".join,
)
def test_photos_and_embeddings_are_no_buckets_matter(tmp_path, monkeypatch, refused, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(40, 3)))
    said = "must be a file or folder of this machine; got an address: mount the bucket"
    assert said in refused(app.main, *command)


def test_a_bucket_that_cannot_be_used(server, refused):
    server.faults.append(always(403))
    assert refused(app.main, *TRAIN, "--workdir=gs://bucket/refused", code=1)
    server.faults.clear()


def test_a_set_in_a_bucket_that_fails(server, refused):
    """The sentence names the bucket, of which the library says the status alone."""
    server.faults.append(always(401))
    flags = "--config=nrcc_cifar10", "--config.data.dir=gs://bucket/sets", "--workdir=here"
    said = refused(app.main, "train", *flags, code=1)
    assert "gs://bucket/sets cannot be read now; got HttpError: , 401" in said
    server.faults.clear()
