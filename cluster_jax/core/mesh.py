"""The mesh of all devices, over which a batch is split, and the shardings of arrays on it."""

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def make(devices: int | None = None) -> Mesh:
    """Makes a one-axis mesh for the batch: the first `devices` devices of all hosts (None: all)."""
    used = jax.devices()[:devices]
    return jax.make_mesh((len(used),), (AXIS,), axis_types=(AxisType.Auto,), devices=used)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of values replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def sharded(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays whose rows are split over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))
