"""The command `plan`: its arithmetic, the program that it counts, and what it refuses."""

import importlib.util
import json
import pathlib

import jax
import numpy as np
import pytest

from cluster_jax.cli import plan as command
from cluster_jax.core.config import load_config, override
from cluster_jax.nets.network import make
from cluster_jax.pipeline import plan
from cluster_jax.pipeline.config import parse_config
from tests.cli.test_output import check_keys
from tests.rows import every_row

# A config is imported by ml_collections.


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The command's variables of the environment end with the test."""
    monkeypatch.setattr(command.os, "environ", dict(command.os.environ))


CHIP = plan.Chip(flops=100e12, memory=10e9, bandwidth=1e12, links=1e11, source="the maker")


def planned(**changes):
    memory = {"parameters": 10**9, "batch": 10**8, "activations": 4 * 10**9}
    collectives = {"all-reduce": (3, 8 * 10**8), "all-gather": (1, 4 * 10**8)}
    parts = (
        plan.Part("training", False, 7260.0, 5e8, 3e13, 2e8),
        plan.Part("9 checkpoints", True, 90.0, 9e8),
        plan.Part("map by UMAP", True, 1380.0, 33e9),
        plan.Part("k-NN, linear probe", True, 5820.0, 86e9),
    )
    values = plan.Plan("v5e:2x2", CHIP, 4, 1, 512, 1, 1000, memory, 2e12, 5e10, collectives, parts)
    return values._replace(**changes)


def test_the_roofline():
    """Ring all-reduce sends 2 (n - 1) / n of its bytes, all-gather (n - 1) / n."""
    seconds = planned().seconds
    assert seconds == pytest.approx({"arithmetic": 0.02, "memory": 0.05, "links": 0.015})
    assert planned().step_seconds == pytest.approx(0.065)
    assert planned(flops=8e12).step_seconds == pytest.approx(0.095)
    assert planned(chips=1, collectives={}).seconds["links"] == 0


def test_the_largest_batch():
    """9 GB are free beside the parameters; a batch of 512 takes 4.1 GB on each of 4 chips."""
    assert planned().largest_batch == int(9 / 4.1 * 128) * 4
    assert planned(memory={"parameters": 1, "batch": 2}).largest_batch is None


def test_what_is_printed():
    text = command.describe(planned(), plan.ASSUMED)
    assert "4 chips on 1 hosts" in text
    assert "512 images, 128 a chip" in text
    assert "5.10 GB a chip: parameters 1.00, batch 0.10, activations 4.00; it fits" in text
    assert "limited by memory" in text
    assert "all-reduce 800.0 MB in 3, all-gather 400.0 MB in 1" in text
    assert "run          1,000 steps, in parts:" in text
    rows = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert rows["training"] == ["1", "2.0", "h", "0.5", "30,000.0", "200,000,000"]
    assert rows["map by UMAP"] == ["1", "23.0", "min", "33.0", "0.0", "0"]
    assert "The first host alone, while the others wait: 2.0 h, and 86 GB of its memory." in text
    assert "  1.15e+05  bytes of an image (ImageNet's tar" in text
    assert "an update" not in text
    several = command.describe(planned(accumulate=8), plan.ASSUMED)
    assert "128 a chip; an update of 8 batches, 4,096 images" in several
    check_keys("plan", command._values(planned()))
    over = planned(memory={**planned().memory, "activations": 2 * 10**10})
    assert "does NOT fit" in command.describe(over, plan.ASSUMED)


def test_collectives_of_a_program():
    program = """
      a.1 = f32[2,3]{1,0} all-reduce(b), channel_id=1
      a.2 = (f32[4]{0}, bf16[8]{0}) all-reduce(c, d), channel_id=1
      g.1 = u8[16,2]{1,0} all-gather(e), dimensions={0}
      h.1 = f32[5]{0} add(a.1, b.1)
    """
    assert plan.collective_bytes(program) == {"all-reduce": (2, 24 + 32), "all-gather": (1, 32)}


def small(name="nrcc_imagenet", **values):
    config = load_config(name)
    changes = {
        "data.image_size": 16,
        "augment.size": 16,
        "network.name": "small",
        "network.width": 8,
        "train.batch_size": 32,
        "train.duration": "2 epochs",
        **values,
    }
    config.network.stem = None
    for key, value in changes.items():
        override(config, key, value)
    return parse_config(config)


def test_gpus():
    """Operations are those of one GPU's share, parameters those of the network."""
    config = small()
    one, four = (plan.plan(config, f"h100:{n}", 320) for n in (1, 4))
    assert (four.chips, four.hosts, four.steps) == (4, 1, 20)
    assert 3 < one.flops / four.flops < 4.2
    assert one.memory["batch"] == 32 * (16 * 16 * 3 + 4)
    # The images fit into memory, where each host reads them once.
    parts = {part.name: part for part in four.parts}
    assert (parts["start"].requests, parts["training"].moved) == (320, 0)
    assert parts["start"].memory == 0.5e9 + 320 * 16 * 16 * 3
    assert parts["training"].requests < 3
    assert parts["map by UMAP"].seconds == pytest.approx(320 * 0.87e-3)
    assert not [name for name in parts if "refreshes" in name], "NRCC clusters nothing meanwhile"
    params, _ = make(config.network).init(jax.random.key(0), np.zeros((1, 16, 16, 3)))
    count = sum(x.size for x in jax.tree.leaves(params))
    assert one.memory["parameters"] == 4 * count


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
def test_a_slice():
    made = plan.plan(small(), "v5e:2x2", 320)
    assert (made.chips, made.hosts) == (4, 1)
    assert made.memory["activations"] > 0
    assert made.collectives["all-reduce"][1] >= made.memory["parameters"]
    assert made.largest_batch > 32


@every_row(
    ("arguments", "message"),
    [
        (["--config=nrcc_imagenet"], "arguments are required: --topology"),
        (["--config=nrcc_imagenet", "--topology=v5e"], "--topology must be a TPU slice such as"),
        (["--config=nrcc_imagenet", "--topology=h100:2x2"], "got 'h100:2x2'"),
        (["--config=nrcc_imagenet", "--topology=h100:0"], "got 'h100:0'"),
        (["--config=nrcc_imagenet", "--topology=v9:2x2"], "got 'v9:2x2'"),
        (["--config=nrcc_imagenet", "--topology=h100:7"], "a multiple of the 7 chips"),
        (
            ["--config=nrcc_imagenet", "--topology=h100:8", "--images=0"],
            "--images must be at least 1; got 0",
        ),
        (
            ["--config=nrcc_digits", "--topology=h100:8"],
            "add for example --config.data.image_size=32",
        ),
        (["--config=ncl_cifar10", "--topology=h100:8"], "must train on images without labels"),
    ],
)
def test_bad_input(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out


def test_the_parts_of_a_run_without_libtpu(monkeypatch):
    """Of 320 streamed files of 115 kB, which 4 hosts read 8 at a time; of a step of one sum."""
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    step = jax.jit(lambda state, batch, images: batch["image"].sum(dtype=np.float32))
    monkeypatch.setattr(plan, "make_step", lambda *arguments: step)
    told, values = [], {"data.cache_mb": 0.0, "data.name": "folder", "eval.reduce.method": "pca"}
    clustering = {"method.clusters": 8, "method.warmup": "1 epoch"}
    config = small("ncc_imagenet", **clustering, **values)
    made = plan.plan(config, "v5e:4x4", 320, told.append)
    assert (made.chips, made.hosts, made.moved) == (16, 4, None)
    assert "libtpu is not installed" in told[0]
    parts = {part.name: part for part in made.parts}
    start, training, saves = parts["start"], parts["training"], parts["1 checkpoints"]
    assert (start.moved, start.requests) == (0, 4)  # each host lists the folder
    each = 8 * (1.8e-3 / 8 + 115e3 / 1e9)
    assert training.seconds == pytest.approx(20 * (0.05 + each))
    assert training.memory == 0.5e9 + 3 * 8 * 16 * 16 * 3
    assert training.moved == 20 * 32 * 115e3
    assert training.requests == pytest.approx(20 * 32 + 2 * (1 + training.seconds / 30))
    state = made.memory["parameters"] + made.memory["other state"] + made.memory["optimizer"]
    assert saves.moved == pytest.approx(state, abs=100)  # the step, and the key
    assert saves.requests > 150 + 3 * 40
    assert parts["a restart"].moved == 4 * saves.moved
    assert parts["a restart"].seconds > start.seconds
    # Before the second epoch, as its method clusters all images.
    assert parts["1 refreshes"].moved == 320 * 115e3
    columns = 128 + 256  # of the network `small` of width 8, and of its projection
    assert parts["embedding"].moved == 320 * 115e3 + 4 * 320 * columns
    assert parts["embedding.npz"].moved == 2 * 4 * 320 * columns
    # Sizes, headers and both ends of the files, and thumbnails.
    assert parts["duplicates, report"].requests == (3 + 1) * 320
    assert [name for name in parts if parts[name].alone] == [
        "1 checkpoints", "embedding.npz", "k-means", "k-NN, linear probe", "duplicates, report",
    ]  # fmt: skip


def test_the_tables_of_the_guide_are_those_that_are_stored():
    folder = pathlib.Path(__file__).parents[2] / "experiments"
    stored = json.loads((folder / "benchmark" / "pods.json").read_text())["figures"].values()
    plans = [
        plan.Plan(
            **{name: value for name, value in values.items() if name in plan.Plan._fields}
        )._replace(
            chip=plan.Chip(**values["chip"]),
            parts=tuple(plan.Part(**part) for part in values["parts"]),
        )
        for values in stored
    ]
    guide = (folder / "tutorials" / "guide.md").read_text()
    assert command.describe(plans[0], plan.ASSUMED) in guide
    for parts in zip(*(each.parts for each in plans), strict=True):
        times = " | ".join(command._time(part.seconds) for part in parts)
        assert f"| {parts[0].name} | {times} |" in guide
    times = " | ".join(f"{1e3 * each.step_seconds:.1f} ms" for each in plans)
    assert f"images, at least | {times} |" in guide
