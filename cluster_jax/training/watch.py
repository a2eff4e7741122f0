"""Signs of a training that fails without an error: a collapsing embedding, a loss of chance, NaN.

During training `look` measures a fixed set of images, and its figures join the log. `findings`
reads the log, so that it says the same for a run in one piece and for one that was resumed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from cluster_jax.data.images import Dataset, select
from cluster_jax.methods.base import ModelState, Watched
from cluster_jax.metrics.collapse import collapse

# Images of the fixed set, and how often a training looks at them.
PROBE, LOOKS = 512, 20
# Bad steps in a row at which a training stops.
PATIENCE = 3
# Advice against numbers that are not finite; not every method has a temperature.
CALMER = "a lower optimizer.learning_rate or, where the method has one, a higher temperature"
# Names of the figures in the log.
SPREAD = "watch_spread"
RANK = "watch_rank"
CLUSTERS = "watch_clusters"
GAP = "watch_loss_gap"
SKIPPED = "skipped_steps"

# Trainings of all methods on digits and photos end with a spread of 0.8 to 1 and a rank of at least
# 20 in 128 dimensions; the collapsed SimSiam of the tests has 0.24 and 2.6.
_SPREAD, _RANK, _DIMENSIONS = 0.3, 3.0, 16
_CLUSTERS = 1.5
_GAP = 0.005
_EARLY = 0.2  # a loss of chance is no sign of failure in this first share of the steps
# What is said of each kind of finding, with the figures of the log.
_TEXTS = {
    "collapse": "the embedding collapses: spread {watch_spread:.2f} (1 is even) at step {step:,}, "
    "so clusters in it mean little; try a lower optimizer.learning_rate, optimizer.weight_decay "
    "or, with NRCC, nrcc.weight in another folder",
    "clusters": "nearly all images are in one cluster of the training at step {step:,} "
    "({watch_clusters:.1f} clusters of equal size); try a lower optimizer.learning_rate or fewer "
    "clusters in another folder",
    "loss": "the loss is that of chance at step {step:,}: the network tells no image from another; "
    "try another optimizer.learning_rate or a lower temperature in another folder",
}


class Finding(NamedTuple):
    """A sign of failure that was seen in the log of a training.

    Attributes:
        kind: "collapse", "clusters", "loss" or "skipped".
        since: step at which it was first seen.
        until: step at which it was last seen.
        lasts: whether the last look still saw it.
        text: what it is and what to change, in one sentence.
    """

    kind: str
    since: int
    until: int
    lasts: bool
    text: str


def probe(dataset: Dataset, batch_size: int) -> Dataset:
    """Selects the images to look at, evenly spaced in the set: one batch of the embedding."""
    count = min(PROBE, batch_size, dataset.size)
    return select(dataset, np.arange(count) * dataset.size // count)


def is_due(step: int, total: int, log_every: int) -> bool:
    """Returns whether to look after a step, about `LOOKS` times in a training and at its end."""
    every = log_every * math.ceil(total / LOOKS / log_every)
    return step % every == 0 or step == total


def look(
    features: Mapping[str, NDArray],
    model_state: ModelState,
    means: Mapping[str, float],
    watched: Watched,
) -> dict[str, float]:
    """Computes figures of the probe set for the log.

    Args:
        features: of the probe set, `{"backbone": [n, d], ...}`.
        model_state: the method's state.
        means: of the logged values since the last line of the log.
        watched: the method's loss of chance and pseudo-labels.
    """
    rows = features.get("projection", features["backbone"])
    values = {}
    if watched.chance is not None:
        name, chance = watched.chance
        # One candidate, or one class, has a loss of chance of zero.
        values[GAP] = abs(means[name] - chance) / max(chance, 1.0)
    if np.isfinite(rows).all():
        measured = collapse(rows)
        values[SPREAD] = measured["std"] * math.sqrt(rows.shape[1])
        # In few dimensions a low rank is no sign.
        if rows.shape[1] >= _DIMENSIONS:
            values[RANK] = measured["effective_rank"]
    if watched.pseudo_labels is not None:
        labels = np.asarray(jax.device_get(watched.pseudo_labels(model_state)))
        if labels.any():  # They are all zero before the first refresh.
            values[CLUSTERS] = float(np.exp(stats.entropy(np.bincount(labels))))
    return values


def looks(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the lines of a log that have figures of `look`."""
    return [r for r in records if r.get(GAP) is not None or r.get(SPREAD) is not None]


def findings(records: Sequence[Mapping[str, Any]], total: int) -> list[Finding]:
    """Lists the findings in the log of a training.

    Args:
        records: lines of the log.
        total: number of steps of the training.
    """
    signs = {
        "collapse": lambda r: _value(r, SPREAD, 1.0) < _SPREAD or _value(r, RANK, _RANK) < _RANK,
        "clusters": lambda r: _value(r, CLUSTERS, 9.0) < _CLUSTERS,
        "loss": lambda r: r["step"] >= _EARLY * total and _value(r, GAP, 1.0) < _GAP,
    }
    result = [_finding(kind, looks(records), is_seen) for kind, is_seen in signs.items()]
    bad = [r for r in records if r.get(SKIPPED)]
    if bad:
        count = int(sum(r[SKIPPED] for r in bad))
        first, last = bad[0]["step"], bad[-1]["step"]
        steps = "step was" if count == 1 else "steps were"
        why = "whose loss or gradient was not finite"
        text = f"{count} {steps} skipped, {why}: try {CALMER} in another folder"
        result.append(Finding("skipped", first, last, last == records[-1]["step"], text))
    return [finding for finding in result if finding is not None]


def _finding(kind: str, looks: list, is_seen: Any) -> Finding | None:
    """Returns a finding of a kind if two looks in a row, or the last, have seen it; else None."""
    seen = [is_seen(r) for r in looks]
    rows = [i for i, now in enumerate(seen) if now and (i + 1 == len(seen) or seen[i + 1])]
    rows += [i + 1 for i in rows if i + 1 < len(seen)]
    if not rows:
        return None
    first, last = looks[min(rows)], looks[max(rows)]
    text = _TEXTS[kind].format_map(last)
    return Finding(kind, first["step"], last["step"], last is looks[-1], text)


def _value(record: Mapping[str, Any], name: str, missing: float) -> float:
    """Returns a value of the log, which has null where it was not finite; 0 is a value."""
    value = record.get(name)
    return missing if value is None else value
