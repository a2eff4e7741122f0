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


def info_nce(anchors, candidates, positives, tau, positive_in_denominator, excluded=None):
    """Mean over anchors of -<x, positive>/tau + log sum exp."""
    total = 0.0
    for i, x in enumerate(anchors):
        terms = []
        for k, y in enumerate(candidates):
            if k == positives[i] and not positive_in_denominator:
                continue
            if excluded is not None and excluded[i, k]:
                continue
            terms.append(math.exp(np.dot(x, y) / tau))
        total += -np.dot(x, candidates[positives[i]]) / tau + math.log(sum(terms))
    return total / len(anchors)


def two_views(a, b, tau, positive_in_denominator):
    """NRCC (1)-(3) of unit rows; with the positive in the denominator, SimCLR's loss."""
    n, views, total = len(a), (a, b), 0.0
    for own in (0, 1):
        x, partner = views[own], views[1 - own]
        for i in range(n):
            inner = sum(
                math.exp(np.dot(x[i], z[j]) / tau) for z in views for j in range(n) if j != i
            )
            if positive_in_denominator:
                inner += math.exp(np.dot(x[i], partner[i]) / tau)
            total += -np.dot(x[i], partner[i]) / tau + math.log(inner)
    return total / (2 * n)


def two_views_gradient(a, b, tau, printed=False, positive_in_denominator=False):
    """dL/da of NRCC (1)-(3), unit rows as free vectors; `printed`: (7) with its misprint."""
    n, views = len(a), (a, b)
    partner = {id(a): b, id(b): a}

    def denominator(x, i, missing):
        """Sum over the candidates of row i of x."""
        inner = sum(
            math.exp(np.dot(x[i], z[m]) / tau) for z in views for m in range(n) if m != missing
        )
        return inner + positive_in_denominator * math.exp(np.dot(x[i], partner[id(x)][i]) / tau)

    out = np.zeros_like(a)
    for i in range(n):
        own = denominator(a, i, i)
        out[i] = -2 * b[i]
        for j in range(n):
            for s in views:
                if j == i and not (positive_in_denominator and s is b):
                    continue
                other = denominator(s, j, i if printed else j)
                out[i] += math.exp(np.dot(a[i], s[j]) / tau) * (1 / own + 1 / other) * s[j]
    return out / (2 * n * tau)


def byol(predictions, targets):
    """Mean squared distance of unit rows."""
    p, t = unit(predictions), unit(targets)
    return sum(sum((p[i] - t[i]) ** 2) for i in range(len(p))) / len(p)


def nrcc(anchors, positives, negatives, tau, include_own_view):
    """Mean over i of log sum_j exp(<x_i, c_j>/tau) - log sum_j exp(<x_i, y_j>/tau), unit rows."""
    n, total = len(anchors), 0.0
    for i in range(n):
        repulsion = sum(
            math.exp(np.dot(anchors[i], negatives[j]) / tau)
            for j in range(n)
            if j != i or include_own_view
        )
        attraction = sum(math.exp(np.dot(anchors[i], positives[j]) / tau) for j in range(n))
        total += math.log(repulsion) - math.log(attraction)
    return total / n


def softmax_row(x, rows, tau, missing=None):
    """Weights exp(<x, row_j>/tau) / sum, without the row `missing`."""
    weights = np.array(
        [0.0 if j == missing else math.exp(np.dot(x, y) / tau) for j, y in enumerate(rows)]
    )
    return weights / weights.sum()


def nrcc_gradient(a, b, c, tau, include_own_view):
    """dR/da of 1/(2n) sum_i (R_ia + R_ib), unit rows as free vectors, partners as constants."""
    n = len(a)
    out = np.zeros_like(a)
    for i in range(n):
        repel = softmax_row(a[i], c, tau, None if include_own_view else i)
        attract = softmax_row(a[i], b, tau)
        for j in range(n):
            out[i] += repel[j] * c[j] - attract[j] * b[j]
    return out / (2 * n * tau)


def nrcc_gradient_printed(a, b, c, tau):
    """The regularizer's part of the gradients (10) and (11), with (14)'s prefactor 1/(2n)."""
    n = len(a)
    out = np.zeros_like(a)
    for i in range(n):
        attract, repel = softmax_row(a[i], b, tau), softmax_row(a[i], c, tau)
        out[i] = -2 * attract[i] * b[i]
        for j in range(n):
            if j != i:
                back = softmax_row(b[j], a, tau)[i]
                out[i] += repel[j] * c[j] - (attract[j] + back) * b[j]
    return out / (2 * n * tau)


def sghmc(image, gradient, draws, *, iterations, step_size, friction, noise, momentum):
    """NRCC (17), (18) for one image: its view, and where the same noise leads without gradients."""
    ends = []
    for force in (gradient, np.zeros_like):
        position, p = np.array(image), np.array(draws[0])
        for j in range(iterations):
            new = (1 - friction) * p - step_size * force(position) + noise * draws[j + 1]
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


def log_sum_exp(values):
    """log sum exp of a list of floats, shifted by the largest."""
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def info_nce_queue(anchors, keys, queue, filled, tau):
    """MoCo: each anchor's own key against the first `filled` rows of a queue, unit rows."""
    total = 0.0
    for x, key in zip(anchors, keys, strict=True):
        own = np.dot(x, key) / tau
        total += log_sum_exp([own, *(np.dot(x, queue[k]) / tau for k in range(filled))]) - own
    return total / len(anchors)


def info_nce_queue_gradient(anchors, keys, queue, filled, tau):
    """dL/dx = 1/(n tau) (sum_m p_m y_m - key), y the key and the queue's first rows."""
    n = len(anchors)
    out = np.zeros_like(anchors)
    for i in range(n):
        candidates = [keys[i], *queue[:filled]]
        chance = softmax_row(anchors[i], candidates, tau)
        out[i] = sum(p * y for p, y in zip(chance, candidates, strict=True)) - keys[i]
    return out / (n * tau)


def barlow(a, b, off_diagonal, epsilon):
    """Barlow Twins (1), (2), with `epsilon` added to each variance."""
    n, d = a.shape
    ends = []
    for x in (a, b):
        columns = np.zeros_like(x)
        for j in range(d):
            mean = sum(x[i, j] for i in range(n)) / n
            variance = sum((x[i, j] - mean) ** 2 for i in range(n)) / n
            for i in range(n):
                columns[i, j] = (x[i, j] - mean) / math.sqrt(variance + epsilon)
        ends.append(columns)
    total = 0.0
    for i in range(d):
        for j in range(d):
            c = sum(ends[0][m, i] * ends[1][m, j] for m in range(n)) / n
            total += (1 - c) ** 2 if i == j else off_diagonal * c**2
    return total


def barlow_gradient(a, b, off_diagonal, epsilon):
    """dL/da, through the correlations, the standard deviations and the means."""
    n, d = a.shape
    deviation = np.sqrt(a.var(0) + epsilon)
    u = (a - a.mean(0)) / deviation
    v = (b - b.mean(0)) / np.sqrt(b.var(0) + epsilon)
    c = u.T @ v / n
    slope = np.where(np.eye(d, dtype=bool), -2 * (1 - c), 2 * off_diagonal * c)
    out = np.zeros_like(a)
    for i in range(d):
        g = sum(slope[i, j] * v[:, j] for j in range(d)) / n
        out[:, i] = (g - g.mean() - u[:, i] * (g * u[:, i]).mean()) / deviation[i]
    return out


def prototypes(z, labels, clusters):
    """Cluster -> unit sum of its unit rows, clusters with members only."""
    out = {}
    for k in range(clusters):
        members = [z[i] for i in range(len(z)) if labels[i] == k]
        if members:
            out[k] = unit([sum(unit(members))])[0]
    return out


def proto_cl(mu, target, tau, part="whole"):
    """NCC (7), or a term of (8), of dictionaries cluster -> center."""
    total = 0.0
    for k in mu:
        own = np.dot(mu[k], target[k]) / tau
        others = [np.dot(mu[k], mu[j]) / tau for j in mu if j != k]
        if part == "alignment":
            total -= own
        elif part == "uniformity":
            total += log_sum_exp(others) if others else 0.0
        else:
            total += log_sum_exp([own, *others]) - own
    return total / len(mu)


def proto_cl_gradient(mu, target, tau, part="whole"):
    """dL/dmu of (7), `[K, d]`: 1/(K tau) [-(1 - w_kk) mu'_k + sum_j (w_kj + w_jk) mu_j].

    Of (8)'s terms: alignment is the first with w_kk = 0, uniformity the second, w without k = j.
    """
    count = len(mu)
    w = np.zeros((count, count))
    for k in range(count):
        terms = [np.dot(mu[k], target[k] if j == k else mu[j]) / tau for j in range(count)]
        if part == "uniformity":
            terms[k] = -math.inf
        for j in range(count):
            if part != "alignment":
                w[k, j] = math.exp(terms[j] - log_sum_exp(terms))
    out = np.zeros_like(mu)
    for k in range(count):
        if part != "uniformity":
            out[k] = -(1 - w[k, k]) * target[k]
        for j in range(count):
            if j != k:
                out[k] += (w[k, j] + w[j, k]) * mu[j]
    return out / (count * tau)


def kernel(x, y, gammas, temperatures, weight):
    """w exp(-d^gamma_1/tau_1) + (1 - w) exp(-d^gamma_2/tau_2); one kernel with weight None."""
    d = math.sqrt(sum((x - y) ** 2))
    values = [math.exp(-(d**gamma) / tau) for gamma, tau in zip(gammas, temperatures, strict=True)]
    return values[0] if weight is None else weight * values[0] + (1 - weight) * values[1]


def kernel_info_nce(anchors, candidates, positives, like, excluded=()):
    """Kernel-InfoNCE (8): mean of -log k(x, positive) / sum_k k(x, candidate)."""
    total = 0.0
    for i, x in enumerate(anchors):
        inner = [like(x, y) for k, y in enumerate(candidates) if (i, k) not in excluded]
        total -= math.log(like(x, candidates[positives[i]]) / sum(inner))
    return total / len(anchors)


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
