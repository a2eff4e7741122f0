"""Updates of a finished run: what is new joins its clusters, which keep their ids.

An update reads the run and what it knows (`known`), sees which images or rows are there now, by
their contents, finds their clusters (`clustering.living`), and writes the run of what is there now,
with its map, report and tables: whoever reads it needs to know nothing of updates. All files are
replaced at once (`versions`); `history` tells what has happened.
"""

import collections
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import constraints, knn, living, smooth
from cluster_jax.clustering.living import State
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, buckets, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import datasets, images
from cluster_jax.data import folder as image_files
from cluster_jax.data.tables import Table
from cluster_jax.encoding.embed import UNREADABLE, readable_rows
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.pipeline import (
    build,
    corrections,
    embeddings,
    history,
    inference,
    outputs,
    provenance,
    snapshots,
    versions,
)
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import PhotosConfig, config_json, parse_config
from cluster_jax.pipeline.inference import TrainedRun
from cluster_jax.pipeline.photos import collect, embed, save
from cluster_jax.pipeline.snapshots import Snapshot
from cluster_jax.report import assignments, decisions, facts, report, report_data
from cluster_jax.report.decisions import NO_CLUSTER, Decisions
from cluster_jax.report.duplicates import Shown
from cluster_jax.report.report_data import Changes

UNDONE = "decisions_undone.csv"

# Clusters of rows `[m, d]` by the tree.
Fit = Callable[[NDArray], Clustering]


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
        files = (decided, workdir / history.HISTORY)
        if all(file.exists() for file in files) and _age(decided) > _age(workdir / history.HISTORY):
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
    path = epath.Path(checks.local(workdir)).expanduser()
    if not path.is_dir():
        raise InputError(f"the workdir must be that of a finished run; got {path}, no such folder")
    versions.finish(path)
    return path


def _renew(
    workdir: epath.Path,
    before: Snapshot,
    now: Snapshot,
    is_kept: NDArray,
    held: Decisions,
    follow: Mapping[int, int],
    change: history.Change,
    fit: Fit,
    points: NDArray | None,
    write: Callable[[epath.Path, Clustering, Changes, bool], Shown | None],
    *,
    with_report: bool,
) -> Ended:
    """Finds the clusters of what is there now, writes the new version, and says what it did.

    Args:
        workdir: of the run.
        before: what was known.
        now: what is there, known ones first, with the state of before.
        is_kept: bool `[n]`, which of the known ones are there.
        held: facts about images that are there.
        follow: see `_follow`.
        change: without its events.
        fit: clusters rows.
        points: the old map, or None.
        write: writes the files of a run with these clusters into a folder, and, if the last
            argument says so, its page, with what has changed; returns the duplicates that it found.
        with_report: whether the page is written.
    """
    rules, place = facts.rules(held, now.names.tolist()), np.cumsum(is_kept) - 1
    led = {int(place[row]): cluster for row, cluster in follow.items() if is_kept[row]}
    rules = rules._replace(fixed={**led, **rules.fixed})
    state, clustering = _grow(before.state, now.x, is_kept, rules, fit, refit=change.is_refit)
    left, was = np.full(len(state.ids), NO_CLUSTER), before.state.ids[is_kept]
    left[: len(was)] = np.where(state.ids[: len(was)] == was, before.left[is_kept], NO_CLUSTER)
    back = [row for row, cluster in led.items() if before.left[is_kept][row] == cluster]
    went = [row for row in led if row not in back]
    left[went] = was[went]
    now = now._replace(state=state, left=left)
    change = change._replace(events=state.events, followed=len(went), returned=len(back))
    clustering = _old_map(points, is_kept, clusters.with_ids(clustering, now.x, state.ids), now.x)
    new = versions.start(workdir)
    snapshots.write(new, now, has_rows=change.noun == "row")
    is_decided = held != Decisions() or (workdir / decisions.DECISIONS).exists()
    with_first = with_report and not is_decided
    repeated = write(new, clustering, snapshots.last_changes(state), with_first)
    table = assignments.read_workdir(new)
    if is_decided:
        run = decisions.clustered(table)[1]
        run = run._replace(contents=_contents(now) if change.noun == "photo" else {})
        io.write(new / decisions.DECISIONS, decisions.to_csv(held, run))
        corrections.correct(new, (), workdir, with_report=with_report, repeated=repeated)
        table = assignments.read_workdir(new)
    names = {**_suggested(new), **held.named}
    labels = [int(row[table.cluster]) for row in table.rows]
    columns, shown = assignments.columns_of(table), [names.get(label, "") for label in labels]
    columns |= {"id": labels, "name": shown, "since": state.since}
    io.write(new / workdirs.ASSIGNMENTS, assignments.to_csv(columns))
    return _commit(workdir, change, state, names)


def _commit(
    workdir: epath.Path, change: history.Change, state: State, names: Mapping[int, str]
) -> Ended:
    """Puts the new version in place, with a line in the history, and says what was done."""
    new = workdir / versions.SIDE / "new"
    values = history.write(workdir, new, change, state)
    # A page of what was there before would mislead.
    removed = () if (new / workdirs.REPORT).exists() else (workdirs.REPORT,)
    versions.commit(workdir, decisions.DECISIONS, removed=removed)
    return history.words(change, names), {"workdir": str(workdir), **values}


def _grow(
    before: State,
    x: NDArray,
    is_kept: NDArray,
    rules: constraints.Constraints,
    fit: Fit,
    *,
    refit: bool,
) -> tuple[State, Clustering]:
    """Clusters the rows that are kept, then the new ones; fits all of them."""
    fitted = dict[int, Clustering]()

    def look(rows: NDArray) -> living.Look:
        fitted[len(rows)] = clustering = fit(rows)
        assert clustering.tree is not None
        tree = clustering.tree
        return living.Look(tree.labels_, tree.predict, tree.smoother_.sharp, tree.leaves_)

    after = living.update(living.without(before, is_kept), x, look)
    born = {event.id for event in after.events if event.kind == living.EMERGED}
    clustering = fitted[len(x)] if len(x) in fitted else fit(x)
    if refit:
        assert clustering.tree is not None
        after = living.refit(after, clustering.tree.labels_)
        born |= {event.id for event in after.events if event.kind == living.EMERGED}
    stayed = before.ids[is_kept]
    ids, next_id = constraints.enforced(stayed, after.ids, after.next_id, rules)
    changes = living.events(stayed, ids, born, had=before.ids)
    updates = before.updates + 1
    since = np.where(after.since > before.updates, updates, after.since)
    return State(ids, since, after.apart, next_id, updates, changes), clustering


def _old_map(
    points: NDArray | None, is_kept: NDArray, clustering: Clustering, x: NDArray
) -> Clustering:
    """Adds the old map to clusters, as points: new images lie between those they are most like."""
    if points is None or not is_kept.any() or clustering.tree is None:
        return clustering
    sharp, n_old = clustering.tree.smoother_.project(x), int(is_kept.sum())
    near = knn.nearest(sharp[n_old:], sharp[:n_old], 3).indices
    old = points[is_kept]
    return clustering._replace(points=np.concatenate([old, old[near].mean(axis=1)]))


def _with_decisions(
    snapshot: Snapshot, computed: decisions.Clusters, decided: Decisions
) -> Snapshot:
    """Returns the clusters as a person has corrected them; an image in none has its own here."""
    labels = decided.labels(computed)
    roots = np.array([decided.root(label) for label in computed.labels.tolist()], np.int64)
    ids = np.where(labels == NO_CLUSTER, roots, labels)
    next_id = max(snapshot.state.next_id, decided.next_cluster(computed))
    return snapshot._replace(state=snapshot.state._replace(ids=ids, next_id=next_id))


def _follow(
    snapshot: Snapshot, computed: decisions.Clusters, decided: Decisions, *, exact: bool
) -> dict[int, int]:
    """Returns rows that follow what a person has moved, or go back where only that is to move."""
    if not exact:
        return facts.followers(snapshot.x, computed, decided)
    rows = np.flatnonzero((snapshot.left != NO_CLUSTER) & ~decided.is_decided(computed))
    return dict(zip(rows.tolist(), snapshot.left[rows].tolist(), strict=True))


def _suggested(workdir: epath.Path) -> dict[int, str]:
    named = report_data.suggested_names(workdirs.read_values(workdir / workdirs.RESULTS))
    return {int(cluster): name for cluster, name in named.items()}


def _nothing(workdir: epath.Path, state: State, noun: str, group: str) -> Ended:
    has = f"{workdir} has all {counted(len(state.ids), noun)} already, and none is gone"
    values = history.line(history.Change(0, 0, 0, (), False, noun, group), state)
    return f"Nothing has happened: {has}.", {"workdir": str(workdir), **values}


def update_photos(
    workdir: epath.PathLike,
    photos: Sequence[str] = (),
    *,
    refit: bool = False,
    exact: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run of photos with the files that are there now; returns what is printed.

    Args:
        workdir: of a finished run that trains nothing, whose clusters are those of the tree.
        photos: folders or files beside those of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        exact: whether nothing follows what a person has moved; what did so before goes back.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the photos cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir):
        run = inference.read(workdir)
        _check(run, workdir)
        snapshot = _known_photos(workdir, run)
        inputs = _inputs(run, photos)
        dataset, config = inputs.dataset, inputs.config
        digests = images.contents(dataset)
        old, new = _matched(snapshot, digests, dataset.sources or ())
        is_kept = old >= 0
        encoder = inference.encoder(run)
        embedding = readable_rows(io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING))
        embedding = {name: rows[is_kept] for name, rows in embedding.items()}
        skipped: tuple[tuple[str, str], ...] = ()
        if len(new):
            fresh = images.select(dataset, new)
            embeddings = embed(inputs._replace(dataset=fresh), encoder)
            is_bad = embeddings.get(UNREADABLE, np.zeros(len(new), bool))
            skipped, new = images.without(fresh, is_bad).skipped, new[~is_bad]
            rows = readable_rows(embeddings)
            embedding = {k: np.concatenate([v, rows[k]]) for k, v in embedding.items()}
        order = np.concatenate([old[is_kept], new])
        sources = [(dataset.sources or ())[i] for i in order]
        was = snapshot.names[is_kept].tolist()
        follow = _follow(snapshot, run.computed, run.decisions, exact=exact)
        if not (refit or len(new) or follow) and is_kept.all() and was == sources:
            return _nothing(workdir, snapshot.state, "photo", "group")
        if not len(order):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        paths = (
            [os.path.abspath(os.path.join(image_files.root(str(data.dir)), name)) for name in names]
            for data, names in ((run.config.data, was), (config.data, sources))
        )
        renamed = sum(a != b for a, b in zip(*paths, strict=False))
        features = arrays.normalize_rows(embedding[config.eval.features])
        names = np.array(sources, np.str_)
        now = Snapshot(snapshot.state, names, digests[order], features, snapshot.left)
        held = facts.followed(
            facts.of_images(run.computed, run.decisions),
            _contents(snapshot),
            _contents(now),
            dict(zip(was, sources, strict=False)),
            snapshot.state.ids,
        )
        dataset = images.select(dataset, order)._replace(unreadable=None, skipped=skipped)
        inputs, started = inputs._replace(dataset=dataset), time.perf_counter()

        def write(
            folder: epath.Path, clustering: Clustering, changes: Changes, with_report: bool
        ) -> Shown | None:
            rows = {workdirs.TRAIN_EMBEDDING: embedding}
            repeated = outputs.find_duplicates(config, dataset, rows, held.distinct)
            run_of_all = outputs.collect(inputs, rows, clustering, repeated, started)
            memory = collect(inputs, embedding, run_of_all, encoder, 0.0)
            names = memory.outputs.results["suggested_names"] or {}
            # Those of a known group stay: with each new photo, others would come first.
            earlier = run.results.get("suggested_names") or {}
            names |= {cluster: earlier[cluster] for cluster in names if cluster in earlier}
            save(folder, memory, workdir, changes, with_report=with_report)
            return None if repeated is None else Shown(repeated, dataset.sources)

        section = config.eval
        fit = functools.partial(
            clusters.run_tree, metric=section.reduce.metric, k=section.k, seed=config.seed
        )
        left = int((~is_kept).sum())
        change = history.Change(len(new), left, renamed, (), refit, "photo", "group")
        return _renew(
            workdir,
            snapshot,
            now,
            is_kept,
            held,
            follow,
            change,
            fit,
            run.clusters.points,
            write,
            with_report=with_report,
        )


def _contents(snapshot: Snapshot) -> dict[str, str]:
    """Returns the content of each image, by name, as hexadecimal digits."""
    keys = (content.tobytes().hex() for content in snapshot.contents)
    return dict(zip(snapshot.names.tolist(), keys, strict=True))


def _check(run: TrainedRun, workdir: epath.Path) -> None:
    must = "the run of an update must"
    if not isinstance(run.config, PhotosConfig):
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


def _known_photos(workdir: epath.Path, run: TrainedRun) -> Snapshot:
    """Returns what the run knows, with the clusters that a person has corrected."""
    stored, snapshot = run.clusters, snapshots.read(workdir, run.features)
    if snapshot is None:
        if stored.contents is None:
            raise workdirs.older_version(workdir, "it has no digests of its files")
        snapshot = snapshots.start(
            run.computed.labels, run.computed.names, stored.contents, run.features
        )
    if snapshot.names.tolist() != list(run.computed.names):
        raise InputError(
            f"{snapshots.STATE} in {workdir} must have the images of the run; got those of another "
            "one: delete it to begin with the clusters of the run"
        )
    return _with_decisions(snapshot, run.computed, run.decisions)


def _inputs(run: TrainedRun, photos: Sequence[str]) -> build.Inputs[PhotosConfig]:
    """Loads the images that are there now: of the folders of the run, and of others."""
    of_run = (run.config.data.dir or "").split("\n")
    there = [name for name in of_run if buckets.path(name).exists()]
    missing = [name for name in photos if not os.path.exists(os.path.expanduser(name))]
    if missing:
        raise InputError(f"PHOTOS must be folders or files of images; got no {missing[0]}")
    added = [str(workdirs.normalized(name)) for name in photos]
    every = list(dict.fromkeys([*there, *added]))
    if not every:
        raise InputError(f"PHOTOS must be given, because {of_run[0]} is gone; got none")
    inside = [os.path.realpath(os.path.expanduser(name)) + os.sep for name in every]
    every = [
        name
        for name, path in zip(every, inside, strict=True)
        if not any(path != other and path.startswith(other) for other in inside)
    ]
    if len(every) > 1 and any(name.endswith(".zip") for name in every):
        raise InputError(f"PHOTOS must be left out for a run of a .zip; got {photos}")
    values = config_json(run.config.values)
    values["data"] = {**values["data"], "dir": "\n".join(every)}
    config = parse_config(values, run.config.name)
    assert isinstance(config, PhotosConfig)
    # Few are decoded: those that are new, and those that the report shows.
    streamed = dataclasses.replace(config.data, cache_mb=0.0)
    with checks.named({"data.dir": "PHOTOS"}):
        dataset = datasets.load(streamed)
    return build.load_photos(config, dataset)


def _matched(snapshot: Snapshot, digests: NDArray, names: Sequence[str]) -> tuple[NDArray, NDArray]:
    """Finds each known image's place among the files of now, -1: gone; and which files are new.

    Of files with the same content, one of the same name is the image, or else the first.
    """
    there = collections.defaultdict[bytes, list[int]](list)
    for i, digest in enumerate(digests):
        there[digest.tobytes()].append(i)
    place = np.full(len(snapshot.names), -1)
    keys = [digest.tobytes() for digest in snapshot.contents]
    for by_name in (True, False):
        for j in np.flatnonzero(place < 0).tolist():
            same = [i for i in there[keys[j]] if not by_name or names[i] == snapshot.names[j]]
            if same:
                place[j] = same[0]
                there[keys[j]].remove(same[0])
    return place, np.array(sorted(i for left in there.values() for i in left), np.int64)


def _by_name(
    snapshot: Snapshot, digests: NDArray, names: Sequence[str] | None, workdir: epath.Path
) -> tuple[NDArray, NDArray]:
    """Finds each known row's place among those of now, -1: none; and the rows of new names.

    Raises:
        InputError: rows have no names, or the name of another row of them or of the run.
    """
    if names is None:
        raise InputError(
            f"--features must name its rows, as {workdir} does; got none: say which column by --ids"
        )
    place = {name: i for i, name in enumerate(snapshot.names.tolist())}
    counts = collections.Counter(names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"--features must name each row once; got {repeated[0]!r} several times")
    pairs = [(i, place[name]) for i, name in enumerate(names) if name in place]
    other = [i for i, j in pairs if (digests[i] != snapshot.contents[j]).any()]
    if other:
        raise InputError(
            f"--features must have the vectors of before for rows of {workdir}; got others for "
            f"{len(other):,}, such as {names[other[0]]!r}: give changed rows new names, or cluster "
            "all rows in another folder"
        )
    old = np.full(len(snapshot.names), -1)
    for i, j in pairs:
        old[j] = i
    return old, np.array([i for i, name in enumerate(names) if name not in place], np.int64)


def update_rows(
    workdir: epath.PathLike,
    table: Table | None = None,
    *,
    refit: bool = False,
    exact: bool = False,
    digests: NDArray | None = None,
    with_report: bool = True,
) -> Ended:
    """Updates a run of `cluster` with new rows; returns what is printed. Rows never leave.

    Args:
        workdir: of a finished run, whose method is the tree.
        table: rows of which those are new whose names the run does not have, or, where its rows are
            numbered, whose vectors; None: there are none.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        exact: whether nothing follows what a person has moved; what did so before goes back.
        digests: of the rows of the table, see `embeddings.contents`; None: they are computed.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the rows cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir):
        run = embeddings.read(workdir)
        snapshot = _known_rows(workdir, run)
        values = snapshot.x[:0] if table is None else table.values[:]
        if table is not None and values.shape[1] != snapshot.x.shape[1]:
            columns = counted(snapshot.x.shape[1], "column")
            raise InputError(
                f"--features must have {columns} like the embeddings of {workdir}; got "
                f"{values.shape[1]}"
            )
        if len(values):
            arrays.numeric(values, "--features", smooth.LARGEST)
        digests = embeddings.contents(values) if digests is None else digests
        is_numbered = run.results["provenance"]["ids"] is None
        row_names = None if table is None else table.names
        if is_numbered or table is None:
            _, new = _matched(snapshot, digests, [""] * len(values))
            count = len(snapshot.names) + len(new)
            names = [*map(str, range(count))] if is_numbered else snapshot.names.tolist()
        else:
            _, new = _by_name(snapshot, digests, row_names, workdir)
            names = [*snapshot.names.tolist(), *(row_names[i] for i in new.tolist() if row_names)]
        titles, n_known = None if is_numbered else names, len(snapshot.names)
        rows = assignments.read_workdir(workdir)
        follow = _follow(snapshot, run.computed, run.decisions, exact=exact)
        if not (len(new) or refit or follow):
            return _nothing(workdir, snapshot.state, "row", "cluster")
        options = _options(run)
        x_new = values[new].astype(snapshot.x.dtype)
        x_new = arrays.normalize_rows(x_new) if options.metric == "cosine" else x_new
        x, contents = (
            np.concatenate(p) for p in ((snapshot.x, x_new), (snapshot.contents, digests[new]))
        )
        axes = [assignments.numbers(rows, f"map_{axis}", range(n_known), 0.0) for axis in "xyz"]
        drawn = [axis for axis in axes if axis is not None]

        def write(
            folder: epath.Path, clustering: Clustering, changes: Changes, with_report: bool
        ) -> None:
            parts = (run, clustering, options, x, titles, changes)
            _write_rows(folder, workdir, *parts, with_report=with_report)

        return _renew(
            workdir,
            snapshot,
            Snapshot(snapshot.state, np.array(names, np.str_), contents, x, snapshot.left),
            np.ones(n_known, bool),
            facts.of_images(run.computed, run.decisions),
            follow,
            history.Change(len(new), 0, 0, (), refit, "row", "cluster"),
            functools.partial(
                clusters.run_tree, metric=str(options.metric), k=options.k, seed=options.seed
            ),
            np.stack(drawn, axis=1).astype(np.float32) if drawn else None,
            write,
            with_report=with_report,
        )


def _options(run: embeddings.EmbeddingClusters) -> ClusterOptions:
    fields = {field.name for field in dataclasses.fields(ClusterOptions)}
    return ClusterOptions(**{k: v for k, v in run.results["config"].items() if k in fields})


def _known_rows(workdir: epath.Path, run: embeddings.EmbeddingClusters) -> Snapshot:
    if "rows_used" in run.results["provenance"]:
        raise InputError(
            f"the run of an update must have its rows in memory; got {workdir}, whose rows were "
            "read in blocks: use predict, or cluster all rows in another folder"
        )
    snapshot, tree = snapshots.read(workdir), run.clusterer
    if not isinstance(tree, ByTree):
        method = run.results["config"]["method"]
        raise InputError(f"method must be 'tree' for an update; got {method!r} in {workdir}")
    if snapshot is None:
        contents = io.read_arrays(workdir / workdirs.CLUSTERER).get(embeddings.CONTENTS)
        if contents is None or len(contents) != len(run.computed.names):
            raise workdirs.older_version(workdir, "it has no digests of its rows")
        x = tree.voters.rows[tree.leaves]
        snapshot = snapshots.start(run.computed.labels, run.computed.names, contents, x)
    return _with_decisions(snapshot, run.computed, run.decisions)


def _write_rows(
    new: epath.Path,
    workdir: epath.Path,
    run: embeddings.EmbeddingClusters,
    result: Clustering,
    options: ClusterOptions,
    x: NDArray,
    names: Sequence[str] | None,
    changes: Changes,
    *,
    with_report: bool,
) -> None:
    """Writes the run of all rows into the folder of the new version."""
    results = dict(run.results)
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
    io.write(new / workdirs.ASSIGNMENTS, assignments.rows_csv(names, result))
    data = report.ReportData(
        title=epath.Path(results["provenance"]["features"]).name,
        results=results,
        clustering=result,
        sources=None if names is None else tuple(names),
        linkage=result.linkage(x),
        features=clusters.rows_of_likeness(result.tree, x, str(options.metric)),
        run=decisions.clustered(assignments.read_workdir(new))[1].run,
        command=outputs.correction_command(workdir),
        changes=changes,
    )
    if with_report:
        report.write_report(new / workdirs.REPORT, data)
    io.write_json(new / workdirs.RESULTS, results, checksum=True)
