"""HMC against plain loops and against physics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.samplers import base
from cluster_jax.samplers.hmc import HMCState, hmc, kinetic_energy_change, leapfrog
from tests import reference
from tests.toy import image_keys

pytestmark = pytest.mark.usefixtures("x64")

OFF = {"clip": None, "normalize_gradient": False}


def skewed(images):
    """P(x) = exp(x) - 1.5 x a pixel: the logarithm of a gamma variable, long tail to the left."""
    axes = tuple(range(1, images.ndim))
    return jnp.sum(jnp.exp(images) - 1.5 * images, axis=axes), jnp.exp(images) - 1.5


def run(key, images, potential_and_grad, *, iterations, **settings):
    sampler = hmc(potential_and_grad, **{**OFF, **settings})

    @jax.jit
    def sample(keys, images):
        return base.sample(sampler, keys, images, iterations=iterations)

    return sample(image_keys(key, len(images)), images)


def state_at(position, momentum):
    zero = jax.tree.map(jnp.zeros_like, position)
    return HMCState(position, momentum, *skewed(position), zero, zero)


@pytest.mark.parametrize("step_size", [1.1, 0.2])
def test_view_share_and_acceptance_equal_plain_loops(keys, step_size):
    images, key = jax.random.normal(next(keys), (12, 2, 2)), next(keys)
    iterations, settings = 3, {"leapfrog_steps": 2, "step_size": step_size}
    view, info = run(key, images, skewed, iterations=iterations, **settings)
    row_keys = image_keys(key, 12)
    momenta = [base.standard_normal(row_keys, images, 2 * i) for i in range(iterations)]
    uniforms = [
        jax.vmap(lambda k, i=i: jax.random.uniform(jax.random.fold_in(k, 2 * i + 1)))(row_keys)
        for i in range(iterations)
    ]

    def potential_and_grad(x):
        return np.sum(np.exp(x) - 1.5 * x), np.exp(x) - 1.5

    counts = set()
    for i in range(12):
        expected, accepted, drift = reference.hmc(
            np.asarray(images[i]), potential_and_grad, [np.asarray(m[i]) for m in momenta],
            [float(u[i]) for u in uniforms], **settings,
        )  # fmt: skip
        counts.add(accepted)
        np.testing.assert_allclose(view[i], expected, rtol=1e-9)
        np.testing.assert_allclose(info.acceptance_rate[i], accepted / iterations)
        displacement = np.linalg.norm(expected - images[i])
        share = min(np.linalg.norm(drift) / displacement, 1) if accepted else 0
        np.testing.assert_allclose(info.gradient_share[i], share, rtol=1e-9)
    # Large steps are accepted and rejected; of small ones the gradients are a part, not all.
    assert len(counts) > 2 if step_size > 1 else np.sum(info.gradient_share < 1) > 9


def test_leapfrog_runs_backwards(keys):
    start = jax.jit(state_at)(*jax.random.normal(next(keys), (2, 3, 4)))
    end = leapfrog(skewed, start, leapfrog_steps=20, step_size=0.1)
    assert np.abs(end.position - start.position).max() > 0.5
    for back in (
        leapfrog(skewed, end._replace(momentum=-end.momentum), leapfrog_steps=20, step_size=0.1),
        leapfrog(skewed, end, leapfrog_steps=20, step_size=-0.1),
    ):
        np.testing.assert_allclose(back.position, start.position, atol=1e-12)
        np.testing.assert_allclose(np.abs(back.momentum), np.abs(start.momentum), atol=1e-12)


def test_energy_error_is_of_second_order(keys):
    start = jax.jit(state_at)(*jax.random.normal(next(keys), (2, 50, 2)))
    errors = []
    for h in (0.02, 0.01):
        end = leapfrog(skewed, start, leapfrog_steps=round(1 / h), step_size=h)
        change = (
            end.potential - start.potential + kinetic_energy_change(start.momentum, end.momentum)
        )
        errors.append(np.abs(change).max())
    assert errors[1] < 1e-3
    np.testing.assert_allclose(errors[0] / errors[1], 4, rtol=0.1)


def test_leapfrog_preserves_phase_space_volume(keys):
    start = state_at(*jax.random.normal(next(keys), (2, 1, 1)))

    def flow(sp):
        end = leapfrog(
            skewed, state_at(sp[None, :1], sp[None, 1:]), leapfrog_steps=5, step_size=0.3
        )
        return jnp.stack([end.position[0, 0], end.momentum[0, 0]])

    point = jnp.stack([start.position[0, 0], start.momentum[0, 0]])
    volume = np.linalg.det(jax.jit(jax.jacobian(flow))(point))
    np.testing.assert_allclose(volume, 1, atol=1e-12)


def test_kinetic_energy_change_keeps_small_differences():
    before = jnp.full((1, 100_000), 1.0, jnp.float32)
    after = before.at[0, 0].add(1e-3)
    np.testing.assert_allclose(kinetic_energy_change(before, after), [1.0005e-3], rtol=1e-3)


@pytest.mark.parametrize(
    "shaping", [OFF, {"clip": 0.8, "normalize_gradient": True}], ids=["exact force", "shaped force"]
)
def test_moments_of_an_asymmetric_target(keys, shaping):
    # Steps large enough that accepting everything would show (checked below).
    chains, step = 20_000, {"leapfrog_steps": 3, "step_size": 0.8}
    grid = np.linspace(-30, 6, 200_001)
    weight = np.exp(1.5 * grid - np.exp(grid))
    weight /= weight.sum()
    moments = [np.sum(weight * grid**power) for power in range(1, 7)]
    mean = moments[0]
    assert np.sum(weight * (grid - mean) ** 3) < -0.5 * np.sum(weight * (grid - mean) ** 2) ** 1.5

    @jax.jit
    def sample(key, view):
        return base.sample(
            hmc(skewed, **step, **shaping), image_keys(key, chains), view, iterations=2
        )

    view = jnp.zeros((chains, 1))
    for _ in range(10):
        view, info = sample(next(keys), view)
    assert 0.3 < np.mean(info.acceptance_rate) < 0.97
    x = np.asarray(view)[:, 0]
    for power in (1, 2, 3):
        error = np.sqrt((moments[2 * power - 1] - moments[power - 1] ** 2) / chains)
        assert abs(np.mean(x**power) - moments[power - 1]) < 4 * error

    # The same trajectories without the accept step miss the target by far more.
    def shaped(x):
        value, gradient = skewed(x)
        return value, base.shape_gradient(
            gradient, x, shaping["clip"], shaping["normalize_gradient"]
        )

    @jax.jit
    def unadjusted(key, view):
        start = state_at(view, jax.random.normal(key, view.shape))
        return leapfrog(shaped, start._replace(potential_grad=shaped(view)[1]), **step).position

    view = jnp.zeros((chains, 1))
    for _ in range(20):
        view = unadjusted(next(keys), view)
    error = np.sqrt((moments[3] - moments[1] ** 2) / chains)
    assert abs(np.mean(view**2) - moments[1]) > 8 * error


def test_an_energy_of_nan_is_rejected(keys):
    def broken(images):
        value, gradient = skewed(images)
        return jnp.where(images[:, 0] == 0, value, jnp.nan), gradient

    images = jnp.zeros((5, 2))
    view, info = run(next(keys), images, broken, iterations=2, leapfrog_steps=1, step_size=0.1)
    np.testing.assert_array_equal(view, images)
    np.testing.assert_array_equal(info.acceptance_rate, 0)


@pytest.mark.parametrize(("iterations", "leapfrog_steps"), [(1, 1), (2, 3)])
def test_the_potential_is_evaluated_once_a_leapfrog_step(keys, iterations, leapfrog_steps):
    seen = []

    def counting(images):
        seen.append(images.shape)
        return skewed(images)

    images = jnp.zeros((2, 3))
    sampler = hmc(counting, leapfrog_steps=leapfrog_steps, step_size=0.1)
    rows = image_keys(next(keys), 2)
    base.sample(sampler, rows, images, skewed(images), iterations=iterations)
    assert len(seen) == iterations * leapfrog_steps


@pytest.mark.parametrize("mapped", [False, True], ids=["one device", "shard_map"])
def test_a_scan_gives_the_views_of_the_unrolled_loops(keys, mapped):
    images, key = jax.random.normal(next(keys), (8, 3)), next(keys)

    def sample(unroll, rows, images):
        sampler = hmc(skewed, leapfrog_steps=2, step_size=0.8, unroll=unroll)
        return base.sample(sampler, rows, images, iterations=3, unroll=unroll)

    results = []
    for unroll in (True, False):
        function = functools.partial(sample, unroll)
        if mapped:
            mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
            data = PartitionSpec("data")
            function = jax.shard_map(function, mesh=mesh, in_specs=data, out_specs=data)
        results.append(jax.jit(function)(image_keys(key, 8), images))
    assert 0 < np.mean(results[0][1].acceptance_rate) < 1
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), *results)


def test_positions_may_be_any_pytree(keys):
    whole, momentum = jax.random.normal(next(keys), (2, 6, 5))

    def split(rows):
        return {"a": rows[:, :2].reshape(6, 2, 1), "b": rows[:, 2:]}

    def join(tree):
        return jnp.concatenate([tree["a"].reshape(6, 2), tree["b"]], axis=1)

    def of_tree(tree):
        value, gradient = skewed(join(tree))
        return value, split(gradient)

    settings = {"leapfrog_steps": 3, "step_size": 0.5}

    @functools.partial(jax.jit, static_argnums=0)
    def ends(potential, start):
        end = leapfrog(potential, start, **settings)
        return end, kinetic_energy_change(start.momentum, end.momentum)

    start = jax.jit(state_at)(whole, momentum)
    expected, change = ends(skewed, start)
    leaves = start._replace(**{f: split(x) for f, x in start._asdict().items() if f != "potential"})
    end, change_of_tree = ends(of_tree, leaves)
    np.testing.assert_allclose(join(end.position), expected.position, rtol=1e-12)
    np.testing.assert_allclose(end.potential, expected.potential, rtol=1e-12)
    np.testing.assert_allclose(change_of_tree, change, rtol=1e-10)
    rows = image_keys(next(keys), 6)
    view, info = base.sample(hmc(of_tree, **settings), rows, split(whole))
    moved = np.asarray(join(view) - whole)[np.asarray(info.acceptance_rate) == 1]
    assert len(moved) > 2
    assert len(np.unique(moved)) == moved.size  # No two numbers share a draw.
