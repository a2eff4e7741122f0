"""What the slices of GPU time are made of, on the CPU."""

import json
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import build
from experiments.gpu import (
    __main__ as command,
)
from experiments.gpu import (
    carry,
    checks,
    chips,
    dry_run,
    images,
    neighbors,
    order,
    pieces,
    rates,
    roofline,
    settings,
    slices,
    tables,
    trace,
    train,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


TRAINING = {"name": "t", "kind": "train", "group": "g", "share": 1.0, "method": "ncc",
            "network": "resnet18", "epochs": 4, "evaluate_every": 2, "seconds": 1}  # fmt: skip


def _pieces(folder, content=bytes(range(256)) * 100, mb=0.01):
    pieces.split(content, folder, {"kind": "images", "name": "x"}, mb)
    return content


def test_pieces_are_joined_again_and_none_is_too_large(tmp_path):
    content = _pieces(tmp_path)
    joined, about = pieces.join(tmp_path)
    assert joined == content
    assert about["name"] == "x"
    files = sorted(tmp_path.glob("piece-*"))
    assert len(files) == 3
    assert max(file.stat().st_size for file in files) <= 10_000


def _flip(path):
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: _flip(folder / "piece-001"), "piece-001 must have the SHA-256"),
        (lambda folder: (folder / "piece-002").unlink(), "all 3 pieces .* piece-002 is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json must exist"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json must be JSON"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "must have about, whole"),
    ],
)
def test_damaged_pieces_are_named(tmp_path, damage, message):
    _pieces(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        pieces.join(tmp_path)


def test_pieces_replace_no_others(tmp_path):
    _pieces(tmp_path)
    with pytest.raises(InputError, match=r"must be empty; got .*, which has some"):
        _pieces(tmp_path)


def test_packed_images_are_the_same(tmp_path, rng):
    made = rng.integers(0, 256, (1037, 8, 8, 3), dtype=np.uint8)
    labels = rng.integers(0, 3, 1037)
    content = images.pack(made, labels, ("a", "b", "c"))
    pieces.split(content, tmp_path / "p", {"kind": "images", "name": "made"}, 0.05)
    dataset = images.load(tmp_path / "p")
    np.testing.assert_array_equal(dataset.images, made)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.label_names == ("a", "b", "c")
    np.savez(tmp_path / "x.npz", images=made, labels=labels)
    np.testing.assert_array_equal(images.load(tmp_path / "x.npz").images, made)


def _write_images(path, shape, labels):
    np.savez(path, images=np.zeros(shape, np.uint8), labels=np.zeros(labels, np.int64))


def _cut(path):
    _write_images(path, (9, 4, 4, 3), (9,))
    path.write_bytes(path.read_bytes()[:-50])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "--data must be a folder of pieces or an .npz file; got .*x.npz"),
        (lambda path: path.write_text("no"), "--data must be an .npz file with images and labels"),
        (lambda path: np.savez(path, images=np.ones(3)), "--data must be an .npz file with"),
        (
            lambda path: np.savez(path, images=np.ones((2, 4, 4, 3)), labels=np.ones(2)),
            r"must hold uint8 images \[n, h, w, 3\] and integer labels \[n\]; got float64",
        ),
        (
            lambda path: _write_images(path, (2, 4, 4, 4), (2,)),
            r"must hold uint8 images .* got uint8 \[2, 4, 4, 4\] and int64 \[2\]",
        ),
        (
            lambda path: _write_images(path, (2, 4, 4, 3), (2, 1)),
            r"must hold uint8 images .* got uint8 \[2, 4, 4, 3\] and int64 \[2, 1\]",
        ),
        (lambda path: _cut(path), "--data must be an .npz file with images and labels"),
        (
            lambda path: np.savez(path, images=np.array([{}], object), labels=np.ones(1)),
            "--data must be an .npz file with",
        ),
    ],
)
def test_bad_images_are_named(tmp_path, write, message):
    write(tmp_path / "x.npz")
    with pytest.raises(InputError, match=message):
        images.load(tmp_path / "x.npz")


@pytest.fixture(scope="module")
def run():
    """NCC with large enough layers to be rounded."""
    config = train._config(TRAINING, {}, tiny=True)
    config.network.update(width=16)
    config.network.projector.update(hidden=128, out=64)
    config.network.predictor.hidden = 128
    dataset = settings.generated(settings.TINY_IMAGES, settings.TINY_SIDE, False)
    return settings.build_run(config, dataset).training


def _moved(state):
    """The state after some training: moments that are not zero, a target of its own."""
    draw = np.random.default_rng(0)

    def noise(x):
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x + 0.01 * draw.standard_normal(x.shape).astype(np.float32)
        return x

    return jax.tree.map(noise, state)._replace(step=jnp.asarray(7, jnp.int32))


def test_a_carried_state_is_the_same_up_to_the_stated_rounding(tmp_path, run):
    state = _moved(build.initial_state(run))
    size = carry.pack(state, {"name": "t", "config": {}}, tmp_path, 0.05)
    back = carry.unpack(tmp_path, build.abstract_state(run), {"name": "t", "config": {}})
    assert int(back.step) == 7 == size["step"]
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert jnp.all(jax.random.key_data(back.key) == jax.random.key_data(state.key))
    leaves = zip(jax.tree.leaves_with_path(state), jax.tree.leaves(back), strict=True)
    rounded = 0
    for (path, before), after in leaves:
        if jnp.issubdtype(before.dtype, jax.dtypes.prng_key):
            continue
        before, after = np.asarray(before), np.asarray(after)
        if np.array_equal(before, after):
            continue
        rounded += 1
        error = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert 0 < error <= size["errors"][path[0].name] * 1.001, path
    assert rounded >= 8
    assert size["errors"]["params"] < 1e-3
    assert size["errors"]["opt"] < 2e-2
    assert size["bits"] == {"moments": 8, "target": 8}


def test_the_target_has_no_rounding_of_the_online_network(tmp_path, run):
    """Late in a training both are close; their difference is from what the online one becomes."""
    state = _moved(build.initial_state(run))
    target = state.model_state.target
    draw = np.random.default_rng(1)
    params = {
        name: jax.tree.map(
            lambda x: x + 1e-5 * draw.standard_normal(x.shape).astype(np.float32),
            state.params[name],
        )
        for name in target.params
    }
    model_state = state.model_state._replace(target=target._replace(params=params))
    size = carry.pack(state._replace(model_state=model_state), {}, tmp_path, 1.0)
    assert 0 < size["errors"]["model_state"] < 1e-5
    back = carry.unpack(tmp_path, state, {})
    targets = (back.model_state.target, model_state.target)
    pairs = zip(*map(jax.tree.leaves, targets), strict=True)
    errors = [float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-9)) for a, b in pairs]
    assert max(errors) == pytest.approx(size["errors"]["model_state"], rel=1e-3)


def test_a_large_state_leaves_out_what_is_rebuilt(tmp_path, run, monkeypatch):
    state = _moved(build.initial_state(run))
    sizes = [carry.pack(state, {}, tmp_path / "0", 1.0)["mb"]]
    for number in (1, 2):
        monkeypatch.setattr(carry, "LIMIT_MB", sizes[-1] - 1e-6)
        size = carry.pack(state, {}, tmp_path / str(number), 1.0)
        assert size["bits"] == carry.BITS[number]
        assert size["mb"] < sizes[-1]
        sizes.append(size["mb"])
        back = carry.unpack(tmp_path / str(number), state, {})
        large = [x for x in jax.tree.leaves(back.opt) if x.ndim > 1 and x.size >= carry.LARGE]
        assert large
        assert not any(np.asarray(x).any() for x in large)


def test_statistics_and_labels_are_carried_exactly(tmp_path, run):
    state = _moved(build.initial_state(run))
    carry.pack(state, {}, tmp_path, 1.0)
    back = carry.unpack(tmp_path, state, {})
    for part in ("batch_stats", "labels", "centers"):
        for a, b in zip(
            jax.tree.leaves(getattr(state.model_state, part)),
            jax.tree.leaves(getattr(back.model_state, part)),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


def test_a_state_of_another_training_is_refused(tmp_path, run):
    state = build.initial_state(run)
    carry.pack(state, {"name": "t", "config": {"a": 1}}, tmp_path / "s", 1.0)
    with pytest.raises(InputError, match="--resume must hold a state of the same config"):
        carry.unpack(tmp_path / "s", state, {"name": "t", "config": {"a": 2}})
    _pieces(tmp_path / "i")
    with pytest.raises(InputError, match="--resume must hold a packed state"):
        carry.unpack(tmp_path / "i", state, {})
    with pytest.raises(InputError, match=r"--resume must be the folder `carry`.* holds no packed"):
        train.check_resume(tmp_path / "s", [TRAINING], {})


def test_the_nearest_rows_are_those_of_scikit_learn(rng):
    x = rng.standard_normal((300, 12))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = NearestNeighbors(n_neighbors=7, algorithm="brute").fit(unit)
    expected = expected.kneighbors(return_distance=False)
    np.testing.assert_array_equal(neighbors.nearest(x, 7), expected)


def test_the_nearest_rows_of_several_blocks(rng, monkeypatch):
    x = rng.standard_normal((300, 12))
    whole = neighbors.nearest(x, 7)
    monkeypatch.setattr(neighbors, "BLOCK", 128)
    np.testing.assert_array_equal(neighbors.nearest(x, 7), whole)


def test_a_profile_counts_time_once_where_kernels_overlap():
    events = [("a", 0.0, 10.0), ("b", 5.0, 10.0), ("a", 20.0, 5.0), ("c", 40.0, 10.0)]
    figures = trace.summarize(events)
    assert figures["busy"] == pytest.approx(30 / 50)
    assert figures["kernels"] == 4
    first = figures["largest"][0]
    assert (first["name"], first["calls"]) == ("a", 2)
    assert first["share"] == pytest.approx(15 / 35)
    assert trace.summarize([])["busy"] is None


def _rate(batch, dtype, rate, **item):
    item = {"method": "byol", "network": "resnet18", "batch": batch, "dtype": dtype, **item}
    return {"item": item, "figures": {"images_per_second": rate}}


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([], (256, "bfloat16")),
        ([_rate(256, "bfloat16", 100), _rate(1024, "bfloat16", 109)], (256, "bfloat16")),
        ([_rate(256, "bfloat16", 100), _rate(1024, "bfloat16", 111)], (1024, "bfloat16")),
        ([_rate(256, "bfloat16", 100), _rate(256, "float32", 120)], (256, "float32")),
        ([_rate(256, "bfloat16", 1), _rate(512, "float32", 9, views="flips")], (256, "bfloat16")),
        ([_rate(256, "bfloat16", 1), _rate(512, "float32", 9, sampler="hmc")], (256, "bfloat16")),
    ],
)
def test_batch_and_precision_are_chosen_by_rate(measured, expected):
    rates = {str(number): entry for number, entry in enumerate(measured)}
    assert train.choose({"network": "resnet18"}, rates) == expected


def _items(count, **common):
    entry = {"kind": "rate", "group": "rates", "share": 1.0, "seconds": 1, **common}
    return [{"name": f"r{number}", **entry} for number in range(count)]


def test_results_are_written_as_they_come_and_not_measured_twice(tmp_path, monkeypatch):
    calls = []

    def measure(item, tiny):
        calls.append(item["name"])
        if item["name"] == "r1":
            raise RuntimeError("out of memory\nlong text")
        if item["name"] == "r2":
            assert slices.results(tmp_path)["r0"]["figures"] == {"images_per_second": 3.0}
            if len(calls) == 3:
                raise KeyboardInterrupt  # The slice is cut off.
        return {"images_per_second": 3.0}

    monkeypatch.setitem(slices.KINDS, "rate", measure)
    options = {"dataset": None, "resume": None, "tiny": True}
    with pytest.raises(KeyboardInterrupt):
        slices.run(tmp_path, 1.0, _items(3), **options)
    slices.run(tmp_path, 1.0, _items(3), **options)
    assert calls == ["r0", "r1", "r2", "r2"]
    found = slices.results(tmp_path)
    assert found["r1"]["figures"] == {"error": "RuntimeError: out of memory"}
    assert found["r2"]["complete"]
    assert found["r2"]["provenance"]["versions"]
    assert "| r0 | 3 |" in (tmp_path / "tables.md").read_text()


def test_what_ends_the_process_twice_is_left_out(tmp_path, monkeypatch, capsys):
    def measure(item, tiny):
        raise KeyboardInterrupt

    monkeypatch.setitem(slices.KINDS, "rate", measure)
    options = {"dataset": None, "resume": None, "tiny": True}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            slices.run(tmp_path, 1.0, _items(1), **options)
    slices.run(tmp_path, 1.0, _items(1), **options)
    assert "r0: left out, it ended the process 2 times" in capsys.readouterr().out


def test_a_group_keeps_to_its_share_and_goes_on_if_time_is_left(tmp_path, monkeypatch):
    calls, clock = [], [0.0]

    def measure(item, tiny):
        calls.append(item["name"])
        clock[0] += 20.0
        return {"images_per_second": 1.0}

    monkeypatch.setitem(slices.KINDS, "rate", measure)
    monkeypatch.setattr(slices.time, "monotonic", lambda: clock[0])
    first = _items(4, share=0.5)
    other = [{**entry, "name": f"o{i}", "group": "other"} for i, entry in enumerate(_items(1))]
    slices.run(tmp_path, 100 / 60, [*first, *other], dataset=None, resume=None, tiny=True)
    assert calls == ["r0", "r1", "r2", "o0", "r3"]


def _refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    assert command.main() == 2
    return capsys.readouterr()


def test_bad_commands_are_one_sentence(tmp_path, monkeypatch, capsys):
    out = f"--out={tmp_path / 'out'}"
    cases = {
        "--minutes and --out must be given": ["--minutes=3"],
        "--minutes must be finite and greater than 0; got 0.0": ["--minutes=0", out],
        "--minutes must be finite and greater than 0; got inf": ["--minutes=inf", out],
        "--minutes must be at least 0.75, which 'profile of byol + nrcc' needs; got 0.5": [
            "--minutes=0.5",
            out,
        ],
        "--out must be a folder; got": ["--minutes=9", f"--out={__file__}"],
        "--data must be a folder of pieces or an .npz": ["--minutes=9", out, "--data=/no/where"],
        "--resume must be the folder `carry`": ["--minutes=9", out, f"--resume={tmp_path}"],
    }
    for message, arguments in cases.items():
        error = _refused(arguments, monkeypatch, capsys).err
        assert message in error
        assert error.count("\n") == 1


def test_the_cpu_must_be_there_too():
    for platforms in (None, "", "cuda,cpu"):
        command.check_platforms(platforms)
    with pytest.raises(InputError, match=r"JAX_PLATFORMS must name cpu .* got 'cuda'"):
        command.check_platforms("cuda")


def test_without_a_gpu_the_plan_is_printed(tmp_path, monkeypatch, capsys):
    printed = _refused(["--minutes=25", f"--out={tmp_path}"], monkeypatch, capsys)
    assert "a GPU or TPU must be there; got only a CPU" in printed.err
    assert "byol + nrcc (sghmc) resnet18 bfloat16 256" in printed.out
    assert "about" in printed.out
    assert not list(tmp_path.iterdir())


def test_every_rate_has_a_prediction_written_before():
    predictions = json.loads(roofline.FILE.read_text())["rates"]
    items = [item for item in order.load() if item["kind"] == "rate"]
    assert {item["name"] for item in items} == set(predictions)
    names = [item["name"] for item in order.load()]
    assert len(names) == len(set(names))


def test_outputs_of_convolutions_are_counted():
    """ResNet-18 with CIFAR stem: five maps of 64 x 32 x 32, then five of half the entries, ..."""
    config = settings.config_of(
        {"method": "byol", "network": "resnet18", "dtype": "float32", "batch": 8}, tiny=False
    )
    backbone = settings.parse_config(config).network.backbone()
    expected = 65_536 * (5 + 5 / 2 + 5 / 4 + 5 / 8)
    assert roofline._outputs(backbone.module, (32, 32, 3)) == expected


@pytest.mark.slow
def test_the_dry_run_does_everything_and_survives_a_kill():
    dry_run.main()


ORIGIN = {"device": "NVIDIA H200", "machine": "m", "versions": {"jax": "1"}, "commit": "c"}


def _tables(**kinds):
    """Tables of one entry each: name -> (kind, figures)."""
    results = {
        name: {"item": {"name": name, "kind": kind, "epochs": 4}, "figures": figures,
               "provenance": ORIGIN}
        for name, (kind, figures) in kinds.items()
    }  # fmt: skip
    return tables.markdown(results)


def test_rates_are_beside_their_predictions():
    figures = {"images_per_second": 5.0, "share_of_peak": 0.5, "gflops_per_image": 1.0}
    byol, nrcc = "byol resnet18 bfloat16 256", "byol + nrcc (hmc) resnet18 bfloat16 256"
    flips = "byol resnet18 bfloat16 256 flips alone"
    text = _tables(
        **{
            byol: ("rate", figures),
            nrcc: ("rate", {**figures, "images_per_second": 4.0}),
            flips: ("rate", {**figures, "images_per_second": 6.0}),
            "pytorch byol resnet18 bfloat16 256": ("torch", {"images_per_second": 3.0}),
            "byol resnet50 bfloat16 256": ("rate", {"error": "RuntimeError: out of memory"}),
        }
    )
    predicted = json.loads(roofline.FILE.read_text())["rates"][byol]["H200"]["images_per_second"]
    assert f"| {byol} | 5 | {predicted:,.0f} | 50.0 % | 1.00 |" in text
    assert "BYOL + NRCC (hmc) / BYOL in time: 1.250" in text
    assert "images/s over PyTorch's, bfloat16: 2.000" in text
    assert "| byol resnet50 bfloat16 256 | RuntimeError: out of memory |" in text
    assert "NVIDIA H200; m; jax 1; commit c: 5 results" in text


def test_tables_have_trainings_checks_and_profiles():
    point = {
        "epoch": 2.0,
        "knn": {"5": 0.1, "20": 0.25},
        "kmeans": {"acc": 0.5, "nmi": 0.75},
        "gridshift": {"n_clusters": 12, "acc": 0.375, "nmi": 0.625},
    }
    carried = {"mb": 54.6, "bits": {"moments": 0, "target": 4}, "errors": {"params": 2e-4}}
    training = {"epoch": 2.0, "seconds": 60, "history": [point, {**point, "gridshift": "none"}]}
    training |= {"carried": carried, "images_per_second": 1234.0, "error": "OSError: disk"}
    kernel = {"name": "gemm", "milliseconds": 1.5, "share": 0.75, "calls": 20}
    profile = {"steps": 10, "milliseconds": 20.0, "kernels": 1000, "busy": 0.9, "largest": [kernel]}
    found = {
        "gradient of ncc": {"loss": 1e-6, "gradient": 2e-3},
        "gradient of moco": {"error": "KeyError: x"},
        "one step of ncl_cifar10": 1.0,
        "bfloat16": {"first": 0.01},
    }
    checked = {"passed": False, "failed": ["gradient of moco"], "checks": found}
    text = _tables(
        ncc=("train", training),
        new=("train", {"error": "RuntimeError: no"}),
        checks=("checks", checked),
        profile=("trace", profile),
    )
    for expected in (
        "ncc: epoch 2 of 4, 60 s, 1,234 images/s; carried in 54.6 MB (bits: moments 0, target 4; "
        "errors: params 2.0e-04); failed: OSError: disk",
        "| 2 | 0.250 | 0.500 | 0.750 | 12 | 0.375 | 0.625 |",
        "| 2 | 0.250 | 0.500 | 0.750 |  |  |  |",
        "new: epoch 0 of 4, 0 s,  images/s; failed: RuntimeError: no",
        "| ncc | 1.0e-06 | 2.0e-03 |",
        "| moco | KeyError: x | |",
        "FAILED: gradient of moco.",
        "profile: 10 steps in 20.0 ms, 1,000 kernels, device busy 90.0 %",
        "| `gemm` | 1.50 | 75.0 % | 20 |",
    ):
        assert expected in text


def _plane(name, **lines):
    event = types.SimpleNamespace
    return types.SimpleNamespace(
        name=name,
        lines=[
            types.SimpleNamespace(
                name=line, events=[event(name=e, start_ns=1.0, duration_ns=2.0) for e in events]
            )
            for line, events in lines.items()
        ],
    )


def test_a_profile_takes_the_kernels_of_the_gpu(monkeypatch):
    host = _plane("/host:CPU", **{"tf_XLAEigen": ["dot"], "python": ["call"]})
    device = _plane("/device:GPU:0", **{"Stream #13(Compute)": ["gemm"], "XLA Ops": ["fusion"]})
    planes = [host]
    monkeypatch.setattr(
        trace.jax.profiler.ProfileData,
        "from_file",
        lambda file: types.SimpleNamespace(planes=planes),
    )
    assert trace._events("x") == [("dot", 1.0, 2.0)]
    planes.append(device)
    assert trace._events("x") == [("gemm", 1.0, 2.0)]


def test_the_share_of_the_peak_is_that_of_the_dtype():
    chip = chips.find("NVIDIA H100 80GB HBM3")
    figures = {"gflops_per_image": 10.0, "images_per_second": 9890.0}
    assert rates.share_of_peak(figures, chip, "bfloat16") == pytest.approx(0.1)
    assert rates.share_of_peak(figures, chip, "float32") == pytest.approx(0.2)
    assert chips.find("cpu") is None


def test_ratios_and_epochs_are_those_of_the_predicted_rates():
    stored = json.loads(roofline.FILE.read_text())
    predictions = stored["rates"]
    byol, nrcc = predictions[roofline.BYOL], predictions[roofline.NRCC]
    ratios = stored["nrcc_over_byol"]
    assert ratios == roofline.nrcc_over_byol(predictions)
    assert ratios["time on H100"] == pytest.approx(
        byol["H100"]["images_per_second"] / nrcc["H100"]["images_per_second"]
    )
    assert ratios["operations"] == pytest.approx(
        nrcc["gflops_per_image"] / byol["gflops_per_image"]
    )
    slower = {**predictions, roofline.NCC: {k: {"images_per_second": 100} for k in chips.CHIPS}}
    assert roofline.epochs(slower) == {"H100": 1, "H200": 1}
    assert stored["ncc_resnet18_epochs_in_25_minutes"] == roofline.epochs(predictions)


def test_torch_has_no_more_time_than_the_slice(monkeypatch):
    limits = []

    def run(command, *, timeout, **options):
        limits.append(timeout)
        return types.SimpleNamespace(returncode=0, stdout='{"images_per_second": 3.0}\n')

    monkeypatch.setattr(slices.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(slices.subprocess, "run", run)
    item = {"batch": 256, "dtype": "bfloat16"}
    for seconds in (100.0, 1000.0):
        assert slices._torch(item, seconds) == {"images_per_second": 3.0}
    assert limits == [100.0, slices.TORCH_SECONDS]


def test_a_check_is_written_as_it_comes_and_not_done_twice(monkeypatch):
    calls, written = [], []

    def check(name):
        calls.append(name)
        if name == "raises":
            raise ValueError
        return 1.0

    names = ("one step of a", "one step of b", "raises")
    monkeypatch.setattr(checks, "_calls", lambda few, tiny: {n: (check, n) for n in names})
    earlier = {"checks": {"one step of a": 2.0}, "seconds": 5.0}
    checks.measure(earlier, lambda figures, complete: written.append((figures, complete)), True)
    assert sorted(calls) == ["one step of b", "raises"]
    assert [complete for _, complete in written] == [False, False, True]
    assert len(written[0][0]["checks"]) == 2
    assert written[-1][0]["checks"]["one step of a"] == 2.0
    assert written[-1][0]["failed"] == ["raises"]
    assert written[-1][0]["checks"]["raises"] == {"error": "ValueError: "}
    assert written[-1][0]["seconds"] > 5


def test_checks_that_end_the_process_keep_their_figures(tmp_path, monkeypatch):
    done = []

    def check(name):
        while name == "one step of b" and not slices.results(tmp_path):
            time.sleep(0.01)
        done.append(name)
        if name == "one step of b":
            raise KeyboardInterrupt
        return 1.0

    names = ("one step of a", "one step of b")
    monkeypatch.setattr(checks, "_calls", lambda few, tiny: {n: (check, n) for n in names})
    item = {"name": "checks", "kind": "checks", "group": "g", "share": 1.0, "seconds": 1}
    for _ in range(slices.CRASHES):
        with pytest.raises(KeyboardInterrupt):
            slices.run(tmp_path, 1.0, [item], **RUN)
    slices.run(tmp_path, 1.0, [item], **RUN)
    assert done == ["one step of a", "one step of b", "one step of b"]
    assert slices.results(tmp_path)["checks"]["figures"]["checks"] == {"one step of a": 1.0}
    assert "One step of each of 1 configs" in (tmp_path / "tables.md").read_text()


RUN = {"dataset": None, "resume": None, "tiny": True}


def test_an_unusable_rate_ends_no_slice(tmp_path, monkeypatch):
    def measure(item, tiny):
        if item["name"] == "r0":
            raise InputError("a rate must be usable; got none")
        return {"images_per_second": 3.0}

    monkeypatch.setitem(slices.KINDS, "rate", measure)
    slices.run(tmp_path, 1.0, _items(2), **RUN)
    found = slices.results(tmp_path)
    assert found["r0"]["figures"]["error"] == "InputError: a rate must be usable; got none"
    assert found["r1"]["figures"] == {"images_per_second": 3.0}
    assert json.loads((tmp_path / "results.json").read_text()) == found


def test_a_training_that_raises_says_so_and_is_tried_again_in_the_next_slice(
    tmp_path, monkeypatch, capsys
):
    calls = []

    def measure(item, *, write, earlier, **options):
        calls.append(earlier)
        write({"config": {}, "history": [], "seconds": 1.0}, False)
        raise RuntimeError("out of memory\nlong text")

    monkeypatch.setattr(train, "measure", measure)
    for _ in range(2):
        slices.run(tmp_path, 1.0, [TRAINING], **{**RUN, "dataset": "images"})
    (entry,) = slices.results(tmp_path).values()
    assert entry["figures"]["error"] == "RuntimeError: out of memory"
    assert entry["figures"]["config"] == {}
    assert not entry["complete"]
    assert len(calls) == 2
    assert "t: RuntimeError: out of memory" in capsys.readouterr().out


def test_an_interrupted_slice_leaves_its_tables(tmp_path, monkeypatch):
    def measure(item, tiny):
        if item["name"] == "r1":
            raise KeyboardInterrupt
        return {"images_per_second": 3.0}

    monkeypatch.setitem(slices.KINDS, "rate", measure)
    with pytest.raises(KeyboardInterrupt):
        slices.run(tmp_path, 1.0, _items(2), **RUN)
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"r0"}
    assert "| r0 | 3 |" in (tmp_path / "tables.md").read_text()


def test_a_damaged_result_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setitem(slices.KINDS, "rate", lambda item, tiny: {"images_per_second": 3.0})
    for content in ("{", "[]", "{}"):
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / "r0.json").write_text(content)
        assert slices.results(tmp_path) == {}
        slices.run(tmp_path, 1.0, _items(1), **RUN)
        assert slices.results(tmp_path)["r0"]["complete"]


def test_the_least_time_is_that_of_an_item_that_can_be_done(tmp_path):
    long, other = _items(2, seconds=300)
    short = {**TRAINING, "seconds": 60}
    slices.check_time(tmp_path, 1.0, [long, short], has_data=True)
    with pytest.raises(InputError, match="at least 5, which 'r0' needs; got 1"):
        slices.check_time(tmp_path, 1.0, [long, short], has_data=False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r0.started").write_text("2")
    with pytest.raises(InputError, match="at least 5, which 'r1' needs; got 1"):
        slices.check_time(tmp_path, 1.0, [long, other, short], has_data=False)
    with pytest.raises(InputError, match="got 0 complete and 2 left out: choose another --out"):
        slices.check_time(tmp_path, 9.0, [long, short], has_data=False)
