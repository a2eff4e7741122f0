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
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import knn, living, smooth
from cluster_jax.clustering.living import State
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import datasets, images
from cluster_jax.data import folder as image_files
from cluster_jax.data.images import Dataset
from cluster_jax.data.tables import Table
from cluster_jax.encoding.embed import UNREADABLE, Batch, readable_rows
from cluster_jax.encoding.encoder import Encoder
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
from cluster_jax.report import assignments, decisions, report, report_data
from cluster_jax.report.decisions import NO_CLUSTER, Decisions
from cluster_jax.report.duplicates import Shown
from cluster_jax.report.report_data import GONE, Changes

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


class _Update(NamedTuple):
    """What an update knows before it clusters.

    Attributes:
        before: what was known.
        now: what is there, known ones first, with the state of before.
        is_kept: bool `[n]`, which of the known ones are there.
        decided: what a person has decided about those that are there, by their names of now.
        change: without its events.
        points: the old map, or None.
        fit: clusters rows.
    """

    before: Snapshot
    now: Snapshot
    is_kept: NDArray
    decided: Decisions
    change: history.Change
    points: NDArray | None
    fit: Fit


# Writes the files of a run with some clusters into a folder, and, if the last argument says so, its
# page, with what has changed; returns the duplicates that it found.
Write = Callable[[epath.Path, Clustering, Changes, bool], Shown | None]


def _renew(workdir: epath.Path, update: _Update, write: Write, *, with_report: bool) -> Ended:
    """Finds the clusters of what is there now, writes the new version, and says what it did."""
    state, clustering = _grow(update)
    now = update.now._replace(state=state)
    decided = _alive(update.decided, state.ids)
    change = update.change._replace(events=state.events)
    clustering = clusters.with_ids(clustering, now.x, state.ids)
    clustering = _old_map(update.points, update.is_kept, clustering, now.x)
    new = versions.start(workdir)
    snapshots.write(new, now, has_rows=change.noun == "row")
    is_decided = decided != Decisions() or (workdir / decisions.DECISIONS).exists()
    with_first = with_report and not is_decided
    repeated = write(new, clustering, snapshots.last_changes(state), with_first)
    table = assignments.read_workdir(new)
    if is_decided:
        run = decisions.clustered(table)[1]
        io.write(new / decisions.DECISIONS, decisions.to_csv(decided, run))
        corrections.correct(new, (), workdir, with_report=with_report, repeated=repeated)
        table = assignments.read_workdir(new)
    names = {**_suggested(new), **decided.named}
    called = [names.get(int(label), "") for label in table.columns[table.cluster]]
    columns: dict[str, assignments.Column] = dict(assignments.columns_of(table))
    columns |= {"name": called, "since": state.since}
    io.write(new / workdirs.ASSIGNMENTS, assignments.to_csv(columns))
    return _commit(workdir, change, state, names)


def _carried(decided: Decisions, names: Mapping[str, str]) -> Decisions:
    """Returns decisions about the images that are there, whose earlier names have those of now."""
    moved = {
        names[name]: decided.root(cluster)
        for name, cluster in decided.moved.items()
        if name in names
    }
    kept = tuple(names[name] for name in decided.kept if name in names)
    return decided._replace(moved=moved, kept=kept)


def _alive(decided: Decisions, ids: NDArray) -> Decisions:
    """Returns decisions about the clusters that are there; a merged one is a part of such a one."""
    there = set(ids.tolist())
    merged = {c: decided.root(c) for c in decided.merged if decided.root(c) in there}
    named = {c: name for c, name in decided.named.items() if c in there}
    return decided._replace(merged=merged, named=named, created=frozenset(merged))


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


def _grow(update: _Update) -> tuple[State, Clustering]:
    """Clusters the rows that are kept, then the new ones; fits all of them."""
    fitted, before, x = dict[int, Clustering](), update.before.state, update.now.x

    def look(rows: NDArray) -> living.Look:
        fitted[len(rows)] = clustering = update.fit(rows)
        assert clustering.tree is not None
        tree = clustering.tree
        return living.Look(tree.labels_, tree.predict, tree.smoother_.sharp, tree.leaves_)

    after = living.update(living.without(before, update.is_kept), x, look)
    born = {event.id for event in after.events if event.kind == living.EMERGED}
    clustering = fitted[len(x)] if len(x) in fitted else update.fit(x)
    if update.change.is_refit:
        assert clustering.tree is not None
        after = living.refit(after, clustering.tree.labels_)
        born |= {event.id for event in after.events if event.kind == living.EMERGED}
    stayed = before.ids[update.is_kept]
    ids = _as_decided(stayed, after.ids, born, update)
    changes = living.events(stayed, ids, born, had=before.ids)
    updates = before.updates + 1
    since = np.where(after.since > before.updates, updates, after.since)
    return State(ids, since, after.apart, after.next_id, updates, changes), clustering


def _as_decided(stayed: NDArray, ids: NDArray, born: set[int], update: _Update) -> NDArray:
    """Returns the clusters int `[m]` in which what a person has decided holds.

    No row leaves a cluster that a person has named, made or merged, which has what would split off
    it, and each row is where a person has moved it.

    Args:
        stayed: int `[n]`, the clusters of the known rows before.
        ids: int `[m]`, those of all rows that were found.
        born: ids of new clusters that are no part of a known one.
        update: the update.
    """
    ids, is_held = ids.copy(), np.isin(stayed, list(update.decided.held))
    for cluster in set(ids.tolist()) - {*stayed.tolist(), *born, NO_CLUSTER}:
        of_known = ids[: len(stayed)] == cluster
        if of_known.any() and is_held[of_known].mean() > 0.5:
            values, counts = np.unique(stayed[of_known], return_counts=True)
            ids[ids == cluster] = values[counts.argmax()]
    ids[: len(stayed)][is_held] = stayed[is_held]
    place = {name: i for i, name in enumerate(update.now.names.tolist())}
    for name, cluster in update.decided.moved.items():
        if cluster != NO_CLUSTER:
            ids[place[name]] = cluster
    return ids


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


def _suggested(workdir: epath.Path) -> dict[int, str]:
    named = report_data.suggested_names(workdirs.read_values(workdir / workdirs.RESULTS))
    return {int(cluster): name for cluster, name in named.items()}


def _nothing(
    workdir: epath.Path, state: State, noun: str, group: str, away: tuple[str, ...] = ()
) -> Ended:
    has = f"{workdir} has all {counted(len(state.ids), noun)} already, and none is gone"
    change = history.Change(0, 0, 0, (), False, noun, group, away)
    text = "\n".join([*history.told_away(change), f"Nothing has happened: {has}."])
    return text, {"workdir": str(workdir), **history.line(change, state)}


class _Photos(NamedTuple):
    """The photos that are there now, beside those that a run knows.

    Attributes:
        inputs: all of them, in the folders of the run and in others.
        digests: of their contents, uint8 `[m, 16]`.
        known: int `[n]`, place of each known photo among them, -1: none.
        new: int `[l]`, places of those that are new.
        away: folders of the run that are not there, or empty.
        is_away: bool `[n]`, known photos in these; they stay.
        paths: of the m photos, absolute.
        earlier: of the n known ones.
    """

    inputs: build.Inputs[PhotosConfig]
    digests: NDArray
    known: NDArray
    new: NDArray
    away: tuple[str, ...]
    is_away: NDArray
    paths: list[str]
    earlier: list[str]

    @property
    def is_kept(self) -> NDArray:
        """Which of the known photos stay, bool `[n]`."""
        return (self.known >= 0) | self.is_away


def update_photos(
    workdir: epath.PathLike,
    photos: Sequence[str] = (),
    *,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run of photos with the files that are there now; returns what is printed.

    Photos of a folder of the run that is not there stay as they were.

    Args:
        workdir: of a finished run that trains nothing, whose clusters are those of the tree.
        photos: folders or files beside those of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the photos may leave.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the photos cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir):
        run = inference.read(workdir)
        _check(run, workdir)
        snapshot, started = _known_photos(workdir, run), time.perf_counter()
        there = _looked(workdir, run, snapshot, photos)
        gone = int((~there.is_kept).sum())
        if 2 * gone > len(snapshot.names) and not confirmed:
            raise InputError(
                f"{gone:,} of the {counted(len(snapshot.names), 'photo')} of {workdir} must be "
                "where they were; got them gone: name the folder in which they are now, or confirm "
                "by --yes that they leave"
            )
        encoder = inference.encoder(run)
        there, embedding, skipped = _embedded(workdir, there, encoder)
        dataset, names, now = _photos_now(there, snapshot, embedding)
        was = snapshot.names[there.is_kept].tolist()
        paths = zip(np.array(there.earlier)[there.is_kept], names, strict=False)
        root = image_files.root(str(there.inputs.config.data.dir))
        renamed = sum(a != os.path.abspath(os.path.join(root, b)) for a, b in paths)
        if not (refit or len(there.new) or gone) and was == names[: len(was)]:
            return _nothing(workdir, snapshot.state, "photo", "group", there.away)
        if not names:
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        skipped = (*(entry for entry in dataset.skipped if entry[1] == GONE), *skipped)
        dataset = dataset._replace(unreadable=None, skipped=skipped)
        inputs = there.inputs._replace(dataset=dataset)
        section = inputs.config.eval
        found = _Update(
            snapshot,
            now,
            there.is_kept,
            _carried(run.decisions, dict(zip(was, names, strict=False))),
            history.Change(len(there.new), gone, renamed, (), refit, "photo", "group", there.away),
            run.clusters.points,
            functools.partial(
                clusters.run_tree,
                metric=section.reduce.metric,
                k=section.k,
                seed=inputs.config.seed,
            ),
        )
        parts = (inputs, embedding, encoder, now.contents, started)
        renewed = _Renewed(workdir, run, *parts)
        return _renew(workdir, found, renewed.write, with_report=with_report)


def _looked(
    workdir: epath.Path, run: TrainedRun, snapshot: Snapshot, photos: Sequence[str]
) -> _Photos:
    """Finds the photos that are there now, and which of them the run knows, by their contents."""
    old_dir = str(run.config.data.dir)
    folders = _folders(old_dir, photos)
    there = [name for name in folders if os.path.exists(name)]
    if not there:
        raise InputError(
            f"PHOTOS must be given, because {image_files.shown(old_dir)} is not there; got none: "
            "name the folder in which the photos are now"
        )
    inputs = _load(run, there)
    dataset = inputs.dataset
    earlier, paths = (
        [os.path.abspath(os.path.join(image_files.root(folder), name)) for name in names]
        for folder, names in (
            (old_dir, snapshot.names.tolist()),
            ("\n".join(there), dataset.sources or ()),
        )
    )
    digests = images.contents(dataset)
    known, new = _matched(snapshot.contents, earlier, digests, paths)
    is_away, away = np.zeros(len(earlier), bool), list[str]()
    for folder in old_dir.split("\n"):
        inside = np.array([path.startswith(folder + os.sep) for path in earlier])
        is_there = any(path.startswith(folder + os.sep) for path in paths)
        # Where most of its photos are elsewhere, the folder has moved.
        if inside.any() and not is_there and 2 * (known[inside] >= 0).sum() < inside.sum():
            is_away |= inside & (known < 0)
            away.append(folder)
    kept = [name for name in folders if name in there or name in away]
    if kept != there:
        values = inputs.config.values
        values = {**values, "data": {**values["data"], "dir": "\n".join(kept)}}
        config = parse_config(values, inputs.config.name)
        assert isinstance(config, PhotosConfig)
        inputs = inputs._replace(config=config)
    return _Photos(inputs, digests, known, new, tuple(away), is_away, paths, earlier)


def _embedded(
    workdir: epath.Path, there: _Photos, encoder: Encoder
) -> tuple[_Photos, Batch, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new; returns those that can be read, all rows, and the others."""
    embedding = readable_rows(io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING))
    embedding = {name: rows[there.is_kept] for name, rows in embedding.items()}
    if not len(there.new):
        return there, embedding, ()
    fresh = images.select(there.inputs.dataset, there.new)
    made = embed(there.inputs._replace(dataset=fresh), encoder)
    is_bad = made.get(UNREADABLE, np.zeros(len(there.new), bool))
    skipped, rows = images.without(fresh, is_bad).skipped, readable_rows(made)
    embedding = {name: np.concatenate([old, rows[name]]) for name, old in embedding.items()}
    return there._replace(new=there.new[~is_bad]), embedding, skipped


def _photos_now(
    there: _Photos, snapshot: Snapshot, embedding: Batch
) -> tuple[Dataset, list[str], Snapshot]:
    """Returns the photos of the updated run, their names, and what is known of them.

    The known ones come first; those that are away are gray.
    """
    config, dataset = there.inputs.config, there.inputs.dataset
    root = os.path.abspath(image_files.root(str(config.data.dir)))
    sources = tuple(os.path.relpath(path, root) for path in there.paths)
    known = there.known[there.is_kept]
    contents = snapshot.contents[there.is_kept].copy()
    names = [os.path.relpath(path, root) for path in np.array(there.earlier)[there.is_kept]]
    for i, place in enumerate(known.tolist()):
        if place >= 0:
            names[i], contents[i] = sources[place], there.digests[place]
    names += [sources[place] for place in there.new]
    present = np.concatenate([known[known >= 0], there.new])
    dataset = images.select(dataset._replace(sources=sources, skipped=()), present)
    dataset = inference.with_gaps(dataset, tuple(names))
    features = arrays.normalize_rows(embedding[config.eval.features])
    contents = np.concatenate([contents, there.digests[there.new]])
    return dataset, names, Snapshot(snapshot.state, np.array(names, np.str_), contents, features)


class _Renewed(NamedTuple):
    """What the files of an updated run of photos are made of.

    Attributes:
        workdir: of the run.
        run: the run before.
        inputs: the photos.
        embedding: of these.
        encoder: of the run.
        contents: digests of the photos, uint8 `[n, 16]`.
        started: when the update began.
    """

    workdir: epath.Path
    run: TrainedRun
    inputs: build.Inputs[PhotosConfig]
    embedding: Batch
    encoder: Encoder
    contents: NDArray
    started: float

    def write(
        self, folder: epath.Path, clustering: Clustering, changes: Changes, with_report: bool
    ) -> Shown | None:
        """Writes the files into the folder of the new version, see `Write`."""
        rows = {workdirs.TRAIN_EMBEDDING: self.embedding}
        repeated = outputs.find_duplicates(self.inputs.config, self.inputs.dataset, rows)
        run_of_all = outputs.collect(self.inputs, rows, clustering, repeated, self.started)
        stored = run_of_all.stored._replace(contents=self.contents)
        memory = collect(
            self.inputs, self.embedding, run_of_all._replace(stored=stored), self.encoder, 0.0
        )
        names = memory.outputs.results["suggested_names"] or {}
        # Those of a known group stay: with each new photo, others would come first.
        earlier = self.run.results.get("suggested_names") or {}
        names |= {cluster: earlier[cluster] for cluster in names if cluster in earlier}
        save(folder, memory, self.workdir, changes, with_report=with_report)
        return None if repeated is None else Shown(repeated, self.inputs.dataset.sources)


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


def _folders(of_run: str, photos: Sequence[str]) -> list[str]:
    """Lists the folders of a run and others, without those that are inside of others."""
    missing = [name for name in photos if not os.path.exists(os.path.expanduser(name))]
    if missing:
        raise InputError(f"PHOTOS must be folders or files of images; got no {missing[0]}")
    added = [str(workdirs.normalized(name)) for name in photos]
    every = list(dict.fromkeys([*of_run.split("\n"), *added]))
    inside = [os.path.realpath(os.path.expanduser(name)) + os.sep for name in every]
    return [
        name
        for name, path in zip(every, inside, strict=True)
        if not any(path != other and path.startswith(other) for other in inside)
    ]


def _load(run: TrainedRun, folders: Sequence[str]) -> build.Inputs[PhotosConfig]:
    """Loads the images that are in folders now, with the config of the run."""
    if len(folders) > 1 and any(name.endswith(".zip") for name in folders):
        raise InputError(f"PHOTOS must be left out for a run of a .zip; got {folders[-1]}")
    values = config_json(run.config.values)
    values["data"] = {**values["data"], "dir": "\n".join(folders)}
    config = parse_config(values, run.config.name)
    assert isinstance(config, PhotosConfig)
    # Few are decoded: those that are new, and those that the report shows.
    streamed = dataclasses.replace(config.data, cache_mb=0.0)
    with checks.named({"data.dir": "PHOTOS"}):
        dataset = datasets.load(streamed)
    return build.load_photos(config, dataset)


def _matched(
    contents: NDArray, names: Sequence[str], digests: NDArray, now: Sequence[str]
) -> tuple[NDArray, NDArray]:
    """Finds each known image's place among those of now, -1: gone; and which of these are new.

    Of images with the same content, one of the same name is the image, or else the first.

    Args:
        contents: digests uint8 `[n, 16]` of the known ones.
        names: of these.
        digests: uint8 `[m, 16]` of those of now.
        now: their names.
    """
    there = collections.defaultdict[bytes, list[int]](list)
    for i, digest in enumerate(digests):
        there[digest.tobytes()].append(i)
    place = np.full(len(names), -1)
    keys = [digest.tobytes() for digest in contents]
    for by_name in (True, False):
        for j in np.flatnonzero(place < 0).tolist():
            same = [i for i in there[keys[j]] if not by_name or now[i] == names[j]]
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
    digests: NDArray | None = None,
    with_report: bool = True,
) -> Ended:
    """Updates a run of `cluster` with new rows; returns what is printed. Rows never leave.

    Args:
        workdir: of a finished run, whose method is the tree.
        table: rows of which those are new whose names the run does not have, or, where its rows are
            numbered, whose vectors; None: there are none.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        digests: of the rows of the table, see `embeddings.contents`; None: they are computed.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the rows cannot be used; nothing was written.
    """
    workdir = _folder(workdir)
    with workdirs.locked(workdir):
        run = embeddings.read(workdir)
        snapshot = _known_rows(workdir, run)
        now = _rows_now(workdir, run, snapshot, table, digests)
        n_known = len(snapshot.names)
        n_new = len(now.names) - n_known
        if not (n_new or refit):
            return _nothing(workdir, snapshot.state, "row", "cluster")
        options, rows = _options(run), assignments.read_workdir(workdir)
        axes = [assignments.numbers(rows, f"map_{axis}", range(n_known), 0.0) for axis in "xyz"]
        drawn = [axis.astype(np.float32) for axis in axes if axis is not None]
        is_numbered = run.results["provenance"]["ids"] is None
        titles = None if is_numbered else tuple(now.names.tolist())
        found = _Update(
            snapshot,
            now,
            np.ones(n_known, bool),
            run.decisions,
            history.Change(n_new, 0, 0, (), refit, "row", "cluster"),
            np.stack(drawn, axis=1) if drawn else None,
            functools.partial(
                clusters.run_tree, metric=str(options.metric), k=options.k, seed=options.seed
            ),
        )
        renewed = _RenewedRows(workdir, run, options, now.x, titles)
        return _renew(workdir, found, renewed.write, with_report=with_report)


def _rows_now(
    workdir: epath.Path,
    run: embeddings.EmbeddingClusters,
    snapshot: Snapshot,
    table: Table | None,
    digests: NDArray | None,
) -> Snapshot:
    """Returns the known rows and, after them, those of a table that are new."""
    if table is None:
        return snapshot
    values = table.values[:]
    if values.shape[1] != snapshot.x.shape[1]:
        columns = counted(snapshot.x.shape[1], "column")
        raise InputError(
            f"--features must have {columns} like the embeddings of {workdir}; got "
            f"{values.shape[1]}"
        )
    arrays.numeric(values, "--features", smooth.LARGEST)
    digests = embeddings.contents(values) if digests is None else digests
    names = snapshot.names.tolist()
    if run.results["provenance"]["ids"] is None:
        empty = [""] * len(names)
        _, new = _matched(snapshot.contents, empty, digests, [""] * len(values))
        names = list(map(str, range(len(names) + len(new))))
    else:
        _, new = _by_name(snapshot, digests, table.names, workdir)
        names += [(table.names or ())[i] for i in new.tolist()]
    x = values[new].astype(snapshot.x.dtype)
    x = arrays.normalize_rows(x) if _options(run).metric == "cosine" else x
    return snapshot._replace(
        names=np.array(names, np.str_),
        contents=np.concatenate([snapshot.contents, digests[new]]),
        x=np.concatenate([snapshot.x, x]),
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
        x[run.computed.labels == NO_CLUSTER] = 0  # They are no leaf.
        snapshot = snapshots.start(run.computed.labels, run.computed.names, contents, x)
    return _with_decisions(snapshot, run.computed, run.decisions)


class _RenewedRows(NamedTuple):
    """What the files of an updated run of embeddings are made of.

    Attributes:
        workdir: of the run.
        run: the run before.
        options: of its clustering.
        x: the rows `[n, d]`.
        names: of these; None: they are numbered.
    """

    workdir: epath.Path
    run: embeddings.EmbeddingClusters
    options: ClusterOptions
    x: NDArray
    names: tuple[str, ...] | None

    def write(
        self, new: epath.Path, clustering: Clustering, changes: Changes, with_report: bool
    ) -> None:
        """Writes the files into the folder of the new version, see `Write`."""
        options, x = self.options, self.x
        results = dict(self.run.results)
        clustering = clusters.with_map(clustering, x, seed=options.seed, **options.reduce_options)
        scored = clusters.scores(None, clustering.cluster_labels)
        clustering = clustering._replace(metrics={**clustering.metrics, **scored})
        clustering = clusters.with_silhouettes(x, clustering, options)
        results["metrics"] = {options.method: clustering.metrics}
        results["provenance"] = {
            **{**results["provenance"], "rows": len(x), "labels_used_for": []},
            **provenance.environment(),
        }
        results = io.plain(results)
        (self.workdir / workdirs.CONFIG).copy(new / workdirs.CONFIG)
        embeddings.write(new, x, clustering, options, clustering.cluster_labels, None)
        io.write(new / workdirs.ASSIGNMENTS, assignments.rows_csv(self.names, clustering))
        names = list(map(str, self.names or range(len(x))))
        data = report.ReportData(
            title=epath.Path(results["provenance"]["features"]).name,
            results=results,
            clustering=clustering,
            sources=self.names,
            linkage=clustering.linkage(x),
            features=clusters.rows_of_likeness(clustering.tree, x, str(options.metric)),
            run=decisions.digest(names, clustering.cluster_labels),
            command=outputs.correction_command(self.workdir),
            changes=changes,
        )
        if with_report:
            report.write_report(new / workdirs.REPORT, data)
        io.write_json(new / workdirs.RESULTS, results, checksum=True)
