"""Plans a run on TPUs or GPUs that are not there: memory, operations, roofline time, its parts.

The step of a run is compiled ahead of time for a TPU slice, on a machine without one; nothing is
computed. Times are bounds by the figures of the chip, which no program reaches, not measurements.
The other parts of the run are arithmetic from its config and from `ASSUMED`.
"""

import collections
import dataclasses
import importlib.util
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core.checks import InputError
from cluster_jax.encoding import embed
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.report.report_map import MAX_THUMBNAILS
from cluster_jax.training import progress
from cluster_jax.training import state as states
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.step import make_step


class Chip(NamedTuple):
    """Figures of a TPU chip or a GPU.

    Attributes:
        flops: bfloat16 operations per second.
        memory: bytes.
        bandwidth: bytes per second of its memory.
        links: bytes per second to other chips, one way, over all links.
        source: where its maker states the figures.
    """

    flops: float
    memory: float
    bandwidth: float
    links: float
    source: str


CHIPS = {
    "v5e": Chip(197e12, 16e9, 819e9, 200e9, "cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip(459e12, 95e9, 2765e9, 600e9, "cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip(918e12, 32e9, 1638e9, 400e9, "cloud.google.com/tpu/docs/v6e"),
    "a100": Chip(312e12, 80e9, 2039e9, 300e9, "nvidia.com, data sheet of the A100 80 GB SXM"),
    "h100": Chip(989e12, 80e9, 3350e9, 450e9, "nvidia.com, data sheet of the H100 SXM"),
    "h200": Chip(989e12, 141e9, 4800e9, 450e9, "nvidia.com, data sheet of the H200 SXM"),
}
TPUS = ("v5e", "v5p", "v6e")


# What the arithmetic of the parts takes as given, and where it is from; files are those of
# experiments/benchmark. On no pod has any of it been measured.
ASSUMED = {
    "utilization": (0.25, "of a chip's peak where nothing is compiled (a v5e in plan.json)"),
    "jpeg": (115e3, "bytes of an image (ImageNet's tar: 147.9 GB of 1,281,167)"),
    "decode": (1.8e-3, "seconds of a thread for it (stream.json, by pixels)"),
    "latency": (0.05, "seconds of a request, one an image (a guess); 32 at once"),
    "bandwidth": (1e9, "bytes/s of a host (a guess: a twelfth of a v5e host's network)"),
    "compile": (92.0, "seconds to compile the step (plan.json, on two cores)"),
    "compress": (17e6, "bytes/s of np.savez_compressed (compress.json)"),
    "umap": (0.87e-3, "seconds a row of UMAP, at least (sample.json: of 64 columns), by n log n"),
    "classes": (1000, "classes of the labels; k-means takes as many, with all updates it may"),
    "process": (0.5e9, "bytes of a process without images (stream.json)"),
}
# Requests by a checkpoint, of the first host for each array and besides, and of another host, and
# by a restart of a host. tests/faults/gcs_server.py counted 150 to 217 and 194 to 280 of one
# process with 20 to 400 arrays, and 40 more for each checkpoint by a second process.
_PER_ARRAY, _PER_CHECKPOINT, _PER_HOST, _PER_RESTART = 0.125, 150, 40, 250
_PASSES = 6  # Products of bfloat16 numbers for one of float32, as exact.
_UPLOAD = 50 * 2**20  # Bytes of one request of gcsfs.
_UPDATES = (kmeans.__kwdefaults__ or {})["max_iter"]  # at most, of a run of k-means


class Part(NamedTuple):
    """Estimates of a part of a run.

    Attributes:
        name: what is done.
        alone: whether the first host does it alone.
        seconds: time.
        memory: bytes in a host.
        moved: bytes between all hosts and the bucket.
        requests: of all hosts.
    """

    name: str
    alone: bool
    seconds: float
    memory: float
    moved: float = 0.0
    requests: float = 0.0


class Plan(NamedTuple):
    """What a training needs, on each chip unless stated otherwise.

    Attributes:
        topology: name of the slice, "v5e:4x4", or of the GPUs, "h100:8".
        chip: figures of a chip.
        chips: number of chips.
        hosts: number of hosts.
        batch_size: images per step on all chips.
        accumulate: steps per update of the parameters.
        steps: number of steps of the training.
        memory: part -> bytes; without "activations" and "program" if not compiled.
        flops: floating-point operations of a step.
        moved: bytes that the operations of a step read and write, by the compiler's count, in which
            on-chip memory saves nothing; None if not compiled.
        collectives: kind -> number of operations in a step and the bytes of their results, before
            the compiler merges them; empty if not compiled.
        parts: of the whole run, in order.
    """

    topology: str
    chip: Chip
    chips: int
    hosts: int
    batch_size: int
    accumulate: int
    steps: int
    memory: dict[str, int]
    flops: float
    moved: float | None
    collectives: dict[str, tuple[int, int]]
    parts: tuple[Part, ...] = ()

    @property
    def seconds(self) -> dict[str, float]:
        """Time of a step by each limit of the chip: arithmetic, memory, links between chips."""
        share = (self.chips - 1) / self.chips
        sent = sum(
            (2 if kind == "all-reduce" else 1) * share * size
            for kind, (_, size) in self.collectives.items()
        )
        return {
            "arithmetic": self.flops / self.chip.flops,
            "memory": (self.moved or 0.0) / self.chip.bandwidth,
            "links": sent / self.chip.links,
        }

    @property
    def step_seconds(self) -> float:
        """Roofline time of a step; collectives do not overlap with other operations."""
        seconds = self.seconds
        return max(seconds["arithmetic"], seconds["memory"]) + seconds["links"]

    @property
    def largest_batch(self) -> int | None:
        """Largest batch on all chips, where activations grow with it; None if not compiled."""
        if "activations" not in self.memory:
            return None
        growing = self.memory["activations"] + self.memory["batch"]
        free = self.chip.memory - sum(self.memory.values()) + growing
        return max(0, int(free / growing * self.batch_size / self.chips)) * self.chips


def plan(
    config: RunConfig,
    topology: str,
    images: int,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Plans a training.

    Args:
        config: config of the run; "auto" precision is that of accelerators, bfloat16.
        topology: a TPU slice, "v5e:4x4" or "v5p:2x2x2", or a number of GPUs, "h100:8".
        images: number of training images.
        progress: called with one line of text before the step is compiled.

    Raises:
        InputError: the topology is unknown, or the config does not suit.
    """
    name, _, shape = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"\d+(x\d+)*" if name in TPUS else r"[1-9]\d*", shape):
        raise InputError(
            "--topology must be a TPU slice such as v5e:4x4 or GPUs such as h100:8, of "
            f"{', '.join(CHIPS)}; got {topology!r}"
        )
    run = _built(config, images)
    chip, batch_size = CHIPS[name], config.train.batch_size
    compiles = name in TPUS and importlib.util.find_spec("libtpu") is not None
    # One of the chips, in place of which the CPU stands.
    devices = _tpu_devices(topology) if compiles else jax.devices()[:1]
    chips = math.prod(int(side) for side in shape.split("x"))
    hosts = -(-chips // (4 if name in TPUS else 8))
    if compiles:
        hosts = len({device.process_index for device in devices})
    if batch_size % chips:
        raise InputError(
            f"train.batch_size must be a multiple of the {chips} chips of {topology}; got "
            f"{batch_size}"
        )
    mesh = jax.make_mesh(
        (len(devices),), (states.AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )
    if compiles:
        progress(f"compiling the step of {config.name} for {topology}, minutes ...")
    elif name in TPUS:
        progress(
            "libtpu is not installed: operations are counted alone (pip install "
            "'cluster-jax[tpu]' compiles them)"
        )
    lowered, memory = _lower(run, mesh, batch_size * len(devices) // chips)
    accumulate = config.train.accumulate
    common = (topology, chip, chips, hosts, batch_size, accumulate, run.total_steps)
    if compiles:
        collectives = collective_bytes(lowered.compiler_ir("hlo").as_hlo_text())
        # With the least effort: five times as fast, and memory within 2 % for nrcc_imagenet.
        compiled = lowered.compile({"exec_time_optimization_effort": -1.0})
        cost, needs = compiled.cost_analysis(), compiled.memory_analysis()
        memory["activations"] = needs.temp_size_in_bytes
        memory["program"] = needs.generated_code_size_in_bytes
        planned = Plan(*common, memory, cost["flops"], cost["bytes accessed"], collectives)
    else:
        planned = Plan(*common, memory, lowered.cost_analysis()["flops"], None, {})
    return planned._replace(parts=_parts(config, run, planned))


def _parts(config: RunConfig, run: TrainingRun, plan: Plan) -> tuple[Part, ...]:
    """Counts the parts of a run in a bucket, as they are in the code that does them."""
    n, data, section, hosts = run.dataset.size, config.data, config.eval, plan.hosts
    a = {name: value for name, (value, _) in ASSUMED.items()}
    state, (widths, forward) = build.abstract_state(run), _forward(run)
    d, chip, most = widths[section.features], plan.chip.flops * a["utilization"], 32
    rows, table = 4.0 * n * d, 4.0 * n * sum(widths.values())  # float32
    is_kept, is_folder = data.fits(n, run.dataset.shape), data.name == "folder"
    is_streamed = not is_kept

    def read(images: float, together: float = most) -> float:
        """Returns the seconds of a host that reads and decodes so many images at a time."""
        each = a["decode"] / min(together, most) + a["jpeg"] / a["bandwidth"]
        return images * (math.ceil(together / most) * a["latency"] / together + each)

    # Each host reads a set that it keeps decoded, and its share of a TFDS set that it does not, for
    # the labels.
    first, lists = n * is_kept or -(-n // hosts) * (not is_folder), -(-n // 1000) * is_folder
    process = a["process"] + n * math.prod(run.dataset.shape) * is_kept
    starts = a["compile"] + lists * a["latency"] + read(first)
    share, trained = plan.batch_size / hosts, plan.steps * plan.batch_size * is_streamed
    step = plan.flops / chip if plan.moved is None else plan.step_seconds
    trains = plan.steps * max(step, read(share, share) * is_streamed)
    ahead = process + (config.train.prefetch + 1) * share * math.prod(run.dataset.batch_shape)
    # One request after the other, at the most; the training goes on meanwhile.
    saves, size = plan.steps // config.train.checkpoint_every + 1, _bytes(state)
    per_save = _PER_CHECKPOINT + _PER_ARRAY * len(jax.tree.leaves(state))
    saving = saves * (per_save + _PER_HOST * (hosts - 1))
    saves_in = saves * (size / a["bandwidth"] + per_save * a["latency"])
    # A flush writes the log and the events of TensorBoard.
    flushes = 2 * (trains / progress.SECONDS + saves)
    restarts = starts + size / a["bandwidth"] + _PER_RESTART * a["latency"]
    batch = -(-section.batch_size // plan.chips) * plan.chips / hosts
    embeds = max(n * forward / plan.chips / chip, read(n / hosts, batch) * is_streamed)
    refresh, writes = run.method.refresh, 2 + table / _UPLOAD
    due = 0 if refresh is None else sum(map(refresh.is_due, range(plan.steps)))
    asked = n * is_streamed + writes + 3 * embeds / embed.SECONDS  # A part: read, write, delete.
    npz = table / a["compress"] + 2 * table / a["bandwidth"]  # written, and read again
    held, local = process + table + rows, -(-plan.chips // hosts)
    k, passes = section.kmeans.k or a["classes"], section.kmeans.n_init * _UPDATES
    groups = passes * 2 * n * k * d / local / chip
    maps = a["umap"] * n * max(1.0, math.log(n) / math.log(100_000))
    maps *= section.reduce.method == "umap"
    epochs = 0 if section.linear_probe is None else section.linear_probe.epochs
    scores = _PASSES * 2 * n * n * d / local / chip + epochs * 6 * n * d * a["classes"] / chip
    # Sizes, headers and ends of files, or the pixels of what are none; and thumbnails.
    again = n * (3 if is_folder else is_streamed) + min(n, MAX_THUMBNAILS) * is_streamed
    jpeg, saved = a["jpeg"], f"{saves:,} checkpoints"
    entered, opened = hosts * (first + lists), hosts * (first * jpeg + size)
    # All hosts have the batches of an embedding and the whole of it; its file is compressed in
    # memory. k-NN and the linear probe have two more copies, and one on the chips of a host.
    parts = (
        Part("start", False, starts, process, hosts * first * jpeg, entered),
        Part("training", False, trains, ahead, trained * jpeg, trained + flushes),
        # Of all images, by the methods that cluster them.
        Part(
            f"{due:,} refreshes", False, due * embeds, process + 2 * table,
            due * n * jpeg * is_streamed, due * n * is_streamed,
        ),
        Part(saved, True, saves_in, ahead + size, saves * size, saving),
        Part("a restart", False, restarts, ahead + size, opened, entered + hosts * _PER_RESTART),
        Part(
            "embedding", False, embeds, process + 2 * table, n * jpeg * is_streamed + table, asked
        ),
        Part("embedding.npz", True, npz, process + 4 * table, 2 * table, writes + 2),
        Part("k-means", True, groups, held + 2 * rows),
        Part("map by UMAP", True, maps, held + rows),
        Part("k-NN, linear probe", True, scores, held + 2 * rows),
        Part("duplicates, report", True, read(again), held, again * jpeg, again),
    )  # fmt: skip
    return tuple(part for part in parts if part.seconds)


def _forward(run: TrainingRun) -> tuple[dict[str, int], float]:
    """Returns the columns of each embedding, and operations of the forward pass of an image."""
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), build.abstract_state(run)
    )
    image = jax.ShapeDtypeStruct((1, *run.dataset.shape), jnp.uint8)
    lowered: Any = jax.jit(run.embed).lower(state.params, state.model_state, image)
    widths = {name: x.shape[-1] for name, x in lowered.out_info.items()}
    return widths, lowered.cost_analysis()["flops"]


def _built(config: RunConfig, images: int) -> TrainingRun:
    side = config.data.image_size
    if config.train.labeled_batch_size is not None or config.embedder is not None:
        raise InputError(
            f"--config must train on images without labels; got the method {config.method.name}"
        )
    if side is None:
        raise InputError(
            "data.image_size must be the side of the images in pixels; got None: add for example "
            "--config.data.image_size=32"
        )
    if config.network.dtype == "auto":
        network = dataclasses.replace(config.network, dtype="bfloat16")
        config = dataclasses.replace(config, network=network)
    section = config.augment
    described = {
        "size": images,
        "shape": [side, side, 3],
        "mean": section.mean or (0.5,) * 3,
        "std": section.std or (0.25,) * 3,
    }
    return build.rebuild_run(config, described).training


def _tpu_devices(topology: str) -> list[jax.Device]:
    from jax.experimental import topologies

    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except Exception as error:  # The runtime raises several types.
        if "not installed" in str(error):
            raise InputError(
                "libtpu must be installed to compile for a TPU; got none: pip install "
                "'cluster-jax[tpu]'"
            ) from error
        raise InputError(f"--topology must be a TPU slice; got {topology!r} ({error})") from error
    return list(described.devices)


def _lower(run: TrainingRun, mesh: Mesh, rows: int) -> tuple[Any, dict[str, int]]:
    """Lowers the step; returns it, and the bytes of its arguments on each chip."""
    sharded = states.sharded(mesh)
    state = build.abstract_state(run._replace(mesh=mesh))
    shapes = {"index": ((rows,), jnp.int32), "image": ((rows, *run.dataset.batch_shape), jnp.uint8)}
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharded)
        for name, (shape, dtype) in shapes.items()
    }
    memory = {
        "parameters": _bytes(state.params),
        "other state": _bytes(state.model_state),
        "optimizer": _bytes(state.opt),
        "batch": -(-_bytes(batch) // mesh.size),
    }
    return make_step(run.method, run.optimizer, mesh).lower(state, batch, None), memory


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


_COLLECTIVE = re.compile(
    r"= (\S.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)\("
)
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


def collective_bytes(program: str) -> dict[str, tuple[int, int]]:
    """Counts a program's collectives: kind -> number and bytes of their results on a chip.

    Args:
        program: text of the HLO before it is optimized; the compiler merges small collectives.
    """
    totals: dict[str, tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for types, kind in _COLLECTIVE.findall(program):
        size = sum(
            int(bits) * math.prod(int(n) for n in shape.split(",") if n) // 8
            for bits, shape in _ARRAY.findall(types)
        )
        count, total = totals[kind]
        totals[kind] = count + 1, total + size
    return dict(totals)
