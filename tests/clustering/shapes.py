"""Random sets of rows whose clusters are known, drawn habit by habit from a seed."""

from typing import NamedTuple

import numpy as np

SHARES = {
    "alike": lambda rng, k: np.ones(k),
    "uneven": lambda rng, k: rng.dirichlet(np.full(k, 3.0)),
    "falling": lambda rng, k: 1 / (1 + np.arange(k)),
    "one huge": lambda rng, k: np.where(np.arange(k), 1.0, 6.0 * k),
}
PLACES = ("random", "random", "in groups", "on a line", "one pair near")
WIDTHS = ("round", "round", "unlike", "long", "boxes")
EXTRAS = ("none", "none", "copies", "one row often", "outliers", "noise", "rounded", "units")
NOTHING = ("gaussian", "box", "tails", "correlated", "one axis", "copies", "series", "softmax")


class Drawn(NamedTuple):
    """Rows `[n, d]`, their clusters `[n]` (-1: an outlier), and how they were drawn."""

    x: np.ndarray
    truth: np.ndarray
    habits: str


def centers(rng, k, d, gap, where):
    """Centers `[k, d]` of which the nearest two are `gap` apart."""
    found = rng.normal(size=(k, d))
    if where == "in groups":
        groups = 4 * rng.normal(size=(max(2, k // 4), d))
        found += groups[np.arange(k) % len(groups)]
    if where == "on a line":
        found = np.cumsum(rng.uniform(1, 1.4, k))[:, None] * rng.normal(size=d)
    apart = np.linalg.norm(found[:, None] - found, axis=2) + np.diag(np.full(k, np.inf))
    if where == "one pair near":
        found *= 2 / apart.min()
        i, j = np.unravel_index(apart.argmin(), apart.shape)
        step = found[j] - found[i]
        found[j] = found[i] + step / np.linalg.norm(step)
        apart = np.linalg.norm(found[:, None] - found, axis=2) + np.diag(np.full(k, np.inf))
    return gap / apart.min() * found


def clusters(seed):
    """Clusters at least nine deviations apart, of 15 rows or more (before copies)."""
    rng = np.random.default_rng([71, seed])
    n, d = int(rng.choice([80, 200, 500, 1200])), int(rng.choice([2, 4, 10, 24, 90]))
    k = int(rng.integers(2, min(24, n // 20) + 1))
    sizes, where, width, extra = (
        str(rng.choice(options)) for options in (list(SHARES), PLACES, WIDTHS, EXTRAS)
    )
    share = SHARES[sizes](rng, k)
    truth = np.repeat(np.arange(k), np.maximum(15, n * share / share.sum()).astype(int))
    x = rng.normal(size=(len(truth), d))
    if width == "unlike":
        x *= rng.uniform(0.3, 1, k)[truth, None]
    elif width == "long":
        x *= rng.uniform(0.2, 1, (k, d))[truth]
    elif width == "boxes":
        x = rng.uniform(-1.6, 1.6, x.shape)
    x += centers(rng, k, d, float(rng.choice([9, 14])), where)[truth]
    if extra in ("copies", "one row often"):
        count = int(rng.choice([12, 24, 25, len(x) // 3]))
        again = rng.integers(len(x), size=1 if extra == "one row often" else count)
        again = np.resize(again, count)
        x, truth = np.concatenate([x, x[again]]), np.concatenate([truth, truth[again]])
    elif extra == "outliers":
        count = int(rng.choice([1, max(2, len(x) // 30)]))
        far = rng.normal(size=(count, d)) * 4 * np.abs(x).max() / np.sqrt(d)
        x, truth = np.concatenate([x, far]), np.concatenate([truth, np.full(count, -1)])
    elif extra == "noise":
        x = np.concatenate([x, rng.normal(size=(len(x), 1 + d // 3))], axis=1)
    elif extra == "rounded":
        x = np.round(x, 1)
    elif extra == "units":
        x = 500 + x * rng.uniform(0.6, 1.6, d)
    order = rng.permutation(len(x))
    habits = f"{n} rows, {d} columns, {k} clusters: {sizes}, {where}, {width}, {extra}"
    return Drawn(float(rng.choice([1e-2, 1, 1e2])) * x[order], truth[order], habits)


def nothing(seed):
    """Rows without clusters."""
    rng = np.random.default_rng([72, seed])
    n, d = int(rng.choice([80, 300, 1000])), int(rng.choice([2, 4, 10, 40]))
    kind = NOTHING[seed % len(NOTHING)]
    x = rng.normal(size=(n, d))
    if kind == "box":
        x = rng.random((n, d))
    elif kind == "tails":
        x = rng.standard_t(5, (n, d))
    elif kind == "correlated":
        x = x @ rng.normal(size=(d, d))
    elif kind == "one axis":
        x = 0.2 * x + rng.normal(size=(n, 1))
    elif kind == "copies":
        x[: n // 4] = x[-1]
    elif kind == "series":
        for t in range(1, n):
            x[t] = 0.85 * x[t - 1] + 0.53 * x[t]
        x += 2
    elif kind == "softmax":
        x = np.exp(1.5 * x)
        x /= x.sum(axis=1, keepdims=True)
    return Drawn(x, np.zeros(n, int), f"{n} rows, {d} columns, {kind}")
