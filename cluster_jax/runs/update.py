"""Next states of a finished run: by an update, by corrections, and back to the one before.

An update sees which images or rows are there now, by their contents or ids, finds their clusters,
which keep their numbers (`clustering.numbering`), and writes the next state.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import knn, numbering, smooth
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, checks, io
from cluster_jax.core.checks import InputError, short
from cluster_jax.core.names import counted
from cluster_jax.data import datasets, images
from cluster_jax.data import folder as image_files
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.tables import Table
from cluster_jax.encoding.embed import UNREADABLE, readable_rows
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.report import assignments, changes
from cluster_jax.report.report_data import GONE
from cluster_jax.runs import build, corrections, finish, page, photos, provenance
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.config import PhotosConfig, config_json, parse_config
from cluster_jax.runs.run import COLUMNS, DEPARTED, Run

# What a command prints: lines for a person, and values for a program.
Ended = tuple[str, dict[str, Any]]
# Clusters of rows `[m, d]` by the tree.
Fit = Callable[[NDArray], Clustering]
_TOLD = 12  # events that are printed


class Items(NamedTuple):
    """The m images or rows that are there now, those that the run knows first.

    Attributes:
        names: of each; None: they are numbered.
        old: int64 `[l]`, the rows of the run that the first l of them are.
        rows: int64 `[m]`, where their features are in the store.
        facts: of each, see `Run.facts`.
    """

    names: tuple[str, ...] | None
    old: NDArray
    rows: NDArray
    facts: NDArray


def opened(workdir: epath.PathLike) -> epath.Path:
    """Returns the folder of a run that is to be written.

    Raises:
        InputError: there is no such folder.
    """
    path = epath.Path(checks.local(workdir)).expanduser()
    if not path.is_dir():
        raise InputError(f"the workdir must be that of a finished run; got {path}, no such folder")
    return path


def undo(workdir: epath.PathLike, *, with_report: bool = True) -> Ended:
    """Goes back to the state before the last update or corrections; returns what is printed.

    Raises:
        InputError: there is none, or another process uses the workdir.
    """
    workdir = opened(workdir)
    with workdirs.locked(workdir):
        workdirs.check_run(workdir)
        numbers = workdirs.states(workdir)
        if len(numbers) < 2:
            raise InputError(
                f"{workdir} must have an update or corrections to take back; got none (the last "
                f"{records.KEPT} states are kept)"
            )
        before, what = records.read(workdir, back=1), "damaged state"
        with contextlib.suppress(InputError):
            made_by = records.read(workdir).made_by
            what = {"first": "clustering"}.get(made_by, made_by)
        text = page.render(before) if with_report else None
        _write_changes(before)
        page.write_outputs(before, text)
        # Last, so that after a kill the same command does not go back twice.
        (workdir / f"run-{numbers[-1]}.npz").unlink()
    said = f"Took the last {what} of {workdir} back: its clusters are as they were before."
    return said, {"workdir": str(workdir), "undone": what}


def correct(
    workdir: epath.PathLike,
    files: Sequence[epath.PathLike] = (),
    names: Sequence[tuple[str, str]] = (),
    *,
    with_report: bool = True,
) -> Ended:
    """Applies files of corrections and names, one after the other; returns what is printed.

    Without any, only the outputs are written again. A file of the page that was open while the run
    went on is about one of the last states: its decisions hold for the images that are there now.
    A later file of a page has all that an earlier one has, and takes its place.

    Args:
        workdir: of a finished run.
        files: as a page saves them.
        names: number of a cluster, and its name, of each.
        with_report: whether the page is written.

    Raises:
        InputError: the run is not finished, or a file does not fit it; nothing was written.
    """
    decisions = [corrections.read(file) for file in files]
    workdir = epath.Path(workdir).expanduser()
    workdirs.check_run(workdir)
    with workdirs.locked(workdir):
        before = run = records.read(workdir)
        for said in decisions:
            run = _corrected(run, said)
        if names:
            run = corrections.corrected(run, {"names": dict(names)})
            run = dataclasses.replace(run, page=None)
        is_new = run.state != before.state or (run.columns != before.columns).any()
        if is_new:
            run = finish.scored(finish.described(run))
            run = dataclasses.replace(run, number=before.number + 1, made_by="corrections")
        else:
            run = before
        if with_report:
            run = page.with_map(run)
        text = page.render(run) if with_report else None
        if is_new or run.points is not before.points:
            run.write()
        page.write_outputs(run, text)
    values = {"workdir": str(workdir), "assignments": str(workdir / workdirs.ASSIGNMENTS)}
    said_now = (
        f"corrections  {corrections.summary(before, run)}\nassignments  {values['assignments']}"
    )
    if text is not None:
        values["report"] = str(workdir / workdirs.REPORT)
        said_now += f"\nreport       {values['report']}"
    return said_now, values


def _corrected(run: Run, said: dict[str, Any]) -> Run:
    """Applies decisions about the newest state of a run, or about one of the last ones."""
    if said["state"] == run.state:
        return dataclasses.replace(corrections.corrected(run, said), page=run.state)
    assert run.workdir is not None
    for back in range(len(workdirs.states(run.workdir))):
        shown = records.read(run.workdir, back)
        if shown.state == said["state"] == run.page:
            now = corrections.corrected(shown, said)
            return dataclasses.replace(now, page=shown.state, config=run.config)
        if shown.state == said["state"]:
            now = corrections.corrected(run, corrections.carried(shown, run, said))
            return dataclasses.replace(now, page=None)
    raise InputError(
        f"the corrections must be of one of the last states of {run.workdir}; got those of "
        f"{short(said['state'])}: open its page anew"
    )


class _There(NamedTuple):
    """The photos that are there now, beside those that a run knows.

    Attributes:
        inputs: all of them, in the folders of the run and in others.
        facts: about these.
        known: int64 `[n]`, the place of each known photo among them, -1: none.
        new: int64, the places of those that are new.
        away: folders of the run that are not there, or empty.
        is_away: bool `[n]`, known photos in these; they stay.
        paths: of all that are there, absolute.
        earlier: of the n known ones.
    """

    inputs: build.Inputs[PhotosConfig]
    facts: NDArray
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

    @property
    def root(self) -> str:
        """The folder that names are relative to."""
        return os.path.abspath(image_files.root(str(self.inputs.config.data.dir)))


def update_photos(
    workdir: epath.PathLike,
    folders: Sequence[str] = (),
    *,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run of photos with the files that are there now; returns what is printed.

    Photos of a folder of the run that is not there stay as they were. A moved or renamed file is
    the same photo; another picture under an old name is another photo.

    Args:
        workdir: of a finished run that trains nothing, whose clusters are those of the tree.
        folders: folders or files beside those of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the photos may leave.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the photos cannot be used; nothing was written.
    """
    workdir, started = opened(workdir), time.perf_counter()
    with workdirs.locked(workdir):
        before = records.read(workdir)
        run, there = _looked(before, _check_photos(before), folders)
        gone = int((~there.is_kept).sum())
        _confirm(before, gone, confirmed, "name the folder in which they are now")
        there, made, skipped = _embedded(run, there)
        items, dataset = _photos_now(run, there, skipped)
        config = there.inputs.config
        run = dataclasses.replace(
            run, config=config.values, away=there.away, skipped=dataset.skipped
        )
        if not (refit or _differs(before, items)):
            return _nothing(before, run, with_report=with_report)
        if not len(items.rows):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        assert before.store is not None
        run = dataclasses.replace(run, store=np.concatenate([before.store, made]))
        section = config.eval
        metric, k = section.reduce.metric, section.n_clusters
        fit = functools.partial(clusters.run_tree, metric=metric, k=k, seed=config.seed)
        run, clustering = _grown(before, run, items, fit, refit=refit)
        placer = finish.placer_of(clustering, run.features, section)
        run = _with_placer(run, clustering, placer)
        inputs = there.inputs._replace(dataset=dataset)
        run = _scored_photos(run, inputs, clustering, time.perf_counter() - started)
        stores.append(workdir, made)
        return _written(before, run, dataset=dataset, with_report=with_report, refit=refit)


def _check_photos(run: Run) -> PhotosConfig:
    """Returns the config of a run of photos.

    Raises:
        InputError: the run cannot be updated.
    """
    must, config = "the run of an update must", parse_config(run.config)
    if not isinstance(config, PhotosConfig):
        raise InputError(
            f"{must} train nothing, as those of `cluster-jax images`; got {run.workdir}, whose "
            "network is one of its first images: train again, or use predict"
        )
    if config.data.name != "folder" or config.data.limit is not None:
        raise InputError(
            f"{must} be of all images of a folder; got {run.workdir}, which has data.name="
            f"{config.data.name} and data.limit={config.data.limit}"
        )
    if config.eval.method != "tree":
        raise InputError(
            f"eval.method must be 'tree' for an update; got {config.eval.method!r} in {run.workdir}"
        )
    return config


def _confirm(run: Run, gone: int, confirmed: bool, do: str) -> None:
    """Raises an `InputError` if more than half of a run would leave without a person's word."""
    if 2 * gone > len(run.columns) and not confirmed:
        raise InputError(
            f"{gone:,} of the {counted(len(run.columns), run.words[0])} of {run.workdir} must be "
            f"where they were; got them gone: {do}, or confirm by --yes that they leave"
        )


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


def _load(config: PhotosConfig, folders: Sequence[str]) -> build.Inputs[PhotosConfig]:
    """Loads the images that are in folders now."""
    if len(folders) > 1 and any(name.endswith(".zip") for name in folders):
        raise InputError(f"PHOTOS must be left out for a run of a .zip; got {folders[-1]}")
    config = _in_folders(config, folders)
    # Few are decoded: those that are new, and those that the report shows.
    streamed = dataclasses.replace(config.data, cache_mb=0.0)
    with checks.named({"data.dir": "PHOTOS"}):
        dataset = datasets.load(streamed)
    return build.load_photos(config, dataset)


def _in_folders(config: PhotosConfig, folders: Sequence[str]) -> PhotosConfig:
    values = config_json(config.values)
    values["data"] = {**values["data"], "dir": "\n".join(folders)}
    parsed = parse_config(values, config.name)
    assert isinstance(parsed, PhotosConfig)
    return parsed


def _looked(run: Run, config: PhotosConfig, photos: Sequence[str]) -> tuple[Run, _There]:
    """Finds the photos that are there now, and which of them the run knows, by their contents.

    Returns:
        The run, which knows again those that are back, and the photos.
    """
    old_dir = str(config.data.dir)
    folders = _folders(old_dir, photos)
    present = [name for name in folders if os.path.exists(name)]
    if not present:
        raise InputError(
            f"PHOTOS must be given, because {image_files.shown(old_dir)} is not there; got none: "
            "name the folder in which the photos are now"
        )
    inputs = _load(config, present)
    dataset = inputs.dataset
    earlier, paths = (
        [os.path.abspath(os.path.join(image_files.root(folder), name)) for name in names or ()]
        for folder, names in ((old_dir, run.names), ("\n".join(present), dataset.sources))
    )
    assert dataset.facts is not None
    assert run.facts is not None
    facts = dataset.facts(np.arange(dataset.size))
    known = _matched(_keys(run.facts, earlier), _keys(facts, paths))
    left, free = np.flatnonzero(known < 0), np.setdiff1d(np.arange(len(paths)), known)
    place = _matched(_keys(run.facts[left]), _keys(facts[free]))
    known[left[place >= 0]] = free[place[place >= 0]]
    run, back, new = _returned(run, facts, np.setdiff1d(free, known), paths)
    known, earlier = np.concatenate([known, back]), earlier + [paths[i] for i in back]
    is_away, away = np.zeros(len(earlier), bool), list[str]()
    for folder in old_dir.split("\n"):
        inside = np.array([path.startswith(folder + os.sep) for path in earlier])
        is_there = any(path.startswith(folder + os.sep) for path in paths)
        # Where most of its photos are elsewhere, the folder has moved.
        if inside.any() and not is_there and 2 * (known[inside] >= 0).sum() < inside.sum():
            is_away |= inside & (known < 0)
            away.append(folder)
    kept = [name for name in folders if name in present or name in away]
    if kept != present:
        inputs = inputs._replace(config=_in_folders(inputs.config, kept))
    return run, _There(inputs, facts, known, new, tuple(away), is_away, paths, earlier)


def _keys(facts: NDArray, names: Sequence[str] | None = None) -> list[tuple[bytes, str]]:
    """Returns what `_matched` compares: contents, and names, if there are any."""
    contents = (digest.tobytes() for digest in facts["digest"])
    return list(zip(contents, [""] * len(facts) if names is None else names, strict=True))


def _matched(known: Sequence[Any], now: Sequence[Any]) -> NDArray:
    """Returns the place of each known key among those of now, int64 `[n]`, -1: it is gone.

    Of equal ones the first is taken, each once.
    """
    there = collections.defaultdict[Any, list[int]](list)
    for i in reversed(range(len(now))):
        there[now[i]].append(i)
    return np.array([there[key].pop() if there[key] else -1 for key in known], np.int64)


def _returned(
    run: Run, facts: NDArray, new: NDArray, names: Sequence[str]
) -> tuple[Run, NDArray, NDArray]:
    """Finds what has left and is back: what a person has said of it holds again.

    Args:
        run: before.
        facts: about all that is there now.
        new: int `[l]`, which of these the run does not have.
        names: of all that is there now.

    Returns:
        A run that has them as its last rows, their places, and the places of those that are new.
    """
    place = _matched(_keys(run.gone), _keys(facts[new]))
    back = new[place[place >= 0]]
    columns = run.gone[place >= 0][list(COLUMNS.names or ())].astype(COLUMNS)
    assert run.facts is not None
    run = dataclasses.replace(
        run,
        columns=np.concatenate([run.columns, columns]),
        facts=np.concatenate([run.facts, facts[back]]),
        names=None if run.names is None else (*run.names, *(names[i] for i in back)),
        gone=run.gone[place < 0],
    )
    return run, back, np.setdiff1d(new, back)


def _embedded(run: Run, there: _There) -> tuple[_There, NDArray, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new.

    Returns:
        The photos that can be read, the features of the new ones, and the files that cannot.
    """
    assert run.store is not None
    if not len(there.new):
        return there, run.store[:0], ()
    fresh = images.select(there.inputs.dataset, there.new)
    made = photos.embed(there.inputs._replace(dataset=fresh), run.encoder())
    is_bad = made.get(UNREADABLE, np.zeros(len(there.new), bool))
    skipped = images.without(fresh, is_bad).skipped
    return there._replace(new=there.new[~is_bad]), readable_rows(made)["backbone"], skipped


def _photos_now(
    run: Run, there: _There, skipped: tuple[tuple[str, str], ...]
) -> tuple[Items, Dataset]:
    """Returns the photos of the updated run; those that are away are gray."""
    dataset, root = there.inputs.dataset, there.root
    assert run.store is not None
    assert run.facts is not None
    sources = tuple(os.path.relpath(path, root) for path in there.paths)
    old = np.flatnonzero(there.is_kept)
    known, facts = there.known[old], run.facts[old]
    names = [os.path.relpath(there.earlier[i], root) for i in old.tolist()]
    for i, place in enumerate(known.tolist()):
        if place >= 0:
            names[i], facts[i] = sources[place], there.facts[place]
    names += [sources[place] for place in there.new]
    present = np.concatenate([known[known >= 0], there.new])
    dataset = images.select(dataset._replace(sources=sources, skipped=()), present)
    dataset = page.with_gaps(dataset, names)
    gone = (entry for entry in dataset.skipped if entry[1] == GONE)
    dataset = dataset._replace(unreadable=None, skipped=(*gone, *skipped))
    rows = np.concatenate([run.columns["row"][old], len(run.store) + np.arange(len(there.new))])
    # What is known of a photo's sides is noted when it is decoded.
    assert there.inputs.dataset.facts is not None
    new = there.inputs.dataset.facts(there.new)
    return Items(tuple(names), old, rows, np.concatenate([facts, new])), dataset


def _differs(run: Run, items: Items) -> bool:
    """Returns whether rows are new, gone, renamed or changed."""
    return items.names != run.names or not np.array_equal(items.rows, run.columns["row"])


def _nothing(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Says that nothing has happened; notes where the photos are now."""
    assert run.workdir is not None
    if run.config != before.config:
        run.write()
        has_page = (run.workdir / workdirs.REPORT).exists()
        page.write_outputs(run, page.render(run) if has_page else None)
    elif not page.is_published(run):  # A kill came between the state and its outputs.
        _write_changes(run)
        page.repaired(run, with_report=with_report)
    noun = run.words[0]
    has = f"{run.workdir} has all {counted(len(run.columns), noun)} already, and none is gone"
    text = "\n".join([*_told_away(run), f"Nothing has happened: {has}."])
    return text, _values(dataclasses.replace(run, events=()), {}, refit=False)


def _values(run: Run, counts: Mapping[str, int], *, refit: bool) -> dict[str, Any]:
    """Returns what a program is told of an update with so many changes of each kind."""
    kinds = ("new", "gone", "changed", "renamed")
    return {
        "workdir": str(run.workdir),
        "update": run.updates,
        **{kind: counts.get(kind, 0) for kind in kinds},
        "refit": refit,
        "away": list(run.away),
        f"{run.words[0]}s": len(run.columns),
        "clusters": len(np.unique(run.labels[run.labels >= 0])),
        "events": [event._asdict() for event in run.events],
    }


def _grown(before: Run, run: Run, items: Items, fit: Fit, *, refit: bool) -> tuple[Run, Clustering]:
    """Returns the run of what is there now, whose clusters keep their numbers, and a fit of it.

    Args:
        before: as it is written.
        run: the same with what is back as its last rows; its store has the features of all.
        items: what is there now.
        fit: clusters rows.
        refit: whether all rows are clustered anew, and matched to the known clusters.
    """
    columns = np.zeros(len(items.rows), COLUMNS)
    n_old, now = len(items.old), run.updates + 1
    columns[:n_old] = run.columns[items.old]
    columns["row"] = items.rows
    is_kept = np.zeros(len(run.columns), bool)
    is_kept[items.old] = True
    after = dataclasses.replace(
        run,
        columns=columns,
        names=items.names,
        facts=items.facts,
        gone=np.concatenate([run.gone, _departed(run, ~is_kept)]),
        updates=now,
        points=None,
        probabilities=None,
    )
    x, fitted = after.all_features, dict[int, Clustering]()
    known = run.columns[items.old]
    is_fixed = known["decided"] | np.isin(known["label"], list(run.held))

    def look(rows: NDArray) -> numbering.Look:
        fitted[len(rows)] = clustering = fit(rows)
        assert clustering.tree is not None
        return clustering.tree.as_look()

    state = numbering.update(run.living.of(items.old), x, look, is_fixed)
    clustering, told = fitted[len(x)] if len(x) in fitted else fit(x), state.events
    if refit:
        assert clustering.tree is not None
        is_fixed = np.concatenate([is_fixed, np.zeros(len(x) - n_old, bool)])
        state = numbering.refit(state, clustering.tree.labels_, is_fixed)
        told += state.events
    columns["label"] = state.ids
    columns["found"] = np.where(columns["decided"], columns["found"], state.ids)
    columns["since"] = np.where(np.arange(len(x)) < n_old, columns["since"], now)
    columns["apart"] = state.apart
    had, born = before.labels, {event.id for event in told if event.kind == numbering.EMERGED}
    stayed = had[items.old[items.old < len(had)]]
    events = numbering.events(stayed, state.ids, born, had=had)
    after = dataclasses.replace(after, next_label=state.next_id, events=events)
    return after, _with_old_map(before, items, clustering, x)


def _departed(run: Run, is_gone: NDArray) -> NDArray:
    """Returns what is to be known of those rows that leave, bool `[n]`, if they come back."""
    columns = run.columns
    is_said = is_gone & (columns["decided"] | np.isin(columns["label"], list(run.held)))
    left = np.zeros(is_said.sum(), DEPARTED)
    left[list(COLUMNS.names or ())] = columns[is_said]
    assert run.facts is not None
    left["digest"] = run.facts["digest"][is_said]
    return left


def _with_old_map(run: Run, items: Items, clustering: Clustering, x: NDArray) -> Clustering:
    """Adds the old map as points: new rows lie between those they are most like."""
    if run.points is None or not len(items.old) or clustering.tree is None:
        return clustering
    old = run.points[items.old[items.old < len(run.points)]]
    sharp = clustering.tree.smoother_.project(x)
    near = knn.nearest(sharp[len(old) :], sharp[: len(old)], 3).indices
    return clustering._replace(points=np.concatenate([old, old[near].mean(axis=1)]))


def _with_placer(run: Run, clustering: Clustering, placer: Any) -> Run:
    """Returns a run with what a fit of all its rows has made, for its own clusters."""
    assert isinstance(placer, ByTree)
    placer = dataclasses.replace(placer, labels=run.labels.copy())
    assert clustering.tree is not None
    run = dataclasses.replace(
        run,
        placer=placer,
        tree=clustering.tree.linkage_,
        probabilities=clustering.tree.probabilities_,
    )
    return finish.described(run)


def _own_clusters(run: Run, clustering: Clustering) -> Clustering:
    """Returns a clustering whose clusters are those of the run, to be scored."""
    labels = run.labels
    real = labels[(labels != NO_CLUSTER) & ~run.outliers]
    counts = {"n_large": len(np.unique(real)), "outliers": int(run.outliers.sum())}
    return clustering._replace(
        metrics={**clustering.metrics, **counts},
        cluster_labels=labels.astype(np.int32),
        distances=run.distances,
        outliers=run.outliers,
        membership=run.membership,
    )


def _scored_photos(
    run: Run, inputs: build.Inputs[PhotosConfig], clustering: Clustering, seconds: float
) -> Run:
    """Returns a run of photos with scores, map and duplicates."""
    assert run.store is not None
    named = run.results.get("suggested_names") or {}
    embedding = {"backbone": run.store[run.columns["row"]]}
    features = {workdirs.TRAIN_EMBEDDING: embedding}
    clustering = _own_clusters(run, clustering)
    dataset = inputs.dataset
    found = finish.Found(inputs, features, dataset, embedding, clustering, None, 0.0)
    run = dataclasses.replace(run, truth=dataset.labels, label_names=dataset.label_names)
    run = finish.complete(found, run, seconds=seconds)
    suggested = run.results["suggested_names"] or {}
    # Those of a known group stay: with each new photo, others would come first.
    suggested = {str(key): named.get(str(key), words) for key, words in suggested.items()}
    return dataclasses.replace(run, results={**run.results, "suggested_names": suggested or None})


def update_rows(
    workdir: epath.PathLike,
    table: Table | None = None,
    *,
    add: bool = False,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run of embeddings with the rows that are there now; returns what is printed.

    Rows are known by their ids, or, where they are numbered, by their vectors. Known rows that the
    table lacks leave, and those whose vectors have changed are placed anew.

    Args:
        workdir: of a finished run, whose method is the tree.
        table: the rows; None: those of the run.
        add: whether the rows are added to those of the run, of which none leaves.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the rows may leave.
        with_report: whether the page is written; without it there is none.

    Raises:
        InputError: the run or the rows cannot be used; nothing was written.
    """
    workdir = opened(workdir)
    with workdirs.locked(workdir):
        run = before = records.read(workdir)
        options = _check_rows(run)
        assert run.store is not None
        assert run.facts is not None
        if table is None:
            items = Items(run.names, np.arange(len(run.columns)), run.columns["row"], run.facts)
            made, gone = run.store[:0], 0
        else:
            run, items, made, gone = _rows_now(run, table, options, add=add)
        _confirm(before, gone, confirmed, "give the file that has all rows, or --add for new ones")
        if not (refit or _differs(before, items)):
            return _nothing(before, before, with_report=with_report)
        run = dataclasses.replace(run, store=np.concatenate([run.store, made]), truth=None)
        metric = str(options.metric)
        fit = functools.partial(
            clusters.run_tree, metric=metric, k=options.n_clusters, seed=options.seed
        )
        run, clustering = _grown(before, run, items, fit, refit=refit)
        assert clustering.tree is not None
        voters = clustering.tree.clusterer_.voters
        placer = clusters.clusterer(
            clustering,
            voters,
            method=options.method,
            reduce=options.reduce,
            n_neighbors=options.n_neighbors,
        )
        run = _with_placer(run, clustering, placer)
        run = _scored_rows(run, clustering, options)
        stores.append(workdir, made)
        return _written(before, run, dataset=None, with_report=with_report, refit=refit)


def _check_rows(run: Run) -> ClusterOptions:
    """Returns the options of a run of embeddings.

    Raises:
        InputError: the run cannot be updated.
    """
    if run.store is None:
        raise InputError(
            f"the run of an update must have its rows in memory; got {run.workdir}, whose rows "
            "were read in blocks: use predict, or cluster all rows in another folder"
        )
    if not isinstance(run.placer, ByTree):
        raise InputError(
            f"method must be 'tree' for an update; got {run.method!r} in {run.workdir}"
        )
    return ClusterOptions.of(run.config)


def _rows_now(
    run: Run, table: Table, options: ClusterOptions, *, add: bool
) -> tuple[Run, Items, NDArray, int]:
    """Finds the rows of the updated run; one whose vector has changed is a new row.

    Returns:
        The run, which knows again those that are back; the rows; the features that the store lacks;
        how many rows are gone, without those that have changed.
    """
    values = table.values[:]
    assert run.store is not None
    assert run.facts is not None
    if values.shape[1] != run.store.shape[1]:
        raise InputError(
            f"--features must have {counted(run.store.shape[1], 'column')} like the embeddings of "
            f"{run.workdir}; got {values.shape[1]}"
        )
    arrays.numeric(values, "--features", smooth.LARGEST)
    names, facts = None if run.names is None else _ids(run, table.names), embeddings.digests(values)
    known = _matched(_keys(run.facts, run.names), _keys(facts, names))
    asked = set(names or ())
    is_named = np.array([name in asked for name in run.names or [""] * len(known)])
    is_kept = (known >= 0) | ~is_named if add else known >= 0
    gone = int((~is_kept & ~is_named).sum())
    new = np.setdiff1d(np.arange(len(values)), known)
    run, _, new = _returned(run, facts, new, names or ())
    assert run.facts is not None
    assert run.store is not None
    old = np.concatenate([np.flatnonzero(is_kept), np.arange(len(known), len(run.columns))])
    rows = np.concatenate([run.columns["row"][old], len(run.store) + np.arange(len(new))])
    if names is not None and run.names is not None:
        names = tuple(run.names[i] for i in old) + tuple(names[i] for i in new)
    items = Items(names, old, rows, np.concatenate([run.facts[old], facts[new]]))
    made = embeddings.rows_of(values[new].astype(run.store.dtype), options)
    return run, items, made, gone


def _ids(run: Run, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of rows.

    Raises:
        InputError: they have none, or two have the same one.
    """
    if names is None:
        raise InputError(
            f"--features must name its rows, as {run.workdir} does; got none: say which column by "
            "--ids"
        )
    counts = collections.Counter(names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"--features must name each row once; got {repeated[0]!r} several times")
    return tuple(names)


def _scored_rows(run: Run, clustering: Clustering, options: ClusterOptions) -> Run:
    """Returns a run of embeddings with scores and map."""
    x, results = run.all_features, dict(run.results)
    clustering = _own_clusters(run, clustering)
    scored = clusters.scores(None, run.labels)
    clustering = clustering._replace(metrics={**clustering.metrics, **scored})
    clustering = clusters.with_silhouettes(x, clustering, options)
    results["metrics"] = {options.method: clustering.metrics}
    results["provenance"] = {
        **{**results["provenance"], "rows": len(x), "labels_used_for": []},
        **provenance.environment(),
    }
    points = clustering.points if clustering.points.size else None
    return dataclasses.replace(run, results=io.plain(results), points=points)


def _written(
    before: Run, run: Run, *, dataset: Dataset | None, with_report: bool, refit: bool
) -> Ended:
    """Writes the next state of a run, with a table of what has changed, and says what was done."""
    assert run.workdir is not None
    if run.is_corrected:
        run = finish.scored(run)
    run = dataclasses.replace(run, number=before.number + 1, made_by="update", page=None)
    if with_report:
        run = finish.with_map(run)
    table, text = _changes(before, run), page.render(run, dataset) if with_report else None
    assert run.workdir is not None
    run.write()
    io.write(run.workdir / workdirs.CHANGES, assignments.to_csv(table))
    page.write_outputs(run, text)
    values = _values(run, collections.Counter(table["change"]), refit=refit)
    return _words(run, values), values


def _write_changes(run: Run) -> None:
    """Writes the table of what the last update of a state has changed, or removes another's."""
    assert run.workdir is not None
    file, numbers = run.workdir / workdirs.CHANGES, workdirs.states(run.workdir)
    for back in range(numbers[-1] - run.number, len(numbers) - 1):
        if (after := records.read(run.workdir, back)).made_by == "update":
            before = records.read(run.workdir, back + 1)
            io.write(file, assignments.to_csv(_changes(before, after)))
            return
    file.unlink(missing_ok=True)


def _changes(before: Run, run: Run) -> dict[str, list[Any]]:
    """Lists the rows that are new, gone, changed, renamed, or in another cluster."""
    was = {row: i for i, row in enumerate(before.columns["row"].tolist())}
    names, paths = [_names(r) for r in (before, run)], [_paths(r) for r in (before, run)]
    by_path = {} if run.names is None else {path: i for i, path in enumerate(paths[0])}
    table: dict[str, list[Any]] = {key: [] for key in ("name", "change", "before", "after")}
    seen = set[int]()

    def add(name: Any, change: str, old: int | None, new: int | None) -> None:
        labels = [None if i is None else int(r.labels[i]) for r, i in ((before, old), (run, new))]
        cells = (name, change, *("" if label is None else label for label in labels))
        for key, cell in zip(table, cells, strict=True):
            table[key].append(cell)

    for i, (row, name) in enumerate(zip(run.columns["row"].tolist(), names[1], strict=True)):
        old, path = was.get(row), paths[1][i]
        if old is None and path in by_path and by_path[path] not in seen:
            seen.add(by_path[path])
            add(name, "changed", by_path[path], i)
        elif old is None:
            add(name, "new", None, i)
        else:
            seen.add(old)
            if run.names is not None and paths[0][old] != path:
                add(name, "renamed", old, i)
            elif before.labels[old] != run.labels[i]:
                add(name, "moved", old, i)
    for old, name in enumerate(names[0]):
        if old not in seen:
            add(name, "gone", old, None)
    return table


def _names(run: Run) -> Sequence[Any]:
    return range(len(run.columns)) if run.names is None else run.names


def _paths(run: Run) -> Sequence[Any]:
    """Returns absolute paths of photos: another folder in an update changes the relative ones."""
    if not run.is_of_images:
        return _names(run)
    root = image_files.root(str(run.config["data"]["dir"]))
    return [os.path.abspath(os.path.join(root, str(name))) for name in _names(run)]


def _words(run: Run, values: dict[str, Any]) -> str:
    """Tells in plain words what has happened: numbers of files, then a line for each event."""
    noun, group = run.words
    names = run.cluster_names

    def called(cluster: int) -> str:
        name = names.get(str(cluster)) or run.named.get(cluster)
        return f"{group} {cluster}" + (f" ({name})" if name else "")

    numbers = {"new": "new", "gone": "gone", "changed": "changed", "renamed": "moved or renamed"}
    counts = [(values[key], word) for key, word in numbers.items()]
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in counts if n]
    lines = [*_told_away(run), "; ".join(parts) + "." if parts else f"No {noun} is new."]
    if values["refit"]:
        lines.append(f"All {noun}s were clustered anew.")
    shown = changes.ordered(run.events)
    lines += [f"  {changes.told(event, called, noun)}" for event in shown[:_TOLD]]
    if len(shown) > _TOLD:
        lines.append(f"  and {len(shown) - _TOLD:,} more; {workdirs.CHANGES} has every {noun}")
    same = sum(event.kind == numbering.SURVIVED for event in run.events)
    if same:
        lines.append(f"  {counted(same, group)} stayed as {'it was' if same == 1 else 'they were'}")
    return "\n".join(lines)


def _told_away(run: Run) -> list[str]:
    """Returns a sentence for each folder that is not there."""
    noun = run.words[0]
    return [f"{folder} is away or empty: its {noun}s stay as they were." for folder in run.away]
