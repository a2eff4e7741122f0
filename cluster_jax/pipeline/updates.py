"""Updates of a finished run: what is new joins its clusters, which keep their ids.

`STATE` in the workdir has the clusters of all images or rows so far, see `clustering.living`, and
their contents, by which a moved or renamed file is the same image. `HISTORY` has a line for each
update. A run of photos becomes the run of the photos that are there now, with its map, report and
tables; whoever reads it needs to know nothing of updates. All files are replaced at once.
"""

import collections
import dataclasses
import datetime
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering import constraints, knn, living, smooth
from cluster_jax.clustering.living import Event, State
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, buckets, checks, disk, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import images, metadata, scan, splits
from cluster_jax.data.metadata import Rows
from cluster_jax.evaluation import (
    assignments,
    clusters,
    comparison,
    decisions,
    report,
    report_data,
)
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.decisions import NO_CLUSTER, Decisions
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.pipeline import (
    build,
    corrections,
    embeddings,
    inference,
    outputs,
    provenance,
    versions,
)
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.pipeline.embed import UNREADABLE, embed_frozen, pretrained, readable_rows
from cluster_jax.pipeline.inference import TrainedRun
from cluster_jax.training import state as states

STATE, HISTORY, TABLES = "living.npz", "history.jsonl", "history"
UNDONE = "decisions_undone.csv"
_NAMED = 12  # events that are told


class Known(NamedTuple):
    """What a workdir knows of its n images or rows.

    Attributes:
        state: their clusters.
        names: str `[n]`, as in `assignments.csv`, unescaped.
        contents: uint8 `[n, 16]`, digests.
        x: `[n, d]`, the features.
        absent: content of an image that is gone, as hexadecimal digits -> the cluster to which a
            person has moved it, or `NO_CLUSTER`: it may come back.
    """

    state: State
    names: NDArray
    contents: NDArray
    x: NDArray
    absent: Mapping[str, int] = {}


def _write_state(folder: epath.Path, known: Known, *, has_rows: bool) -> None:
    stored = {
        "names": known.names,
        "contents": known.contents,
        "absent": np.asarray(json.dumps(dict(known.absent))),
        "version": np.asarray(__version__),
        **({"x": known.x} if has_rows else {}),
        **living.to_arrays(known.state),
    }
    io.write_arrays(folder / STATE, stored, compressed=False)


def _read_state(workdir: epath.Path, x: NDArray | None = None) -> Known | None:
    """The content of `STATE`, or None; `x` are the features if they are stored elsewhere."""
    if not (workdir / STATE).exists():
        return None
    stored = io.read_arrays(workdir / STATE)
    try:
        state, names, contents = living.from_arrays(stored), stored["names"], stored["contents"]
        absent = json.loads(stored["absent"].item())
        return Known(state, names, contents, stored["x"] if x is None else x, absent)
    except (KeyError, TypeError) as error:
        raise workdirs.older_version(workdir, error) from error


# What a command prints: lines for a person, and values for a program.
Ended = tuple[str, dict[str, Any]]


def undo(workdir: epath.PathLike) -> Ended:
    """Takes the last update back, bit for bit; returns what is printed.

    Raises:
        InputError: there is none, or another process uses the workdir.
    """
    workdir = _folder(workdir)
    decided, said = workdir / decisions.DECISIONS, ""
    with workdirs.locked(workdir):
        files = (decided, workdir / HISTORY)
        if all(file.exists() for file in files) and _age(decided) > _age(workdir / HISTORY):
            # Not as they were: what a person has said since is never lost.
            later = decided.read_bytes()
            versions.undo(workdir)
            io.write(workdir / UNDONE, later)
            said = f" What was decided since is in {workdir / UNDONE}."
        else:
            versions.undo(workdir)
    text = f"Took the last update of {workdir} back: all of its files are as they were before."
    return text + said, {"workdir": str(workdir), "undone": True}


def _age(file: epath.Path) -> int:
    return os.stat(file).st_mtime_ns


def _folder(workdir: epath.PathLike) -> epath.Path:
    path = buckets.path(workdir)
    if "://" in str(path):
        raise InputError(f"the workdir of an update must be a local folder; got {path}")
    if not path.is_dir():
        raise InputError(f"the workdir must be that of a finished run; got {path}, no such folder")
    versions.finish(path)
    return path


class Change(NamedTuple):
    """What is new, and what became of the clusters.

    Attributes:
        came, left, renamed: numbers of images or rows.
        described: number of known rows whose metadata are others now.
        events: what has happened to the clusters.
        is_refit: whether all was clustered anew.
        noun, group: what one of them, and a cluster, is called.
    """

    came: int
    left: int
    renamed: int
    described: int
    events: tuple[Event, ...]
    is_refit: bool
    noun: str
    group: str


def words(change: Change, names: Mapping[int, str]) -> str:
    """What has happened, in plain words: numbers of files, then a line for each event.

    Args:
        change: the update.
        names: a cluster -> its name.

    Example:
        >>> print(words(Change(2, 0, 0, 0, (Event("grew", 3, 2),), False, "photo", "group"), {}))
        2 photos are new.
          group 3 grew by 2 photos
    """
    noun, group = change.noun, change.group

    def called(cluster: int) -> str:
        return f"{group} {cluster}" + (f" ({names[cluster]})" if names.get(cluster) else "")

    def told(event: Event) -> str:
        into, count = ", ".join(map(called, event.into)), counted(event.rows, noun)
        return {
            living.GREW: f"{called(event.id)} grew by {count}",
            living.SPLIT: f"{called(event.id)} split: {count} of it now in {into}",
            living.MERGED: f"{called(event.id)} merged into {into} ({count})",
            living.EMERGED: f"{called(event.id)} emerged ({count})",
            living.DISAPPEARED: f"{called(event.id)} disappeared: none of its {noun}s is left",
        }.get(event.kind, "")

    numbers = (
        *((change.came, "new"), (change.left, "gone"), (change.renamed, "moved or renamed")),
        (change.described, "described anew"),
    )
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in numbers if n]
    lines = ["; ".join(parts) + "."] if parts else [f"No {noun} is new."]
    if change.is_refit:
        lines.append(f"All {noun}s were clustered anew.")
    kinds = (living.EMERGED, living.SPLIT, living.MERGED, living.DISAPPEARED, living.GREW)
    shown = sorted(
        (event for event in change.events if event.kind in kinds),
        key=lambda event: (kinds.index(event.kind), -event.rows, event.id),
    )
    lines += [f"  {told(event)}" for event in shown[:_NAMED]]
    if len(shown) > _NAMED:
        lines.append(f"  and {len(shown) - _NAMED:,} more; all are in {HISTORY}")
    same = sum(event.kind == living.SURVIVED for event in change.events)
    if same:
        lines.append(
            f"  {counted(same, group)} survived as {'it was' if same == 1 else 'they were'}"
        )
    return "\n".join(lines)


def _line(change: Change, state: State) -> dict[str, Any]:
    """The line of an update in `HISTORY`, as values."""
    return {
        "update": state.updates,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "new": change.came,
        "gone": change.left,
        "renamed": change.renamed,
        "described": change.described,
        "refit": change.is_refit,
        f"{change.noun}s": len(state.ids),
        "clusters": len(np.unique(state.ids)),
        "events": [event._asdict() for event in change.events],
        "version": __version__,
    }


def _grow(
    known: Known,
    x_new: NDArray,
    is_kept: NDArray,
    rules: constraints.Constraints,
    fit: Callable[[NDArray], Clustering],
    *,
    refit: bool,
) -> tuple[State, Clustering]:
    """The clusters of the rows that are kept, then the new ones, and a fit of all of them."""
    fitted = dict[int, Clustering]()

    def look(rows: NDArray) -> living.Look:
        fitted[len(rows)] = found = fit(rows)
        assert found.tree is not None
        tree = found.tree
        return living.Look(tree.labels_, tree.predict, tree.smoother_.sharp, tree.leaves_)

    x = np.concatenate([known.x[is_kept], x_new])
    after = living.update(living.without(known.state, is_kept), x, look)
    born = {event.id for event in after.events if event.kind == living.EMERGED}
    found = fitted[len(x)] if len(x) in fitted else fit(x)
    if refit:
        assert found.tree is not None
        after = living.refit(after, found.tree.labels_)
        born |= {event.id for event in after.events if event.kind == living.EMERGED}
    before = known.state.ids[is_kept]
    ids, next_id = constraints.enforced(before, after.ids, after.next_id, rules)
    made = living.events(before, ids, born, had=known.state.ids)
    updates = known.state.updates + 1
    since = np.where(after.since > known.state.updates, updates, after.since)
    return State(ids, since, after.apart, next_id, updates, made), found


def _old_map(points: NDArray | None, is_kept: NDArray, found: Clustering, x: NDArray) -> Clustering:
    """Clusters that have the old map as points: new images are between those they are most like."""
    if points is None or not is_kept.any() or found.tree is None:
        return found
    sharp, n_old = found.tree.smoother_.project(x), int(is_kept.sum())
    near = knn.nearest(sharp[n_old:], sharp[:n_old], 3).indices
    old = points[is_kept]
    return found._replace(points=np.concatenate([old, old[near].mean(axis=1)]))


def _with_decisions(known: Known, found: decisions.Clusters, decided: Decisions) -> Known:
    """The clusters as a person has corrected them; an image in no cluster has its own here."""
    labels = decided.labels(found)
    own = np.array([decided.root(label) for label in found.labels.tolist()], np.int64)
    ids = np.where(labels == NO_CLUSTER, own, labels)
    next_id = max(known.state.next_id, decided.next_cluster(found))
    return known._replace(state=known.state._replace(ids=ids, next_id=next_id))


def _facts(found: decisions.Clusters, decided: Decisions) -> Decisions:
    """Decisions as facts about images: a merge is one of typical images of both clusters."""
    typical = dict[int, str]()
    for i in np.argsort(found.distances, kind="stable").tolist():
        typical.setdefault(int(found.labels[i]), found.names[i])
    together = {
        (typical[a], typical[b])
        for a, b in decided.merged.items()
        if a in typical and b in typical and typical[a] not in decided.moved
    }
    moved = {
        name: cluster if cluster == NO_CLUSTER else decided.root(cluster)
        for name, cluster in decided.moved.items()
    }
    named = {decided.root(cluster): name for cluster, name in decided.named.items()}
    return Decisions(moved, {}, named, frozenset(), decided.same | together, decided.apart)


def _rules(facts: Decisions, names: Sequence[str]) -> constraints.Constraints:
    """Facts about images that are there, as constraints on their places.

    Raises:
        InputError: two facts contradict each other; names both.
    """
    place = {name: i for i, name in enumerate(names)}
    fixed = {
        place[name]: cluster
        for name, cluster in facts.moved.items()
        if name in place and cluster != NO_CLUSTER
    }
    together, apart = (
        [(place[a], place[b]) for a, b in sorted(pairs) if a in place and b in place]
        for pairs in (facts.same, facts.apart)
    )
    first = constraints.groups(len(names), together)
    given = dict[int, int]()
    must = "the facts in decisions.csv must agree"
    for row, cluster in fixed.items():
        other = given.setdefault(int(first[row]), row)
        if fixed[other] != cluster:
            raise InputError(
                f"{must}; got {names[row]!r} in group {cluster} and in one group with "
                f"{names[other]!r}, which is in group {fixed[other]}: leave one"
            )
    for a, b in apart:
        same = first[a] == first[b]
        if same or (a in fixed and b in fixed and fixed[a] == fixed[b]):
            why = "one group" if same else f"group {fixed[a]}"
            raise InputError(
                f"{must}; got {names[a]!r} and {names[b]!r} apart, and both in {why}: leave one"
            )
    return constraints.Constraints(fixed, together, apart)


def _renamed(facts: Decisions, now: Mapping[str, str], living_ids: NDArray) -> Decisions:
    """Facts by the names that images have now; without those of images that are gone."""
    pairs = (
        frozenset((now[a], now[b]) for a, b in of if a in now and b in now)
        for of in (facts.same, facts.apart)
    )
    moved = {now[name]: cluster for name, cluster in facts.moved.items() if name in now}
    alive = set(living_ids.tolist())
    named = {cluster: name for cluster, name in facts.named.items() if cluster in alive}
    return Decisions(moved, {}, named, frozenset(), *pairs)


def _decide(workdir: epath.Path, facts: Decisions, *, with_report: bool) -> None:
    """Applies what a person has said to the new version."""
    new = workdir / versions.SIDE / "new"
    if facts != Decisions() or (workdir / decisions.DECISIONS).exists():
        _, found = decisions.clustered(assignments.read_workdir(new))
        io.write(new / decisions.DECISIONS, decisions.to_csv(facts, found))
        corrections.correct(new, (), workdir, with_report=with_report)


def _finish(
    workdir: epath.Path,
    before: Known,
    known: Known,
    facts: Decisions,
    change: Change,
    *,
    has_rows: bool,
) -> Ended:
    """Writes what an update adds to the files of a run, puts all in place, and says what it did."""
    new = workdir / versions.SIDE / "new"
    names = {**_suggested(new), **facts.named}
    table = assignments.read_workdir(new)
    labels = [int(row[table.cluster]) for row in table.rows]
    columns = assignments.columns_of(table)
    columns["id"] = labels
    columns["name"] = [names.get(label, "") for label in labels]
    columns["since"] = known.state.since
    io.write(new / workdirs.ASSIGNMENTS, assignments.to_csv(columns))
    _write_state(new, known, has_rows=has_rows)
    last = known.state.updates
    disk.make(new / TABLES)
    io.write(new / TABLES / f"{last:04}.csv", _version(known, names))
    if last == 1:
        io.write(new / TABLES / "0000.csv", _version(before, facts.named))
    return _commit(workdir, change, known.state, names)


def _commit(workdir: epath.Path, change: Change, state: State, names: Mapping[int, str]) -> Ended:
    """Puts the new version in place, with a line in the history, and says what was done."""
    new, history, values = workdir / versions.SIDE / "new", workdir / HISTORY, _line(change, state)
    lines = history.read_text() if history.exists() else ""
    io.write(new / HISTORY, f"{lines}{json.dumps(values)}\n")
    # A page of what was there before would mislead.
    removed = () if (new / workdirs.REPORT).exists() else (workdirs.REPORT,)
    versions.commit(workdir, decisions.DECISIONS, removed=removed)
    return words(change, names), {"workdir": str(workdir), **values}


def _version(known: Known, names: Mapping[int, str]) -> str:
    """The table of a version, by which two of them are compared."""
    ids = known.state.ids.tolist()
    columns: dict[str, assignments.Column] = {
        "content": [content.tobytes().hex() for content in known.contents],
        "image": known.names.tolist(),
        "id": ids,
        "name": [names.get(cluster, "") for cluster in ids],
    }
    return assignments.to_csv(columns)


def compare(before: str, after: str) -> comparison.Comparison:
    """Compares two versions of a run, or one with its last: `W@3` is W after its third update.

    Images are the same by their content; clusters, by their id.

    Raises:
        InputError: the workdir has no such version, or there are two workdirs.
    """
    (first, old), (second, new) = map(_read_version, (before, after))
    if os.path.realpath(first) != os.path.realpath(second):
        raise InputError(f"versions must be of one workdir, as W@3 W@7; got {before} and {after}")
    shown = {key: name for table in (old, new) for key, (name, _) in table.items()}
    clusterings = ({shown[k]: cluster for k, (_, cluster) in of.items()} for of in (old, new))
    compared = comparison.compare(*clusterings)
    same = {cluster: cluster for _, cluster in old.values()}
    return compared._replace(matched=same)


def _read_version(given: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """The workdir, and a key of the content of each image -> its name and cluster."""
    path, _, number = given.rpartition("@") if re.search("@[0-9]+$", given) else (given, "", "")
    folder = buckets.path(path) / TABLES
    there = sorted(int(file.stem) for file in folder.glob("*.csv")) if folder.exists() else []
    last = int(number) if number else max(there, default=-1)
    if last not in there:
        has = f"0 to {max(there)}" if there else "none, as it was never updated"
        raise InputError(
            f"{given} must be a version of a run; got {path}, whose versions are {has}"
        )
    table, counts = dict[str, tuple[str, str]](), collections.Counter[str]()
    for row in assignments.read(folder / f"{last:04}.csv")[1]:
        counts[row["content"]] += 1
        key = f"{row['content']} {counts[row['content']]}"
        table[key] = assignments.unescaped(row["image"]), row["id"]
    return path, table


def _suggested(workdir: epath.Path) -> dict[int, str]:
    named = report_data.suggested_names(workdirs.read_values(workdir / workdirs.RESULTS))
    return {int(cluster): name for cluster, name in named.items()}


def _nothing(workdir: epath.Path, state: State, noun: str, group: str) -> Ended:
    has = f"{workdir} has all {counted(len(state.ids), noun)} already, and none is gone"
    values = _line(Change(0, 0, 0, 0, (), False, noun, group), state)
    return f"Nothing has happened: {has}.", {"workdir": str(workdir), **values}


def update_photos(
    workdir: epath.PathLike,
    photos: Sequence[str] = (),
    *,
    refit: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run of photos with the files that are there now; returns what is printed.

    Args:
        workdir: of a finished run that trains nothing, whose clusters are those of the tree.
        photos: folders or files beside those of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the photos cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir), disk.explained(workdir):
        run = inference.read(workdir)
        _check(run, workdir)
        known = _known_photos(workdir, run)
        facts = _facts(run.found, run.decisions)
        inputs = _inputs(run, photos)
        dataset, config = inputs.dataset, inputs.config
        digests = images.contents(dataset)
        old, new = _matched(known, digests, dataset.sources or ())
        is_kept = old >= 0
        network = pretrained(config, dataset.shape[2], states.make_mesh())
        _check_weights(network.checksum, run, config)
        embedding = readable_rows(io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING))
        embedding = {name: rows[is_kept] for name, rows in embedding.items()}
        skipped: tuple[tuple[str, str], ...] = ()
        if len(new):
            fresh = images.select(dataset, new)
            made = embed_frozen(inputs._replace(dataset=fresh), network)
            is_bad = made.get(UNREADABLE, np.zeros(len(new), bool))
            skipped, new = images.without(fresh, is_bad).skipped, new[~is_bad]
            rows = readable_rows(made)
            embedding = {k: np.concatenate([v, rows[k]]) for k, v in embedding.items()}
        order = np.concatenate([old[is_kept], new])
        sources = [(dataset.sources or ())[i] for i in order]
        was = known.names[is_kept].tolist()
        roots = [str(scan.root(str(data.dir))) for data in (run.config.data, config.data)]
        paths = (
            [os.path.abspath(os.path.join(root, name)) for name in names]
            for root, names in zip(roots, (was, sources), strict=True)
        )
        renamed = sum(a != b for a, b in zip(*paths, strict=False))
        if not refit and not len(new) and is_kept.all() and was == sources:
            return _nothing(workdir, known.state, "photo", "group")
        if not len(order):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        absent = dict(known.absent)
        for i in np.flatnonzero(~is_kept).tolist():
            if (name := str(known.names[i])) in facts.moved:
                absent[known.contents[i].tobytes().hex()] = facts.moved[name]
        facts = _renamed(facts, dict(zip(was, sources, strict=False)), known.state.ids)
        back = {
            name: absent.pop(key)
            for name, digest in zip(sources[len(was) :], digests[new], strict=True)
            if (key := digest.tobytes().hex()) in absent
        }
        facts = facts._replace(moved={**facts.moved, **back})
        dataset = images.select(dataset, order)._replace(unreadable=None, skipped=skipped)
        inputs = inputs._replace(dataset=dataset)
        features = arrays.normalize_rows(embedding[config.eval.features])
        started = time.perf_counter()

        def fit(rows: NDArray) -> Clustering:
            section = config.eval
            return clusters.run_tree(
                rows, metric=section.reduce.metric, k=section.k, seed=config.seed
            )

        state, found = _grow(
            known, features[is_kept.sum() :], is_kept, _rules(facts, sources), fit, refit=refit
        )
        before = known
        known = Known(state, np.array(sources, np.str_), digests[order], features, absent)
        found = clusters.with_ids(found, features, state.ids)
        found = _old_map(run.clusters.points, is_kept, found, features)
        memory = _in_memory(inputs, embedding, found, network.checksum, known, started)
        outputs.write_run(versions.start(workdir), memory, workdir, with_report=with_report)
        change = Change(
            *(len(new), int((~is_kept).sum()), renamed, 0, state.events, refit, "photo", "group")
        )
        _decide(workdir, facts, with_report=with_report)
        return _finish(workdir, before, known, facts, change, has_rows=False)


def _check(run: TrainedRun, workdir: epath.Path) -> None:
    must = "the run of an update must"
    if run.known is not None or run.is_trained or run.config.embedder is not None:
        raise InputError(
            f"{must} train nothing, as those of `cluster-jax images`; got {workdir}, whose network "
            "is one of its first images: train again, or use predict"
        )
    if run.config.data.name != "folder" or run.config.data.limit is not None:
        raise InputError(
            f"{must} be of all images of a folder; got {workdir}, which has data.name="
            f"{run.config.data.name} and data.limit={run.config.data.limit}"
        )
    if run.config.eval.method != "tree":
        raise InputError(
            f"eval.method must be 'tree' for an update; got {run.config.eval.method!r} in {workdir}"
        )


def _check_weights(checksum: str, run: TrainedRun, config: Any) -> None:
    if checksum != run.images[workdirs.WEIGHTS]:
        raise InputError(
            f"network.weights must be those of the run; got {config.network.weights}, which has "
            "other values now: restore the file"
        )


def _known_photos(workdir: epath.Path, run: TrainedRun) -> Known:
    """What the run knows, with the clusters that a person has corrected."""
    stored, known = run.clusters, _read_state(workdir, run.features)
    if known is None:
        if stored.contents is None:
            raise workdirs.older_version(workdir, "it has no digests of its files")
        names = np.array(inference.files(run), np.str_)
        state = living.start(run.found.labels)
        known = Known(state, names, stored.contents, run.features)
    if known.names.tolist() != list(run.found.names):
        raise InputError(
            f"{STATE} in {workdir} must have the images of the run; got those of another one: "
            "delete it to begin with the clusters of the run"
        )
    return _with_decisions(known, run.found, run.decisions)


def _inputs(run: TrainedRun, photos: Sequence[str]) -> build.Inputs:
    """The images that are there now: of the folders of the run, and of others."""
    of_run = (run.config.data.dir or "").split("\n")
    there = [name for name in of_run if buckets.path(name.removeprefix("@")).exists()]
    missing = [name for name in photos if not os.path.exists(os.path.expanduser(name))]
    if missing:
        raise InputError(f"PHOTOS must be folders or files of images; got no {missing[0]}")
    given = [str(workdirs.normalized(name)) for name in photos]
    every = list(dict.fromkeys([*there, *given]))
    if not every:
        raise InputError(f"PHOTOS must be given, because {of_run[0]} is gone; got none")
    inside = [os.path.realpath(os.path.expanduser(name)) + os.sep for name in every]
    every = [
        name
        for name, path in zip(every, inside, strict=True)
        if not any(path != other and path.startswith(other) for other in inside)
    ]
    if len(every) > 1 and any(name.startswith("@") or name.endswith(".zip") for name in every):
        raise InputError(f"PHOTOS must be left out for a run of a list or a .zip; got {photos}")
    values = config_json(run.config.values)
    values["data"] = {**values["data"], "dir": "\n".join(every)}
    config = parse_config(values, run.config.name)
    # Few are decoded: those that are new, and those that the report shows.
    streamed = dataclasses.replace(config.data, cache_mb=0.0)
    with checks.named({"data.dir": "PHOTOS"}):
        dataset, _ = splits.load(streamed, config.novel)
    return build.load_inputs(config, dataset)


def _matched(known: Known, digests: NDArray, names: Sequence[str]) -> tuple[NDArray, NDArray]:
    """For each known image its place among the files of now, -1: gone; and the files that are new.

    Of files with the same content, one of the same name is the image, or else the first.
    """
    there = collections.defaultdict[bytes, list[int]](list)
    for i, digest in enumerate(digests):
        there[digest.tobytes()].append(i)
    place = np.full(len(known.names), -1)
    keys = [digest.tobytes() for digest in known.contents]
    for by_name in (True, False):
        for j in np.flatnonzero(place < 0).tolist():
            same = [i for i in there[keys[j]] if not by_name or names[i] == known.names[j]]
            if same:
                place[j] = same[0]
                there[keys[j]].remove(same[0])
    return place, np.array(sorted(i for left in there.values() for i in left), np.int64)


def _by_name(
    known: Known, digests: NDArray, names: Sequence[str] | None, workdir: epath.Path
) -> tuple[NDArray, NDArray]:
    """For each known row its place among those of now, -1: none; and the rows of new names.

    Raises:
        InputError: rows have no names, or the name of another row of them or of the run.
    """
    if names is None:
        raise InputError(
            f"--features must name its rows, as {workdir} does; got none: say which column by --ids"
        )
    place = {name: i for i, name in enumerate(known.names.tolist())}
    counts = collections.Counter(names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"--features must name each row once; got {repeated[0]!r} several times")
    pairs = [(i, place[name]) for i, name in enumerate(names) if name in place]
    other = [i for i, j in pairs if (digests[i] != known.contents[j]).any()]
    if other:
        raise InputError(
            f"--features must have the vectors of before for rows of {workdir}; got others for "
            f"{len(other):,}, such as {names[other[0]]!r}: give changed rows new names, or cluster "
            "all rows in another folder"
        )
    old = np.full(len(known.names), -1)
    for i, j in pairs:
        old[j] = i
    return old, np.array([i for i, name in enumerate(names) if name not in place], np.int64)


def _in_memory(
    inputs: build.Inputs,
    embedding: dict[str, NDArray],
    found: Clustering,
    checksum: str,
    known: Known,
    started: float,
) -> outputs.InMemory:
    """The run of all photos."""
    dataset, config = inputs.dataset, inputs.config
    stored = inference.stored_clusters(found, embedding[config.eval.features])
    skipped = np.array([f for f, _ in dataset.skipped if not f.endswith("/")], str)
    stored = stored._replace(sources=known.names, skipped=skipped)
    seconds = time.perf_counter() - started
    made = outputs.Found(
        *(inputs, {workdirs.TRAIN_EMBEDDING: embedding}, dataset, embedding, found, stored),
        *(None, seconds),
    )
    described = {**build.describe_images(inputs), workdirs.WEIGHTS: checksum}
    run = inference.join(None, config, {}, described, embedding, stored)
    return outputs.InMemory(inputs, embedding, made, 0.0, run)


def update_rows(
    workdir: epath.PathLike,
    table: Rows | None = None,
    file: str | None = None,
    *,
    refit: bool = False,
    digests: NDArray | None = None,
    with_report: bool = True,
) -> Ended:
    """Updates a run of `cluster` with new rows; returns what is printed. Rows never leave.

    Args:
        workdir: of a finished run, whose method is the tree.
        table: rows of which those are new whose names the run does not have, or, where its rows are
            numbered, whose vectors; None: there are none. The metadata of known ones take the place
            of those that were.
        file: table of further metadata, of new rows and of known ones; or None.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        digests: of the rows of the table, see `embeddings.contents`; None: they are computed.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run, the rows or the metadata cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir), disk.explained(workdir):
        run = embeddings.read(workdir)
        known = _known_rows(workdir, run)
        facts = _facts(run.found, run.decisions)
        values = known.x[:0] if table is None else table.values[:]
        if table is not None and values.shape[1] != known.x.shape[1]:
            raise InputError(
                f"--features must have {counted(known.x.shape[1], 'column')} like the embeddings "
                f"of {workdir}; got {values.shape[1]}"
            )
        if len(values):
            arrays.numeric(values, "--features", smooth.LARGEST)
        digests = embeddings.contents(values) if digests is None else digests
        is_numbered = known.names.tolist() == list(map(str, range(len(known.names))))
        given = None if table is None else table.names
        if is_numbered or table is None:
            old, new = _matched(known, digests, [""] * len(values))
            count = len(known.names) + len(new)
            names = [*map(str, range(count))] if is_numbered else known.names.tolist()
        else:
            old, new = _by_name(known, digests, given, workdir)
            names = [*known.names.tolist(), *(given[i] for i in new.tolist() if given)]
        titles, n_known, count = None if is_numbered else names, len(known.names), len(names)
        rows = assignments.read_workdir(workdir)
        was = assignments.read_metadata(rows, range(n_known))
        more = metadata.updated(was, {} if table is None else table.metadata, [*old, *new])
        protocol = run.results["provenance"]
        if file is not None:
            more = metadata.updated(
                more, *metadata.read(file, titles, count, range(n_known, count))
            )
            files = [*protocol.get("metadata_of_updates", ()), os.path.abspath(file)]
            protocol["metadata_of_updates"] = list(dict.fromkeys(files))
        described = _number_described(was, more, n_known)
        if not len(new) and not refit:
            if not described:
                return _nothing(workdir, known.state, "row", "cluster")
            change = Change(0, 0, 0, described, (), False, "row", "cluster")
            return _describe(workdir, run, rows, more, change, known.state, with_report=with_report)
        options = _options(run)
        x_new = values[new].astype(known.x.dtype)
        x_new = arrays.normalize_rows(x_new) if options.metric == "cosine" else x_new

        def fit(rows: NDArray) -> Clustering:
            return clusters.run_tree(
                rows, metric=str(options.metric), k=options.k, seed=options.seed
            )

        is_kept = np.ones(n_known, bool)
        rules = _rules(facts, names)
        state, found = _grow(known, x_new, is_kept, rules, fit, refit=refit)
        x = np.concatenate([known.x, x_new])
        contents = np.concatenate([known.contents, digests[new]])
        before = known
        known = Known(state, np.array(names, np.str_), contents, x)
        result = clusters.with_ids(found, x, state.ids)
        axes = [assignments.numbers(rows, f"map_{axis}", range(n_known), 0.0) for axis in "xyz"]
        drawn = [axis for axis in axes if axis is not None]
        points = np.stack(drawn, axis=1).astype(np.float32) if drawn else None
        result = _old_map(points, is_kept, result, x)
        _write_rows(workdir, run, result, options, x, titles, more, with_report=with_report)
        change = Change(len(new), 0, 0, described, state.events, refit, "row", "cluster")
        _decide(workdir, facts, with_report=with_report)
        return _finish(workdir, before, known, facts, change, has_rows=True)


def _number_described(was: metadata.Metadata, now: metadata.Metadata, count: int) -> int:
    """How many of `count` known rows have other metadata now."""
    before, after = (
        zip(*(of.get(title, [""] * count)[:count] for title in now), strict=True)
        for of in (was, now)
    )
    return sum(a != b for a, b in zip(before, after, strict=True))


def _describe(
    workdir: epath.Path,
    run: embeddings.EmbeddingClusters,
    rows: assignments.Table,
    more: metadata.Metadata,
    change: Change,
    state: State,
    *,
    with_report: bool,
) -> Ended:
    """Replaces the metadata in the table and on the page; clusters and decisions stay."""
    new = versions.start(workdir)
    for name in (workdirs.CONFIG, embeddings.CLUSTERER, decisions.DECISIONS):
        if (workdir / name).exists():
            (workdir / name).copy(new / name)
    io.write_json(new / workdirs.RESULTS, run.results, checksum=True)
    table = assignments.to_csv({**assignments.columns_of(rows), **more})
    io.write(new / workdirs.ASSIGNMENTS, table)
    if with_report:
        corrections.correct(new, (), workdir)
    return _commit(workdir, change, state._replace(events=()), {})


def _options(run: embeddings.EmbeddingClusters) -> ClusterOptions:
    fields = {field.name for field in dataclasses.fields(ClusterOptions)}
    return ClusterOptions(**{k: v for k, v in run.results["config"].items() if k in fields})


def _known_rows(workdir: epath.Path, run: embeddings.EmbeddingClusters) -> Known:
    if "rows_used" in run.results["provenance"]:
        raise InputError(
            f"the run of an update must have its rows in memory; got {workdir}, whose rows were "
            "read in blocks: use predict, or cluster all rows in another folder"
        )
    known, tree = _read_state(workdir), run.clusterer
    if not isinstance(tree, ByTree):
        method = run.results["config"]["method"]
        raise InputError(f"method must be 'tree' for an update; got {method!r} in {workdir}")
    if known is None:
        contents = io.read_arrays(workdir / embeddings.CLUSTERER).get(embeddings.CONTENTS)
        if contents is None or len(contents) != len(run.found.names):
            raise workdirs.older_version(workdir, "it has no digests of its rows")
        names = np.array(run.found.names, np.str_)
        known = Known(
            living.start(run.found.labels), names, contents, tree.voters.rows[tree.leaves]
        )
    return _with_decisions(known, run.found, run.decisions)


def _write_rows(
    workdir: epath.Path,
    run: embeddings.EmbeddingClusters,
    result: Clustering,
    options: ClusterOptions,
    x: NDArray,
    names: Sequence[str] | None,
    more: metadata.Metadata,
    *,
    with_report: bool,
) -> None:
    """Writes the run of all rows into the folder of the new version."""
    new, results = versions.start(workdir), dict(run.results)
    result = clusters.with_map(result, x, seed=options.seed, **options.reduce_options)
    scored = clusters.scores(None, result.cluster_labels)
    result = result._replace(metrics={**result.metrics, **scored})
    result = clusters.with_silhouettes(x, result, options)
    results["metrics"] = {options.method: result.metrics}
    results["provenance"] = {
        **{**results["provenance"], "rows": len(x), "labels_used_for": []},
        **provenance.environment(),
    }
    results = io.plain(results)
    (workdir / workdirs.CONFIG).copy(new / workdirs.CONFIG)
    embeddings.write(new, x, result, options, None)
    io.write(new / workdirs.ASSIGNMENTS, assignments.rows_csv(names, result, more))
    data = report.ReportData(
        title=epath.Path(results["provenance"]["features"]).name,
        results=results,
        clustering=result,
        sources=None if names is None else tuple(names),
        linkage=result.linkage(x),
        features=clusters.rows_of_likeness(result.tree, x, str(options.metric)),
        run=decisions.clustered(assignments.read_workdir(new))[1].run,
        command=outputs.correction_command(workdir),
        **outputs.described_fields(more, results["provenance"]),
    )
    if with_report:
        report.write_report(new / workdirs.REPORT, data)
    io.write_json(new / workdirs.RESULTS, results, checksum=True)


def merge(first: epath.PathLike, second: epath.PathLike, out: epath.PathLike) -> Ended:
    """Makes one run of two; returns what is printed.

    The images or rows of the second join the clusters of the first, whose ids stay, in one update.

    Args:
        first: workdir of a finished run.
        second: that of another one of the same kind; of photos, they must be where they were.
        out: new folder for the run of both.

    Raises:
        InputError: the runs do not go together; nothing was written.
    """
    first, second, target = _folder(first), _folder(second), buckets.path(out)
    if target.exists():
        raise InputError(f"--out must be a new folder; got {target}, which exists")
    of_rows = embeddings.is_run(first)
    if of_rows != embeddings.is_run(second):
        raise InputError(
            f"two runs must be of photos, or of embeddings; got one of each: {first} and {second}"
        )
    table = digests = None
    photos: list[str] = []
    if of_rows:
        both = embeddings.read(first), embeddings.read(second)
        known = _known_rows(second, both[1])
        widths = [run.results["provenance"]["columns"] for run in both]
        if widths[0] != widths[1]:
            raise InputError(
                f"two runs must have embeddings of as many columns; got {widths[0]} in {first} and "
                f"{widths[1]} in {second}"
            )
        rows = assignments.read_workdir(second)
        more = assignments.read_metadata(rows, range(len(rows.rows)))
        table, digests = Rows(known.x, tuple(known.names.tolist()), more), known.contents
    else:
        runs = inference.read(first), inference.read(second)
        weights = [run.images.get(workdirs.WEIGHTS) for run in runs]
        if weights[0] != weights[1]:
            raise InputError(f"two runs must have one encoder; got others in {first} and {second}")
        photos = (runs[1].config.data.dir or "").split("\n")
    disk.make(target.parent, parents=True)
    left = shutil.ignore_patterns(versions.SIDE, versions.PREVIOUS, workdirs.LOCK)
    try:
        shutil.copytree(first, target, ignore=left)
        if of_rows:
            return update_rows(target, table, digests=digests)
        return update_photos(target, photos)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
