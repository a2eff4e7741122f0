"""The papers' formulas in plain loops over numpy float64, and one way to run a loss on devices.

Nothing here is vectorized or shared with the package: an index in a formula is an index here.
"""

import math

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec


def unit(x):
    """Rows of length one; a row of zeros stays zero."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        length = math.sqrt(sum(value * value for value in row))
        if length > 0:
            out[i] = row / length
    return out


def through_unit(x, gradient):
    """Gradient with respect to `x` of a function whose gradient at `unit(x)` is `gradient`."""
    u = unit(x)
    out = np.zeros_like(u)
    for i in range(len(u)):
        tangent = gradient[i] - np.dot(gradient[i], u[i]) * u[i]
        out[i] = tangent / np.linalg.norm(x[i])
    return out


def sghmc(image, gradient, draws, *, step_size, friction, noise, momentum):
    """NRCC (17), (18) for one image: its view, and where the same noise leads without gradients."""
    ends = []
    for force in (gradient, np.zeros_like):
        position, p = np.array(image), np.array(draws[0])
        for draw in draws[1:]:
            new = (1 - friction) * p - step_size * force(position) + noise * draw
            position = position + step_size * (new if momentum == "new" else p)
            p = new
        ends.append(position)
    return ends


def hmc(image, energy, momenta, uniforms, *, leapfrog_steps, step_size):
    """HMC of one image: its view, the number of accepted proposals, and the gradients' part."""
    position, drift, accepted = np.array(image), np.zeros_like(image), 0
    for momentum, uniform in zip(momenta, uniforms, strict=True):
        x, p = np.array(position), np.array(momentum)
        before = energy(x)[0] + 0.5 * np.sum(p * p)
        free = np.array(position)
        for _ in range(leapfrog_steps):
            p = p - 0.5 * step_size * energy(x)[1]
            x = x + step_size * p
            free = free + step_size * momentum
            p = p - 0.5 * step_size * energy(x)[1]
        after = energy(x)[0] + 0.5 * np.sum(p * p)
        if math.log(uniform) < before - after:
            position, drift, accepted = x, drift + (x - free), accepted + 1
    return position, accepted, drift


def value_and_grad(loss, argnums=0):
    """`jax.value_and_grad`, compiled once."""
    return jax.jit(jax.value_and_grad(loss, argnums=argnums))


def on_devices(loss, params, inputs, devices):
    """Value and gradient of the mean over `devices` of `loss(params, *shards, axis)`.

    The rows of `inputs` are dealt to the devices in order; parameters are typed as varying, each
    device differentiates its own loss, and one mean reduces value and gradient.
    """
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))

    def body(params, *shards):
        params = lax.pcast(params, "data", to="varying")
        result = jax.value_and_grad(lambda p: loss(p, *shards, axis="data"))(params)
        return lax.pmean(result, "data")

    specs = (PartitionSpec(), *(PartitionSpec("data") for _ in inputs))
    run = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=True)
    return jax.jit(run)(params, *inputs)


def online_clusters(centroids, variances, keys, assigned, beta_1, beta_2):
    """CueCo (7), (8), centroids of length one, variances about the centroid before."""
    centroids, variances = np.array(centroids), np.array(variances)
    for k in range(len(centroids)):
        members = [unit([z])[0] for z, own in zip(keys, assigned, strict=True) if own == k]
        if not members:
            continue
        mean = sum(members) / len(members)
        squared = sum(sum((z - centroids[k]) ** 2) for z in members) / len(members)
        centroids[k] = unit([beta_1 * centroids[k] + (1 - beta_1) * mean])[0]
        variances[k] = beta_2 * variances[k] + (1 - beta_2) * squared
    return centroids, variances
