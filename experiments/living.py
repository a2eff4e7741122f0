"""Ids that stay while a collection grows.

    python -m experiments.living FEATURES.npz...

Each file has `features` `[n, d]` and `labels` `[n]` of photos. A stream is a first fit and ten
updates by `SmoothTree.partial_fit`; its rows are photos of some classes, of which three (of many:
six) are born on the way: "births" draws the shares of the classes anew at each update, "long tail"
has classes of very different sizes, in "drift" the shares wander, in "copies" a fifth of the new
rows are copies of old ones, half of them with noise, and "many" has up to 40 classes. Labels score,
nothing else. The constants were chosen on the classes of "choose"; "confirm" has the others, on
which one constant was changed. What was tried instead is in log.md.

- ARI in the end, beside that of a fit of everything (wanted: at most 0.02 below), and old rows
  whose id changes at an update (wanted: 2 %), each in a split or merge that the events tell.
- Births: a class is found if, within two updates after it has five rows, an id that is younger than
  its first row has half of its rows or more and consists of it by more than half (wanted: 80 %);
  in parentheses those that a fit of everything tells, of whatever age its clusters are.
- False births: ids that emerge and whose commonest class was not born on the way, or has an id
  (wanted: 0.1). Clusters that keep their id in a refit after the last update, and rows (wanted:
  95 %).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from cluster_jax import SmoothTree
from cluster_jax.cli import exit_codes
from cluster_jax.clustering import stable_ids
from cluster_jax.core.checks import InputError
from cluster_jax.data import arrays
from experiments import tables

FILE = Path(__file__).parent / "living.jsonl"
KINDS = ("births", "long tail", "drift", "copies", "many")
HALVES = ("choose", "confirm")
STREAMS, UPDATES = 20, 10


class Stream(NamedTuple):
    """Rows `[n, d]` in their order, their classes `[n]`, where each update ends, those born."""

    x: NDArray
    y: NDArray
    ends: NDArray
    born: list[int]


def stream(features: NDArray, labels: NDArray, kind: str, seed: int, half: int) -> Stream:
    """A stream of one kind from the classes of a half, 0 or 1."""
    rng = np.random.default_rng(seed)
    pool = np.arange(half, labels.max() + 1, 2)
    n = min({"long tail": 16, "drift": 12, "many": 40}.get(kind, 8), len(pool) - (kind == "many"))
    n_born, step = (6, 3 * n) if kind == "many" else (3, 30)
    classes, birth = rng.choice(pool, n, replace=False), np.zeros(n, int)
    birth[-n_born:] = rng.integers(1, UPDATES - 3, n_born)
    left = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
    weights, first = np.ones(n), np.full(n, 20)
    if kind == "long tail":
        weights = (1 / (1 + np.arange(n)))[rng.permutation(n)]
        first = np.maximum(6, 45 * weights / weights.max()).astype(int)
    wandering, rows, ends = rng.normal(size=n), list[int](), list[int]()
    for update in range(UPDATES + 1):
        live = np.flatnonzero(birth <= update)
        if update == 0:
            new = [left[c].pop() for c in live for _ in range(first[c])]
        else:
            shares = rng.dirichlet(np.full(len(live), 3.0))
            if kind == "drift":
                wandering += rng.normal(size=n) * 0.7
                shares = np.exp(wandering[live])
            elif kind == "long tail":
                shares = weights[live]
            new = []
            for _ in range(step):
                there = shares * [len(left[c]) > 0 for c in live]
                new.append(left[rng.choice(live, p=there / there.sum())].pop())
            if kind == "copies":
                new += list(rng.choice(rows, step // 4, replace=False))
        rows += rng.permutation(new).tolist()
        ends.append(len(rows))
    x, y = features[rows].astype(np.float32), labels[rows]
    _, before = np.unique(rows, return_index=True)
    noisy = np.setdiff1d(np.arange(len(rows)), before)[::2]
    x[noisy] += 1e-3 * np.abs(x).mean() * rng.normal(size=(len(noisy), x.shape[1]))
    ids, y = np.unique(y, return_inverse=True)
    came = np.isin(ids, classes[birth > 0])
    return Stream(x, y, np.array(ends), np.flatnonzero(came).tolist())


def updates(s: Stream) -> Iterator[tuple[NDArray, set[int]]]:
    """`SmoothTree.partial_fit`: ids after each update, and the ids that emerged there."""
    model, before = SmoothTree(), s.x[:0, 0].astype(int)
    for a, b in zip([0, *s.ends], s.ends, strict=False):
        model.partial_fit(s.x[a:b])
        after, events = model.labels_, model.changes_
        pairs = zip(before.tolist(), after[:a].tolist(), strict=True)
        told = {(e.id, to) for e in events for to in e.into}
        assert {pair for pair in pairs if pair[0] != pair[1]} == told
        yield after, {e.id for e in events if e.kind == stable_ids.EMERGED}
        before = after


def _found(labels: NDArray, y: NDArray, c: int) -> int | None:
    """The cluster that has half of a class or more and consists of it by more than half."""
    own = np.bincount(labels[y == c])
    most = int(own.argmax())
    is_most = 2 * own[most] >= (y == c).sum() and 2 * own[most] > (labels == most).sum()
    return most if is_most else None


def score(s: Stream, fits: list[NDArray], history: list[tuple[NDArray, set[int]]]) -> dict:
    """The figures of one stream; `fits`: clusters of a fit of everything after each update."""
    ids = [now for now, _ in history]
    first = {c: u for u in range(UPDATES, -1, -1) for c in np.unique(ids[u]).tolist()}
    births, found, by_fit = 0, 0, 0
    for c in s.born:
        came = int(np.searchsorted(s.ends, np.flatnonzero(s.y == c)[0], side="right"))
        five = [u for u in range(UPDATES + 1) if (s.y[: s.ends[u]] == c).sum() >= 5]
        if not five or five[0] == UPDATES:
            continue
        births += 1
        when = range(five[0], min(five[0] + 2, UPDATES) + 1)
        young = [_found(ids[u], s.y[: s.ends[u]], c) for u in when]
        found += any(id is not None and first[id] >= came for id in young)
        by_fit += any(_found(fits[u], s.y[: s.ends[u]], c) is not None for u in when)
    false, taken = 0, set[int]()
    for now, born in history[1:]:
        for cluster in born:
            own = np.bincount(s.y[: len(now)][now == cluster])
            c = int(own.argmax())
            is_right = c in s.born and c not in taken and 2 * own[c] > own.sum()
            false += not is_right
            taken |= {c} if is_right else set()
    again = stable_ids.refit(stable_ids.start(ids[-1]), fits[-1]).ids
    return {
        "full": adjusted_rand_score(s.y, fits[-1]),
        "ari": adjusted_rand_score(s.y, ids[-1]),
        "moved": float(np.mean([(b[: len(a)] != a).mean() for a, b in pairwise(ids)])),
        "births": births,
        "found": found,
        "found_by_fit": by_fit,
        "false": false / UPDATES,
        "clusters_kept": float(np.isin(np.unique(ids[-1]), again).mean()),
        "rows_kept": float((again == ids[-1]).mean()),
    }


def measure(files: list[dict[str, NDArray]], i: int) -> dict[str, float]:
    """The figures of a stream, whose file, kind and half follow from its number."""
    file = files[i // len(KINDS) % len(files)]
    s = stream(file["features"], file["labels"], KINDS[i % len(KINDS)], i, i // STREAMS)
    fits = [SmoothTree().fit(s.x[:end]).labels_ for end in s.ends]
    return {"rows": len(s.x), **score(s, fits, list(updates(s)))}


def table(lines: list[dict]) -> str:
    """A row for each half, and for each kind of it."""
    columns = ["streams", "number", "rows in the end", "ARI, all anew", "ARI in the end"]
    columns += ["old rows that change id, an update", "births found (by a fit of all)"]
    columns += ["false births, an update", "clusters kept by a refit", "rows kept"]
    rows = []
    for half, kind in product(HALVES, (None, *KINDS)):
        own = [e for e in lines if e["half"] == half and kind in (None, e["kind"])]
        of = {key: np.array([e[key] for e in own]) for key in own[0]}
        births = f"{of['found'].sum()} of {of['births'].sum()} ({of['found_by_fit'].sum()})"
        rows.append([
            half if kind is None else f"{half}, {kind}", len(own),
            f"{of['rows'].min():,} to {of['rows'].max():,}",
            *(f"{of[key].mean():.3f}" for key in ("full", "ari")), f"{of['moved'].mean():.2%}",
            births, f"{of['false'].mean():.2f}",
            *(f"{of[key].mean():.3f}" for key in ("clusters_kept", "rows_kept")),
        ])  # fmt: skip
    return tables.markdown(columns, rows)


def _load(name: Path) -> dict[str, NDArray]:
    x, others, (key, *_) = arrays.read_arrays(str(name), ("features",))
    if "labels" not in others:
        has = ", ".join([key, *others])
        raise InputError(f"{name} must hold features and labels; it has {has}")
    return {"features": x, "labels": others["labels"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all files, prints the table, and writes the page."""
    parser = tables.parser("living", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FEATURES.npz")
    parser.add_argument("--out", type=Path, default=FILE, help="file of the results")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        _run(flags.files, tables.Lines(flags.out, "stream"))


def _run(names: list[Path], found: tables.Lines) -> None:
    """Adds the streams that are not there yet, and writes the page."""
    files = [_load(name) for name in names]
    for i in range(2 * STREAMS):
        case = {"stream": i, "half": HALVES[i // STREAMS], "kind": KINDS[i % len(KINDS)]}
        found.add(case, partial(measure, files, i))
    about = (__doc__ or "").split("\n\n", 2)[2].strip()
    command = " ".join(["python -m experiments.living", *(name.name for name in names)])
    found.write(command, f"# Ids that stay\n\n{about}", table(found.lines), cores="all cores")


if __name__ == "__main__":
    main()
