"""Every command on buckets, on a server that fails each twentieth request."""

import asyncio
import collections
import csv
import io
import itertools
import json
import re
import time
import types

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import app, export
from cluster_jax.core import buckets, disk
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches, datasets, metadata, scan, tables
from cluster_jax.data import folder as folders
from cluster_jax.data.images import DataConfig
from cluster_jax.data.shards import Shards
from cluster_jax.encoding import embed
from cluster_jax.pipeline import rows
from cluster_jax.pipeline import run as pipeline
from cluster_jax.report import assignments, decisions
from cluster_jax.training import checkpoint, progress
from tests import toy
from tests.data import test_packed
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


@pytest.fixture(scope="module")
def photos(store):
    """24 images in four folders of `gs://bucket/photos`."""
    for i, (image, label) in enumerate(zip(*toy.images(24, channels=3), strict=True)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        store.put("bucket", f"photos/{label}/{i:02}.png", file.getvalue())
    return "gs://bucket/photos"


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
    """A training in `gs://bucket/tar`, on tars there, that was left alone; and its requests."""
    folder = tmp_path_factory.mktemp("packed")
    configs = {kind: test_packed.training(folder / kind, kind) for kind in ("tar", "parquet")}
    for kind, config in configs.items():
        for path in (folder / kind).iterdir():
            store.put("bucket", f"{kind}s/{path.name}", path.read_bytes())
        config.data.dir, config.train.log_every = f"gs://bucket/{kind}s", 1
    store.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "SECONDS", 3600.0)
        pipeline.run_pipeline(configs["tar"], "gs://bucket/tar", "toy")
    return configs, [*store.requests]


def test_few_requests(server, trained):
    """As many as of 1,000 steps: what counts are checkpoints, and seconds."""
    server.requests = trained[1]
    # A line of the log that is a request, and one of TensorBoard, would be six more.
    assert server.count(without="checkpoints|^tars") <= 40
    each = (server.count() - server.count(without="checkpoints")) / 2
    assert 75 < each < 225
    files = server.files("bucket/tar/")
    lines = files["metrics.jsonl"].splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert {"checkpoints", "tensorboard"} <= {name.split("/")[0] for name in files}
    assert not [name for name in files if "partial" in name or "writable" in name]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("tar", "^(?!.*(ocdbt|/d/))"),  # TensorStore waits for a second and more.
        ("parquet", "^(?!.*(ocdbt|/d/))"),
        pytest.param("tar", "", marks=pytest.mark.slow),
    ],
    ids=["tar", "parquet", "all fail"],
)
def test_a_training_that_is_killed_resumes_bit_for_bit(
    server, trained, monkeypatch, caplog, kind, where
):
    """It streams images in tars or Parquet files, and ends as one that was left alone."""
    config, left = trained[0][kind], {}

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
    _assert_same(server, "killed", "tar")


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


def test_photos_are_read_many_at_once(server, photos):
    server.seconds = 0.2
    section = DataConfig("folder", photos, None, "label", 32, "bicubic", None, 100.0, 0.0)
    dataset = folders.load(section)
    assert dataset.size == 24
    assert server.kinds() == {"list": 1, "read": 24}
    assert server.most >= 16


def test_a_folder_of_photos(server, photos):
    server.put("bucket", "photos/0/@eaDir/thumb.jpg", b"")
    server.put("bucket", "photos/0/notes.txt", b"")
    server.put("bucket", "photos/0/", b"")  # marks a folder
    found = scan.find(photos)
    assert len(found.names) == 24
    assert found.ignored == ((".txt", 1), ("in @eaDir", 1))


def test_shards(server):
    table = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float16)
    for i in range(3):
        file = io.BytesIO()
        np.save(file, table[100 * i :][:100])
        server.put("bucket", f"shards/part-{i}.npy", file.getvalue())
    shards = Shards("gs://bucket/shards")
    np.testing.assert_array_equal(shards[:], table.astype(np.float32))
    some = np.array([299, 0, 150, 99])
    np.testing.assert_array_equal(shards[some], table[some].astype(np.float32))
    name = ("bucket", "shards/part-1.npy")
    server.put(*name, server.objects[name].data[:-4])
    with pytest.raises(InputError, match=r"part-1\.npy must be a complete .npy file"):
        Shards("gs://bucket/shards")[:]


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
    assert starts[:2] == [0, 16]


FLAGS = (
    "--config.data.image_size=32", "--config.eval.batch_size=8", "--config.eval.reduce.method=pca",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(store, photos, one_device, shallow_lite):
    """`gs://bucket/images`, a run of `images` that was killed; and features of the same photos."""
    with pytest.MonkeyPatch.context() as patch:
        store.faults.append(every(20, FAILING))
        _resumed(patch, "images", photos, "--out=gs://bucket/images", *FLAGS)
        data = "embed", "--config=images", f"--config.data.dir={photos}", *FLAGS
        _resumed(patch, *data, "--out=gs://bucket/shares")
        app.main([*data, "--out=gs://bucket/one.npz"])
    return "gs://bucket/images"


def test_features_are_the_same_in_a_run_a_file_and_shards(server, run):
    files = server.files("bucket/")
    assert not [name for name in files if ".parts" in name]
    one = metadata.read_rows("gs://bucket/one.npz", None, None, None).values
    np.testing.assert_array_equal(Shards("gs://bucket/shares")[:], one)
    stored = np.load(io.BytesIO(files["images/embedding.npz"])).values()
    (features,) = (values for values in stored if values.shape == one.shape)
    np.testing.assert_array_equal(features, one)


PREDICT = ["predict", "--workdir=gs://bucket/images", "--images=gs://bucket/photos"]
PREDICT += ["--out=gs://bucket/new.csv", "--report=gs://bucket/new.html"]
REPORT = ["report", "gs://bucket/images", "--corrections=gs://bucket/corrections.csv"]
EXPORT = ["export", "--workdir=gs://bucket/images", "--out=gs://bucket/encoder"]
TREE = ["cluster", "--features=gs://bucket/shares", "--out=gs://bucket/tree", "--reduce=pca"]
KMEANS = ["cluster", "--features=gs://bucket/shares", "--out=gs://bucket/kmeans"]
KMEANS += ["--method=kmeans", "--k=4"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (PREDICT, "new.csv.parts/part_000000000016.npz"),
        (REPORT, "images/assignments.csv"),
        (EXPORT, "encoder"),
        (TREE, "tree/report.html"),
        (KMEANS, "kmeans/assignments.csv"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_command_that_is_killed_ends_alike(server, run, monkeypatch, command, name):
    """Killed as it writes a file, and given again: the same files, none of them half-written."""
    workdir = assignments.read_workdir(buckets.path(run))
    lines = f",,run,{decisions.clustered(workdir)[1].run}", ",0,name,bars", ",,end,", ""
    corrections = "\n".join(["image,cluster,correction,to", *lines])
    server.put("bucket", "corrections.csv", corrections.encode())
    monkeypatch.setattr(embed, "SECONDS", -1.0)  # Each batch is a part.
    monkeypatch.setattr(tables, "LARGE", 0)  # Shards are read in blocks.
    monkeypatch.setattr(export, "_PLATFORMS", ("cpu",))
    monkeypatch.setattr(rows, "time", types.SimpleNamespace(perf_counter=lambda: 0.0))
    before, states, left = server.files(), collections.defaultdict(set), {}

    def kill(request):
        for file, data in server.files().items():
            states[file].add(data)
        if request.kind == "write" and request.name == name and not left:
            left.update(server.objects)

    server.faults += [kill, every(20, FAILING)]
    app.main(command)
    whole = server.files()
    server.objects = left
    made = {file for file in server.files() if server.files()[file] != before.get(file)}
    server.requests.clear()
    app.main(command)
    assert server.files() == whole
    assert all(states[file] <= {before.get(file), data} for file, data in whole.items())
    assert not [file for file in whole if ".parts" in file]
    again = {f"{x.bucket}/{x.name}" for x in server.requests if x.kind == "write"}
    assert not [file for file in made & again if ".parts" in file]


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


def test_commands_on_packed_images(server, tmp_path):
    for part in range(2):
        which = range(20 * part, 20 * part + 20)
        data = test_packed.write_parquet(tmp_path / "x.parquet", which).read_bytes()
        server.put("bucket", f"packed/{part}.parquet", data)
    where, flags = "gs://bucket/packed", FLAGS
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
        (None, "gs://bucket/twice.tar", "twice.tar must have one member of a name; got two 1.jpg"),
        (None, "gs://bucket/tars/2.tar", "tars/2.tar must exist; got no such file or bucket"),
    ],
)  # fmt: skip
def test_images_that_cannot_be_read(server, photos, capsys, tmp_path, fault, path, said):
    packed = test_packed.write_tar(tmp_path / "1.tar", {"1.jpg": test_packed.jpeg(1)})
    server.put("bucket", "tars/1.tar", packed.read_bytes()[:1536])
    twice = [("1.jpg", test_packed.jpeg(i)) for i in range(2)]
    packed = test_packed.write_tar(tmp_path / "twice.tar", twice)
    server.put("bucket", "twice.tar", packed.read_bytes())
    parquet = test_packed.write_parquet(tmp_path / "1.parquet")
    server.put("bucket", "rows/1.parquet", parquet.read_bytes())
    server.faults += [fault] if fault else []
    code, line = _ends(["images", path, f"--out={tmp_path}/run"], capsys)
    assert code == 2
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("path", "name", "number"),
    [
        ("photos", "photos/3/11.png", 1),
        ("tar", "tar/1.tar", 3),  # after its index, of two requests
        ("rows", "rows/1.parquet", 4),
    ],
)
def test_images_that_change_during_a_run(server, photos, capsys, tmp_path, path, name, number):
    members = {"1.jpg": test_packed.jpeg(1), "2.jpg": test_packed.jpeg(2)}
    tar = test_packed.write_tar(tmp_path / "1.tar", members)
    parquet = test_packed.write_parquet(tmp_path / "1.parquet")
    server.put("bucket", "tar/1.tar", tar.read_bytes())
    server.put("bucket", "rows/1.parquet", parquet.read_bytes())
    asked = itertools.count(1)

    def change(request):
        if request.name == name and next(asked) == number:
            server.put("bucket", name, server.objects["bucket", name].data)

    server.faults.append(change)
    code, line = _ends(["images", f"gs://bucket/{path}", f"--out={tmp_path}/run"], capsys)
    assert code == 2
    assert line.startswith(f"error: gs://bucket/{name} must stay as it is during a run; got it ch")
    assert line.endswith("(412): end what writes it, and run the same command again")
    assert not (tmp_path / "run").exists()


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
        pipeline.run_pipeline(trained[0]["tar"], "gs://bucket/refused", "toy")
    said = str(caught.value)
    assert said.startswith("gs://bucket/refused/checkpoints cannot be written (")
    assert reason in said.lower()
    assert "free space" not in said
    assert not any("commit_success" in name for name in server.files("bucket/refused/"))
