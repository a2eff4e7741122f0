"""Plans a training on TPUs or GPUs that are not there: memory, operations and roofline time.

The step of a run is compiled ahead of time for a TPU slice, on a machine without one; nothing is
computed. Times are bounds by the figures of the chip, which no program reaches, not measurements.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import RunConfig
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
        memory: part -> bytes; without "activations" and "program" for GPUs.
        flops: floating-point operations of a step.
        moved: bytes that the operations of a step read and write, by the compiler's count, in which
            on-chip memory saves nothing; None for GPUs.
        collectives: kind -> number of operations in a step and the bytes of their results, before
            the compiler merges them; empty for GPUs.
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
        """Largest batch on all chips, where activations grow with it; None for GPUs."""
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
        InputError: the topology is unknown, libtpu is not installed, or the config does not suit.
    """
    name, _, shape = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"\d+(x\d+)*" if name in TPUS else r"[1-9]\d*", shape):
        raise InputError(
            "--topology must be a TPU slice such as v5e:4x4 or GPUs such as h100:8, of "
            f"{', '.join(CHIPS)}; got {topology!r}"
        )
    run = _built(config, images)
    chip, batch_size, is_tpu = CHIPS[name], config.train.batch_size, name in TPUS
    # One of the GPUs, in place of which the CPU stands.
    devices = _tpu_devices(topology) if is_tpu else jax.devices()[:1]
    chips = len(devices) if is_tpu else int(shape)
    hosts = len({device.process_index for device in devices}) if is_tpu else -(-chips // 8)
    if batch_size % chips:
        raise InputError(
            f"train.batch_size must be a multiple of the {chips} chips of {topology}; got "
            f"{batch_size}"
        )
    mesh = jax.make_mesh(
        (len(devices),), (states.AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )
    progress(f"compiling the step of {config.name} for {topology}, minutes ...")
    lowered, memory = _lower(run, mesh, batch_size * len(devices) // chips)
    accumulate = config.train.accumulate
    common = (topology, chip, chips, hosts, batch_size, accumulate, run.total_steps)
    if not is_tpu:
        return Plan(*common, memory, lowered.cost_analysis()["flops"], None, {})
    collectives = collective_bytes(lowered.compiler_ir("hlo").as_hlo_text())
    # With the least effort: five times as fast, and memory within 2 % for nrcc_imagenet.
    compiled = lowered.compile({"exec_time_optimization_effort": -1.0})
    cost, needs = compiled.cost_analysis(), compiled.memory_analysis()
    memory["activations"] = needs.temp_size_in_bytes
    memory["program"] = needs.generated_code_size_in_bytes
    return Plan(*common, memory, cost["flops"], cost["bytes accessed"], collectives)


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
