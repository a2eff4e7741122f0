"""What the slices of GPU time are made of, on the CPU."""

import json

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
    dry_run,
    images,
    neighbors,
    order,
    pieces,
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


def test_tables_have_every_kind_of_result():
    figures = {"images_per_second": 5.0, "share_of_peak": 0.5, "gflops_per_image": 1.0}
    origin = {"device": "NVIDIA H200", "machine": "m", "versions": {"jax": "1"}, "commit": "c"}
    results = {
        name: {"item": {"name": name, "kind": "rate"}, "figures": figures, "provenance": origin}
        for name in ("byol resnet18 bfloat16 256", "byol + nrcc (hmc) resnet18 bfloat16 256")
    }
    text = tables.markdown(results)
    predicted = json.loads(roofline.FILE.read_text())["rates"]["byol resnet18 bfloat16 256"]
    assert f"| 5.00 | {predicted['H200']['images_per_second']:,.0f} | 50.0 % |" in text.replace(
        "| 5 |", "| 5.00 |"
    )
    assert "BYOL + NRCC (hmc) / BYOL in time: 1.000" in text
