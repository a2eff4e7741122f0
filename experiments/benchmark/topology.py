"""A step of a training compiled for a TPU slice that is not there: memory, collectives, time.

    python -m experiments.benchmark topology --only="nrcc_imagenet v5e:4x4"

`--only` has a config and a slice, or several such pairs, separated by commas; without it all of
`PLANS` are compiled. libtpu (`pip install '.[tpu]'`) compiles on a machine without a TPU,
in minutes; nothing is computed. Collectives are counted before and after the compiler merges them:
their number, and the bytes of their results. Times are bounds by the figures of the chip, which no
program reaches, not measurements: a collective waits for the slower of its bytes through the links,
and besides for a message to travel to the farthest chip and back, half of each side of the torus
and a microsecond a hop (jax-ml.github.io/scaling-book).
"""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from jax.stages import Lowered
from ml_collections import ConfigDict

from cluster_jax.core import checks
from cluster_jax.core import config as configs
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.training import build
from cluster_jax.training.config import RunConfig, config_json, parse_config
from cluster_jax.training.step import make_step

# Of a chip of TPU v5e: operations/s in bfloat16, bytes/s of its memory and of its links to other
# chips, one way (cloud.google.com/tpu/docs).
OPERATIONS, MEMORY, LINKS = 197e12, 819e9, 200e9
# Sections of a config on which the compiled step depends.
SECTIONS = ("network", "augment", "method", "nrcc", "optimizer", "train")
# Seconds that a message takes from a chip to the next one.
HOP = 1e-6
# Data set -> the number of its images, and what an image is where the config does not scale it.
SETS = {
    "imagenet2012": (1_281_167, (256, 256, 3)),
    "cifar10": (50_000, (32, 32, 3)),
    "digits": (1_797, (8, 8, 1)),
}
PLANS = (
    "nrcc_imagenet v5e:4x4",
    "ncc_imagenet v5e:4x4",
    "cueco_imagenet100 v5e:4x4",
    "nrcc_cifar10 v5e:4x4",
)
COLLECTIVE = re.compile(
    r"= (\S.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(-start)?\("
)
ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


def collectives(program: str) -> dict[str, tuple[int, int]]:
    """Counts the collectives of an HLO text: kind -> number, and bytes of their results."""
    found: dict[str, tuple[int, int]] = {}
    for shapes, kind, _ in COLLECTIVE.findall(program):
        sizes = [
            int(bits) * math.prod(int(n) for n in shape.split(",") if n) // 8
            for bits, shape in ARRAY.findall(shapes)
        ]
        count, total = found.get(kind, (0, 0))
        found[kind] = count + 1, total + sum(sizes)
    return found


def config_digest(config: ConfigDict) -> str:
    """Returns a digest of the values on which size and operations of the compiled step depend.

    They are those of some sections in which a config differs from `configs/base.py`, so that a new
    key there leaves all records valid; the learning rate is one number in any step.
    """
    values, base = config_json(config), config_json(configs.load_config("base"))
    changed = {section: _changes(values[section], base[section]) for section in SECTIONS}
    if isinstance(optimizer := changed["optimizer"], dict):
        optimizer.pop("learning_rate", None)
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _changes(values: Any, base: Any) -> Any:
    """Returns the entries of nested dictionaries that differ from those of another one."""
    if not (isinstance(values, dict) and isinstance(base, dict)):
        return values
    return {k: _changes(v, base.get(k)) for k, v in values.items() if v != base.get(k)}


def measure(only: str | None = None) -> dict:
    """Figures of a step on each chip, of every config and slice that are named.

    Args:
        only: "CONFIG SLICE", several separated by commas; None: `PLANS`.

    Raises:
        InputError: there is no such config or slice, or libtpu is not installed.
    """
    if find_spec("libtpu") is None:
        raise InputError("libtpu compiles for TPUs; install it: pip install '.[tpu]'")
    # This machine is not asked for a TPU, for which it would wait.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    jax.config.update("jax_platforms", "cpu")
    figures = {}
    for name in only.split(",") if only else PLANS:
        config, topology = configure(name)
        figures[name.strip()] = plan(config, topology)
        print(f"{name}: {figures[name.strip()]}", file=sys.stderr)
    return figures


def configure(name: str) -> tuple[ConfigDict, str]:
    """The config and the slice of "CONFIG SLICE".

    Raises:
        InputError: they are not two words, or there is no such config, or none for its data set.
    """
    words = name.split()
    if len(words) != 2:
        raise InputError(f'--only must be "CONFIG SLICE" as in "{PLANS[0]}"; got {name!r}')
    config = configs.load_config(words[0])
    checks.one_of(f"data.name of {words[0]}", config.data.name, tuple(SETS))
    return config, words[1]


def lower(config: ConfigDict, mesh: Mesh) -> Lowered:
    """The training step of a config, lowered for the devices of a mesh, without any image."""
    size, shape = SETS[config.data.name]
    side, rows = config.data.image_size, config.train.batch_size
    shape = (side, side, shape[2]) if side else shape
    gray = [0.5] * shape[2]
    about = {"size": size, "shape": shape, "mean": gray, "std": gray}
    section = parse_config(config)
    assert isinstance(section, RunConfig)  # all of the sets are trained on
    run = build.rebuild_run(section, about).training._replace(mesh=mesh)

    def array(shape: Sequence[int], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    batch, resident = {"index": array((rows,), jnp.int32, meshes.sharded(mesh))}, None
    # As in a training, a small set is on every device.
    if size * math.prod(shape) <= 1e6 * config.data.cache_mb:
        resident = array((size, *shape), jnp.uint8, meshes.replicated(mesh))
    else:
        batch["image"] = array((rows, *shape), jnp.uint8, meshes.sharded(mesh))
    step = make_step(run.method, run.optimizer, mesh)
    return step.lower(build.abstract_state(run), batch, resident)


def plan(config: ConfigDict, topology: str) -> dict:
    """Figures of a step on each chip of a slice.

    Raises:
        InputError: there is no such slice, or a batch cannot be divided among its chips.
    """
    digest = config_digest(config)
    config.network.dtype = "bfloat16"
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(f'no slice {topology!r}, as "v5e:4x4" is one: {problem}') from error
    devices = described.devices
    checks.multiple("train.batch_size", config.train.batch_size, len(devices), "the chips")
    mesh = jax.make_mesh((len(devices),), (meshes.AXIS,), (AxisType.Auto,), devices=devices)
    lowered = lower(config, mesh)
    options: dict[str, Any] = {"exec_time_optimization_effort": -1.0}  # in a fifth of the time
    compiled = lowered.compile(options)
    # Other compilers may have none of them.
    needs: Any = compiled.memory_analysis()
    cost: Any = compiled.cost_analysis()
    before: Any = lowered.compiler_ir("hlo")
    merged = collectives(str(compiled.as_text()))
    hops = sum(2 * (int(n) // 2) for n in topology.partition(":")[2].split("x"))
    return {
        "config_digest": digest,
        "chips": len(devices),
        "memory_gb": (needs.argument_size_in_bytes + needs.temp_size_in_bytes) / 1e9,
        "collectives": collectives(before.as_hlo_text()),
        "merged": merged,
        "seconds": {
            "arithmetic": cost["flops"] / OPERATIONS,
            "memory": cost["bytes accessed"] / MEMORY,
            "links": sum(2 * size for _, size in merged.values()) / LINKS,
            "latency": sum(count for count, _ in merged.values()) * hops * HOP,
        },
    }
