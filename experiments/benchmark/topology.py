"""A step of a training compiled for a TPU slice that is not there: memory, collectives, time.

    python -m experiments.benchmark topology --only="nrcc_imagenet v5e:16x16"

The figures are a record of `pods.json`, which has some of before a change, too.

libtpu (`pip install 'cluster-jax[tpu]'`) compiles on a machine without a TPU, in minutes; nothing
is computed. Collectives are counted before and after the compiler merges them. Times are bounds by
the figures of the chip, which no program reaches, not measurements: a collective waits for the
slower of its bytes through the links, and besides for a message to travel to the farthest chip and
back, half of each side of the torus and a microsecond a hop (jax-ml.github.io/scaling-book).
"""

import hashlib
import json
import math
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType
from ml_collections import ConfigDict

from cluster_jax.core import config as configs
from cluster_jax.core import mesh as meshes
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from cluster_jax.training.step import make_step

# Of a chip of TPU v5e: operations/s in bfloat16, bytes/s of its memory and of its links to other
# chips, one way (cloud.google.com/tpu/docs).
OPERATIONS, MEMORY, LINKS = 197e12, 819e9, 200e9
# Sections of a config on which the compiled step depends.
SECTIONS = ("network", "augment", "method", "nrcc", "optimizer", "train")
# Seconds, and images of ImageNet, whose number hardly matters.
HOP, IMAGES = 1e-6, 1_281_167
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
    """Returns a digest of the sections on which the compiled step depends."""
    values = config_json(config)
    text = json.dumps([values[section] for section in SECTIONS], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measure(only: str) -> dict:
    """Figures of a step on each chip, of the config and the slice that are named."""
    name, topology = only.split()
    config = configs.load_config(name)
    digest = config_digest(config)
    config.network.dtype = "bfloat16"
    side = config.data.image_size
    about = {"size": IMAGES, "shape": [side, side, 3], "mean": (0.5,) * 3, "std": (0.25,) * 3}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = jax.make_mesh((len(devices),), (meshes.AXIS,), (AxisType.Auto,), devices=devices)
    run = build.rebuild_run(parse_config(config, name), about).training._replace(mesh=mesh)
    rows, sharding = config.train.batch_size, meshes.sharded(mesh)
    shape = (rows, *run.dataset.batch_shape)
    batch = {
        "index": jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding),
        "image": jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=sharding),
    }
    step = make_step(run.method, run.optimizer, mesh)
    lowered = step.lower(build.abstract_state(run), batch, None)
    # In a fifth of the time.
    compiled = lowered.compile({"exec_time_optimization_effort": -1.0})
    needs, cost = compiled.memory_analysis(), compiled.cost_analysis()
    merged = collectives(compiled.as_text())
    hops = sum(2 * (int(n) // 2) for n in topology.partition(":")[2].split("x"))
    return {
        "config_digest": digest,
        "chips": len(devices),
        "memory_gb": (needs.argument_size_in_bytes + needs.temp_size_in_bytes) / 1e9,
        "collectives": collectives(lowered.compiler_ir("hlo").as_hlo_text()),
        "merged": merged,
        "seconds": {
            "arithmetic": cost["flops"] / OPERATIONS,
            "memory": cost["bytes accessed"] / MEMORY,
            "links": sum(2 * size for _, size in merged.values()) / LINKS,
            "latency": sum(count for count, _ in merged.values()) * hops * HOP,
        },
    }
