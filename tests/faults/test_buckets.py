"""Every command on buckets, on a server that fails each twentieth request."""

import asyncio
import csv
import io
import itertools
import json
import time

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import app
from cluster_jax.core import buckets, disk
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches, datasets, scan
from cluster_jax.data import folder as folders
from cluster_jax.data.images import DataConfig
from cluster_jax.data.shards import Shards
from cluster_jax.encoding import embed
from cluster_jax.pipeline import plan
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import checkpoint, progress
from tests import toy
from tests.data import test_packed
from tests.faults import gcs_server
from tests.faults.gcs_server import CUT, LOST, Server, always, every
from tests.faults.jobs import Job, kill_all
from tests.faults.runs import assert_same, before_step, left_by_a_kill

pytest.importorskip("gcsfs")
pytestmark = [
    # Of gcsfs and its parts, which close connections when Python ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*quota project.*:UserWarning"),
]
FAILING = (503, CUT, 429, LOST)
# Of a workdir, what is the same bit for bit in two runs.
SAME = ("assignments.csv", "clusters.npz", "embedding.npz")


@pytest.fixture(scope="module")
def store():
    """One server for all: TensorStore reads its address once."""
    store = Server("bucket")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    kill_all()
    store.close()


@pytest.fixture
def server(store, monkeypatch):
    """The server without faults yet; who waits for it waits a fiftieth of the time."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *more: sleep(seconds / 50, *more))
    store.faults.clear()
    store.requests.clear()
    store.seconds, store.most = 0.0, 0
    yield store
    store.faults.clear()


@pytest.fixture(scope="module")
def photos(store):
    """41 images in four folders of `gs://bucket/photos`."""
    for i, (image, label) in enumerate(zip(*toy.images(41, channels=3), strict=True)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        store.put("bucket", f"photos/{label}/{i:02}.png", file.getvalue())
    return "gs://bucket/photos"


def _config(store, folder, **sections):
    path = toy.file(folder)
    store.put("bucket", "toy.npz", path.read_bytes())
    return toy.config("gs://bucket/toy.npz", **sections)


def _same(store, first, second):
    one, two = store.files(f"bucket/{first}/"), store.files(f"bucket/{second}/")
    for name in SAME:
        assert one[name] == two[name], name
    metrics = [json.loads(files["results.json"])["metrics"] for files in (one, two)]
    assert metrics[0] == metrics[1]
    assert one["metrics.jsonl"].count(b"\n") == two["metrics.jsonl"].count(b"\n")


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


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_training_that_is_killed_resumes_bit_for_bit(server, tmp_path, monkeypatch):
    config = _config(server, tmp_path)
    pipeline.run_pipeline(config, "gs://bucket/whole", "toy")
    whole = server.files("bucket/whole/")
    assert {"checkpoints", "tensorboard"} <= {name.split("/")[0] for name in whole}
    assert not [name for name in whole if "partial" in name or "writable" in name]

    def leave():
        """What is in the bucket at this moment."""
        for name, data in server.files("bucket/failing/").items():
            server.put("bucket", f"killed/{name}", data)

    server.faults.append(every(20, FAILING))
    before_step(monkeypatch, 4, leave)
    pipeline.run_pipeline(config, "gs://bucket/failing", "toy")
    _same(server, "whole", "failing")
    assert "results.json" not in server.files("bucket/killed/")
    pipeline.run_pipeline(config, "gs://bucket/killed", "toy")
    _same(server, "whole", "killed")


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_few_requests(server, tmp_path, monkeypatch):
    """As many with 40 steps as with 1,000: what counts are checkpoints, and seconds."""
    monkeypatch.setattr(progress, "SECONDS", 3600.0)
    train = {"duration": "40 steps", "log_every": 1, "checkpoint_every": 20}
    config = _config(server, tmp_path, train=train)
    pipeline.run_pipeline(config, "gs://bucket/few", "toy")
    assert server.count(without=r"checkpoints|toy\.npz") <= 40
    each = (server.count() - server.count(without="checkpoints")) / 2
    assert 0.5 < each / plan._PER_CHECKPOINT < 1.5
    lines = server.files("bucket/few/")["metrics.jsonl"].splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 41))


def test_photos_are_read_many_at_once(server, photos):
    server.seconds = 0.05
    section = DataConfig("folder", photos, None, "label", 32, "bicubic", None, 100.0, 0.0)
    dataset = folders.load(section)
    assert dataset.size == 41
    assert server.kinds() == {"list": 1, "read": 41}
    assert server.most >= 16


def test_a_folder_of_photos(server, photos):
    server.put("bucket", "photos/0/@eaDir/thumb.jpg", b"")
    server.put("bucket", "photos/0/notes.txt", b"")
    server.put("bucket", "photos/0/", b"")  # marks a folder
    found = scan.find(photos)
    assert len(found.names) == 41
    assert found.ignored == ((".txt", 1), ("in @eaDir", 1))
    for name in ("0/@eaDir/thumb.jpg", "0/notes.txt", "0/"):
        del server.objects["bucket", f"photos/{name}"]


def test_shards(server):
    rows = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float16)
    for i in range(3):
        file = io.BytesIO()
        np.save(file, rows[100 * i :][:100])
        server.put("bucket", f"shards/part-{i}.npy", file.getvalue())
    shards = Shards("gs://bucket/shards")
    np.testing.assert_array_equal(shards[:], rows.astype(np.float32))
    some = np.array([299, 0, 150, 99])
    np.testing.assert_array_equal(shards[some], rows[some].astype(np.float32))
    name = ("bucket", "shards/part-1.npy")
    server.put(*name, server.objects[name].data[:-4])
    with pytest.raises(InputError, match=r"part-1\.npy must be a complete .npy file"):
        Shards("gs://bucket/shards")[:]


class _Killed(BaseException):
    """What no code but a test's handles."""


def _resumed(monkeypatch, *arguments):
    """Runs a command that is killed in its embedding, and then goes on after its first part."""
    starts, stream = [], batches.evaluation

    def dying(*given, start=0, **options):
        starts.append(start)
        for i, batch in enumerate(stream(*given, start=start, **options)):
            if i == 2 and len(starts) == 1:
                raise _Killed
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(batches, "evaluation", dying)
        patch.setattr(embed, "SECONDS", -1.0)  # Each batch is a part.
        with pytest.raises(_Killed):
            app.main(arguments)
        app.main(arguments)
    assert starts[:2] == [0, 32]


@pytest.mark.usefixtures("shallow_lite")
def test_images_and_what_follows(server, photos, monkeypatch):
    """`images`, `predict`, `report`, `export` and `embed` on one folder of photos."""
    flags = ["--config.data.image_size=32", "--config.eval.batch_size=16"]
    server.faults.append(every(20, FAILING))
    _resumed(monkeypatch, "images", photos, "--out=gs://bucket/images", *flags)
    new = "--out=gs://bucket/new.csv", "--report=gs://bucket/new.html"
    app.main(["predict", "--workdir=gs://bucket/images", f"--images={photos}", *new])
    app.main(["report", "gs://bucket/images"])
    app.main(["export", "--workdir=gs://bucket/images", "--out=gs://bucket/encoder"])
    data = "embed", "--config=images", *flags, f"--config.data.dir={photos}"
    app.main([*data, "--out=gs://bucket/one.npz"])
    _resumed(monkeypatch, *data, "--out=gs://bucket/shares")
    made = server.files("bucket/")
    assert {"new.csv", "new.html", "encoder", "one.npz", "images/report.html"} <= made.keys()
    assert not [name for name in made if ".parts" in name]
    one = np.load(io.BytesIO(made["one.npz"]))["features"]
    np.testing.assert_array_equal(Shards("gs://bucket/shares")[:], one)
    (own,) = (
        x
        for x in np.load(io.BytesIO(made["images/embedding.npz"])).values()
        if x.shape == one.shape
    )
    np.testing.assert_array_equal(own, one)
    app.main(["cluster", "--features=gs://bucket/one.npz", "--out=gs://bucket/clusters"])
    kmeans = "--features=gs://bucket/shares", "--method=kmeans", "--k=4"
    app.main(["cluster", *kmeans, "--out=gs://bucket/kmeans"])
    assert {"clusters/results.json", "kmeans/results.json"} <= server.files("bucket/").keys()


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_training_on_tars(server, tmp_path, monkeypatch):
    """Killed and resumed it ends as one on local tars."""
    config = test_packed.training(tmp_path / "shards", "tar")
    for path in (tmp_path / "shards").iterdir():
        server.put("bucket", f"shards/{path.name}", path.read_bytes())
    pipeline.run_pipeline(config, tmp_path / "local", "toy")
    config.data.dir = "gs://bucket/shards"
    server.faults.append(every(20, FAILING))
    with monkeypatch.context() as patch:
        before_step(patch, 4, lambda: left_by_a_kill(tmp_path / "run", tmp_path / "killed"))
        pipeline.run_pipeline(config, tmp_path / "run", "toy")
    pipeline.run_pipeline(config, tmp_path / "killed", "toy")
    assert_same(tmp_path / "killed", tmp_path / "local")


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_packed_images(server, tmp_path, kind):
    """Pixels and classes are those of local files; an index takes few requests."""
    test_packed.training(tmp_path / "x", kind)
    local = test_packed.load(tmp_path / "x", image_size=8)
    for path in (tmp_path / "x").iterdir():
        server.put("bucket", f"x-{kind}/{path.name}", path.read_bytes())
    server.put("bucket", f"x-{kind}/.cache/y.{kind}", b"")
    server.faults.append(every(20, FAILING))
    remote = test_packed.load(f"gs://bucket/x-{kind}", image_size=8)
    assert (remote.sources, remote.label_names) == (local.sources, local.label_names)
    np.testing.assert_array_equal(remote.images, local.images)
    np.testing.assert_array_equal(remote.labels, local.labels)
    server.faults.clear()
    server.requests.clear()
    scan.find(f"gs://bucket/x-{kind}")
    assert len(server.requests) <= 1 + 2 * 4  # a list; facts, and parts of each file
    alone = f"gs://bucket/x-{kind}/shard-1.{kind}"
    assert datasets.load_new(alone, test_packed.CONFIG, (32, 32, 3)).size == 20


@pytest.mark.usefixtures("shallow_lite")
def test_commands_on_packed_images(server, tmp_path):
    for part in range(2):
        rows = range(20 * part, 20 * part + 20)
        data = test_packed.write_parquet(tmp_path / "x.parquet", rows).read_bytes()
        server.put("bucket", f"packed/{part}.parquet", data)
    where, flags = "gs://bucket/packed", ["--config.data.image_size=32"]
    out = tmp_path / "run"
    app.main(["images", where, f"--out={out}", f"--export={tmp_path / 'sorted'}", *flags])
    assert len([*(tmp_path / "sorted").glob("*/*-*.jpg")]) == 40
    app.main(["predict", f"--workdir={out}", f"--images={where}", f"--report={out}/new.html"])
    before, after = (
        {row["image"]: row["cluster"] for row in csv.DictReader((out / name).open())}
        for name in ("assignments.csv", "predictions.csv")
    )
    assert before == after
    assert "0.parquet/3-3.jpg" in after
    app.main(["embed", "--config=images", *flags, f"--config.data.dir={where}", f"--out={out}.npz"])
    assert len(np.load(f"{out}.npz")["features"]) == 40


def _ends(arguments, capsys):
    """Exit code and last line of a command."""
    with pytest.raises(SystemExit) as stop:
        app.main(arguments)
    return stop.value.code, capsys.readouterr().err.strip().splitlines()[-1]


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


@pytest.mark.parametrize(
    ("fault", "path", "said"),
    [
        (None, "gs://no-such-bucket/photos", "must exist"),
        (None, "gs://bucket/no-photos", "must be an existing folder"),
        (None, "gs://No_Bucket/photos", "Invalid bucket name"),
        (always(403), "gs://bucket/photos", "403: The caller does not have permission"),
        (always(401), "gs://bucket/photos", "Anonymous caller does not have access"),
        (always(403, "read"), "gs://bucket/photos", "403: The caller does not have permission"),
        (always(403, "read"), "gs://bucket/tars", "tars/1.tar may not be used (403: The caller"),
        (always(403, "read"), "gs://bucket/rows", "rows/1.parquet may not be used (403: The"),
        (None, "gs://bucket/tars/1.tar", "1.tar must be a whole tar; got its end missing"),
        (None, "gs://bucket/tars/2.tar", "tars/2.tar must exist; got no such file or bucket"),
    ],
)  # fmt: skip
def test_images_that_cannot_be_read(server, photos, capsys, tmp_path, fault, path, said):
    packed = test_packed.write_tar(tmp_path / "1.tar", {"1.jpg": test_packed.jpeg(1)})
    server.put("bucket", "tars/1.tar", packed.read_bytes()[:1536])
    rows = test_packed.write_parquet(tmp_path / "1.parquet")
    server.put("bucket", "rows/1.parquet", rows.read_bytes())
    server.faults += [fault] if fault else []
    code, line = _ends(["images", path, f"--out={tmp_path}/run"], capsys)
    assert code == 2
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "run").exists()


def test_a_busy_server_is_waited_for(server, monkeypatch):
    """gcsfs itself gives up after half a minute."""
    slept = []

    async def sleep(seconds, *_):
        slept.append(seconds)

    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", sleep)
    server.faults.append(lambda request: 429 if len(server.requests) <= 20 else None)
    buckets.write("gs://bucket/patient", b"1")
    assert sum(slept) > 60
    monkeypatch.setattr(buckets, "PATIENCE", 0.0)
    server.faults[:] = [always(429)]
    with pytest.raises(disk.WriteError, match=r"gs://bucket/x cannot be written \(.* limit of the"):
        disk.check(buckets.epath.Path("gs://bucket/x"))


@pytest.mark.slow
def test_two_processes_and_a_bucket(server, photos, tmp_path):
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
    while not any("commit_success" in name for name in server.files("bucket/dies/")):
        assert all(host.poll() is None for host in job.hosts), job.end()
        time.sleep(0.1)
    job.hosts[1].kill()
    codes, errors = job.end()
    assert codes[0] not in (0, 75), errors
    Job([*flags, "--workdir=gs://bucket/dies"], tmp_path).succeed()
    _same(server, "two", "dies")


def test_the_faults_are_met(server):
    server.faults.append(gcs_server.every(2, FAILING))
    for i in range(8):
        buckets.write(f"gs://bucket/met/{i}", b"x")
    assert buckets.names("gs://bucket/met") == {str(i) for i in range(8)}
    assert server.count() > 9


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize(
    ("answer", "where", "reason"),
    [
        (403, "ocdbt|/d/", "permission"),  # of TensorStore
        (403, "checkpoints/2", "permission"),  # of Orbax, by gcsfs
        (412, "checkpoints", "changed by another one (412)"),
    ],
)
def test_a_checkpoint_that_cannot_be_written(server, tmp_path, answer, where, reason):
    """The reason is the library's own; what was there stays."""
    config = _config(server, tmp_path)
    server.faults.append(always(answer, "write", where=where))
    with pytest.raises(disk.WriteError) as caught:
        pipeline.run_pipeline(config, "gs://bucket/refused", "toy")
    said = str(caught.value)
    assert said.startswith("gs://bucket/refused/checkpoints cannot be written (")
    assert reason in said.lower()
    assert "free space" not in said
    assert not any("commit_success" in name for name in server.files("bucket/refused/"))
    server.faults.clear()
    for name in server.files("bucket/refused/"):
        del server.objects["bucket", f"refused/{name}"]
