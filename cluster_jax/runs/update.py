"""Next states of a finished run: by an update, by corrections, and back to the one before.

An update compares what is there now with what the run has, by contents and names, finds clusters
of all of it, which keep their numbers (`clustering.numbering`), and writes the next state.
"""

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import knn, numbering
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import checks, io
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
from cluster_jax.runs import build, corrections, finish, page, photos, provenance
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.config import PhotosConfig, config_json, parse_config
from cluster_jax.runs.run import COLUMNS, DEPARTED, Run

# What a command prints: lines for a person, and values for a program.
Ended = tuple[str, dict[str, Any]]
_TOLD = 12  # events that are printed
_KINDS = {"new": "new", "gone": "gone", "changed": "changed", "renamed": "moved or renamed"}


def undo(workdir: epath.PathLike, *, with_report: bool = True) -> Ended:
    """Goes back to the state before the last update or corrections; returns what is printed.

    Raises:
        InputError: there is none, or another process uses the workdir.
    """
    workdir = workdirs.of_run(checks.local(workdir))
    with workdirs.locked(workdir):
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
    workdir = workdirs.of_run(workdir)
    with workdirs.locked(workdir):
        before = run = records.read(workdir)
        for said in decisions:
            run = _apply(run, said)
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
    lines = [f"corrections  {corrections.summary(before, run)}"]
    lines.append(f"assignments  {values['assignments']}")
    if text is not None:
        values["report"] = str(workdir / workdirs.REPORT)
        lines.append(f"report       {values['report']}")
    return "\n".join(lines), values


def _apply(run: Run, said: dict[str, Any]) -> Run:
    """Applies decisions about the newest state of a run, or about one of the last ones."""
    if said["state"] == run.state:
        return dataclasses.replace(corrections.corrected(run, said), page=run.state)
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


class Items(NamedTuple):
    """The m images or rows of an updated run, those that the run has had first.

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


class _Comparison(NamedTuple):
    """The m photos or rows that exist now, compared with the n of a run.

    Attributes:
        run: the run; its last rows are those that had left and are back, with what a person has
            said about them.
        known: int64 `[n]`, which of the m each row of the run is, -1: it is gone.
        new: int64, those of the m that the run does not have.
        names: ids or absolute paths of the m, as of `run`; None: they are numbered.
        facts: about the m, see `Run.facts`.
    """

    run: Run
    known: NDArray
    new: NDArray
    names: tuple[str, ...] | None
    facts: NDArray

    def items(self, is_kept: NDArray) -> Items:
        """Returns what an updated run has: kept rows of `run`, bool `[n]`, and the new ones."""
        old, names = np.flatnonzero(is_kept), None
        assert self.run.facts is not None
        assert self.run.store is not None
        if self.names is not None and self.run.names is not None:
            places = zip(old.tolist(), self.known[old].tolist(), strict=True)
            known = (self.run.names[row] if i < 0 else self.names[i] for row, i in places)
            names = (*known, *(self.names[i] for i in self.new.tolist()))
        added = len(self.run.store) + np.arange(len(self.new))
        rows = np.concatenate([self.run.columns["row"][old], added])
        facts = np.concatenate([self.run.facts[old], self.facts[self.new]])
        return Items(names, old, rows, facts)


def _compare(
    run: Run, names: Sequence[str] | None, facts: NDArray, *, may_be_renamed: bool
) -> _Comparison:
    """Compares photos or rows that exist now with a run, by contents and names.

    Args:
        run: the run before the update.
        names: of what exists; None: it is numbered.
        facts: about it.
        may_be_renamed: whether the same content under another name is the same.
    """
    names = None if names is None else tuple(names)
    assert run.facts is not None
    known = _matched(_keys(run.facts, run.names), _keys(facts, names))
    if may_be_renamed:
        left, free = np.flatnonzero(known < 0), np.setdiff1d(np.arange(len(facts)), known)
        place = _matched(_keys(run.facts[left]), _keys(facts[free]))
        known[left[place >= 0]] = free[place[place >= 0]]
    new = np.setdiff1d(np.arange(len(facts)), known)
    place = _matched(_keys(run.gone), _keys(facts[new]))
    back = new[place[place >= 0]]
    columns = run.gone[place >= 0][list(COLUMNS.names or ())].astype(COLUMNS)
    run = dataclasses.replace(
        run,
        columns=np.concatenate([run.columns, columns]),
        facts=np.concatenate([run.facts, facts[back]]),
        names=None if run.names is None else (*run.names, *((names or ())[i] for i in back)),
        gone=run.gone[place < 0],
    )
    return _Comparison(run, np.concatenate([known, back]), np.setdiff1d(new, back), names, facts)


def _keys(facts: NDArray, names: Sequence[str] | None = None) -> list[tuple[bytes, str]]:
    """Returns what `_matched` compares: contents, and names, if there are any."""
    contents = (digest.tobytes() for digest in facts["digest"])
    return list(zip(contents, [""] * len(facts) if names is None else names, strict=True))


def _matched(known: Sequence[Any], now: Sequence[Any]) -> NDArray:
    """Returns the place of each known key among those of now, int64 `[n]`, -1: it is gone.

    Of equal ones the first is taken, each once.
    """
    comparison = collections.defaultdict[Any, list[int]](list)
    for i in reversed(range(len(now))):
        comparison[now[i]].append(i)
    return np.array([comparison[key].pop() if comparison[key] else -1 for key in known], np.int64)


def _confirm(run: Run, gone: int, confirmed: bool, do: str) -> None:
    """Raises an `InputError` if more than half of a run would leave without a person's word."""
    if 2 * gone > len(run.columns) and not confirmed:
        raise InputError(
            f"{gone:,} of the {counted(len(run.columns), run.words[0])} of {run.workdir} must be "
            f"as they were; got them gone or changed: {do}, or confirm by --yes that they leave, "
            "with what was decided about them"
        )


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
    workdir, started = workdirs.of_run(checks.local(workdir)), time.perf_counter()
    with workdirs.locked(workdir):
        before = records.read(workdir)
        inputs, comparison, is_kept = _compare_photos(before, folders)
        _confirm(before, int((~is_kept).sum()), confirmed, "name the folder in which they are now")
        comparison, made, skipped = _embedded(comparison, inputs)
        items, dataset = _photos_now(comparison, is_kept, inputs)
        dataset = dataset._replace(skipped=(*dataset.skipped, *skipped))
        inputs, config = inputs._replace(dataset=dataset), inputs.config
        changed: dict[str, Any] = {"config": config.values, "away": comparison.run.away}
        changed["skipped"] = dataset.skipped
        if not (refit or _differs(before, items)):
            run = dataclasses.replace(before, **changed)
            return _unchanged(before, run, with_report=with_report)
        if not len(items.rows):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        run = dataclasses.replace(comparison.run, **changed)
        run, clustering = _updated(before, run, items, made, refit=refit)
        placer = finish.placer_of(clustering, run.features, config.eval)
        run = _with_placer(run, clustering, placer)
        run = _scored_photos(run, inputs, clustering, time.perf_counter() - started)
        stores.append(workdir, made)
        return _written(before, run, dataset=dataset, with_report=with_report, refit=refit)


def _photos_config(run: Run) -> PhotosConfig:
    """Returns the config of a run of photos.

    Raises:
        InputError: the run cannot be updated.
    """
    config = parse_config(run.config)
    if not isinstance(config, PhotosConfig):
        problem = "whose network is one of its first images: train again, or use predict"
    elif config.data.name != "folder" or config.data.limit is not None:
        problem = f"with data.name={config.data.name} and data.limit={config.data.limit}"
    elif config.eval.method != "tree":
        problem = f"with eval.method={config.eval.method}"
    else:
        return config
    must = "the run of an update must be of all photos of a folder, in the clusters of the tree"
    raise InputError(f"{must}; got {run.workdir}, {problem}")


def _compare_photos(
    run: Run, more: Sequence[str]
) -> tuple[build.Inputs[PhotosConfig], _Comparison, NDArray]:
    """Compares the photos that are in the folders of a run now, and in others, with the run.

    Returns:
        The photos; the comparison, whose run knows the folders that are away or empty; and which
        rows of that run stay, bool `[n]`: also those in such a folder.
    """
    config = _photos_config(run)
    own = str(config.data.dir)
    folders = _folders(own, more)
    present = [name for name in folders if os.path.exists(name)]
    if not present:
        raise InputError(
            f"PHOTOS must be given, because {image_files.shown(own)} is not there; got none: "
            "name the folder in which the photos are now"
        )
    if len(present) > 1 and any(name.endswith(".zip") for name in present):
        raise InputError(f"PHOTOS must be left out for a run of a .zip; got {present[-1]}")
    config = _in_folders(config, present)
    # Few are decoded: those that are new, and those that the report shows.
    with checks.named({"data.dir": "PHOTOS"}):
        dataset = datasets.load(dataclasses.replace(config.data, cache_mb=0.0))
    dataset = build.load_photos(config, dataset).dataset
    assert dataset.facts is not None
    facts, root = dataset.facts(np.arange(dataset.size)), image_files.root(str(config.data.dir))
    paths = [os.path.abspath(root / name) for name in dataset.sources or ()]
    run = dataclasses.replace(run, names=_paths(run))
    comparison = _compare(run, paths, facts, may_be_renamed=True)
    is_kept, away = comparison.known >= 0, list[str]()
    for folder in own.split("\n"):
        inside = np.array([path.startswith(folder + os.sep) for path in comparison.run.names or ()])
        is_there = any(path.startswith(folder + os.sep) for path in paths)
        # Where most of its photos are elsewhere, the folder has moved.
        if (
            inside.any()
            and not is_there
            and 2 * (comparison.known[inside] >= 0).sum() < inside.sum()
        ):
            is_kept |= inside
            away.append(folder)
    config = _in_folders(config, [name for name in folders if name in present or name in away])
    run = dataclasses.replace(comparison.run, away=tuple(away))
    return build.Inputs(config, dataset, None), comparison._replace(run=run), is_kept


def _folders(own: str, more: Sequence[str]) -> list[str]:
    """Lists the folders of a run and others, without those that are inside of others."""
    missing = [name for name in more if not os.path.exists(os.path.expanduser(name))]
    if missing:
        raise InputError(f"PHOTOS must be folders or files of images; got no {missing[0]}")
    added = [str(workdirs.normalized(name)) for name in more]
    every = list(dict.fromkeys([*own.split("\n"), *added]))
    inside = [os.path.realpath(os.path.expanduser(name)) + os.sep for name in every]
    return [
        name
        for name, path in zip(every, inside, strict=True)
        if not any(path != other and path.startswith(other) for other in inside)
    ]


def _in_folders(config: PhotosConfig, folders: Sequence[str]) -> PhotosConfig:
    values = config_json(config.values)
    values["data"] = {**values["data"], "dir": "\n".join(folders)}
    parsed = parse_config(values, config.name)
    assert isinstance(parsed, PhotosConfig)
    return parsed


def _embedded(
    comparison: _Comparison, inputs: build.Inputs[PhotosConfig]
) -> tuple[_Comparison, NDArray, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new.

    Returns:
        The photos that can be read, the features of the new ones, and the files that cannot.
    """
    assert comparison.run.store is not None
    if not len(comparison.new):
        return comparison, comparison.run.store[:0], ()
    fresh = images.select(inputs.dataset, comparison.new)
    made = photos.embed(inputs._replace(dataset=fresh), comparison.run.encoder())
    is_bad = made.get(UNREADABLE, np.zeros(len(comparison.new), bool))
    skipped = images.without(fresh, is_bad).skipped
    return (
        comparison._replace(new=comparison.new[~is_bad]),
        readable_rows(made)["backbone"],
        skipped,
    )


def _photos_now(
    comparison: _Comparison, is_kept: NDArray, inputs: build.Inputs[PhotosConfig]
) -> tuple[Items, Dataset]:
    """Returns the photos of the updated run; those that are away are gray."""
    items, root = comparison.items(is_kept), image_files.root(str(inputs.config.data.dir))
    names = tuple(os.path.relpath(path, root) for path in items.names or ())
    sources = tuple(os.path.relpath(path, root) for path in comparison.names or ())
    known = comparison.known[items.old]
    dataset = inputs.dataset._replace(sources=sources, unreadable=None, skipped=())
    dataset = images.select(dataset, np.concatenate([known[known >= 0], comparison.new]))
    return items._replace(names=names), page.with_gaps(dataset, names)


def _scored_photos(
    run: Run, inputs: build.Inputs[PhotosConfig], clustering: Clustering, seconds: float
) -> Run:
    """Returns a run of photos with scores, map and duplicates."""
    assert run.store is not None
    named, dataset = run.results.get("suggested_names") or {}, inputs.dataset
    embedding = {"backbone": run.store[run.columns["row"]]}
    features = {workdirs.TRAIN_EMBEDDING: embedding}
    clustering = _own_clusters(run, clustering)
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
    workdir = workdirs.of_run(checks.local(workdir))
    with workdirs.locked(workdir):
        before = records.read(workdir)
        options, x = _row_options(before), before.all_features
        values = x if table is None else table.values[:]
        comparison = _compare_rows(before, values, table)
        is_kept = comparison.known >= 0
        if add:
            names, asked = comparison.run.names or [""] * len(is_kept), set(comparison.names or ())
            is_kept |= np.array([name not in asked for name in names], bool)
        do = "give the file that has all rows, or --add for new ones"
        _confirm(before, int((~is_kept).sum()), confirmed, do)
        items = comparison.items(is_kept)
        if not (refit or _differs(before, items)):
            return _unchanged(before, before, with_report=with_report)
        made = embeddings.rows_of(values[comparison.new].astype(x.dtype), options)
        run, clustering = _updated(before, comparison.run, items, made, refit=refit)
        assert clustering.tree is not None
        run = _with_placer(run, clustering, clustering.tree.clusterer_)
        run = _scored_rows(run, clustering, options)
        stores.append(workdir, made)
        return _written(before, run, dataset=None, with_report=with_report, refit=refit)


def _row_options(run: Run) -> ClusterOptions:
    """Returns the options of a run of embeddings.

    Raises:
        InputError: the run cannot be updated.
    """
    if not isinstance(run.placer, ByTree):
        must = "method must be 'tree' for an update"
        raise InputError(f"{must}; got {run.method!r} in {run.workdir}")
    if run.store is None:
        must = "the run of an update must have its rows in memory"
        how = "whose rows were read in blocks: use predict, or cluster all rows in another folder"
        raise InputError(f"{must}; got {run.workdir}, {how}")
    return ClusterOptions.of(run.config)


def _compare_rows(run: Run, values: NDArray, table: Table | None) -> _Comparison:
    """Compares rows `[m, d]` of a table with a run; one whose vector has changed is a new row.

    Args:
        run: before.
        values: of the table; or of the run.
        table: None: the rows are those of the run.

    Raises:
        InputError: they have other columns, no ids, or are no finite numbers.
    """
    if table is None:
        assert run.facts is not None
        return _compare(run, run.names, run.facts, may_be_renamed=False)
    with checks.named({"X must": "--features must"}):
        run.checked(values)
    if run.names is not None and table.names is None:
        raise InputError(
            f"--features must name its rows, as {run.workdir} does; got none: say which column by "
            "--ids"
        )
    names = None if run.names is None else table.names
    return _compare(run, names, embeddings.digests(values), may_be_renamed=False)


def _scored_rows(run: Run, clustering: Clustering, options: ClusterOptions) -> Run:
    """Returns a run of embeddings with scores and map."""
    x, results = run.all_features, dict(run.results)
    clustering, metric = _own_clusters(run, clustering), str(options.metric)
    clustering = clusters.scored(x, clustering, None, metric, run.config["seed"])
    results["metrics"] = {options.method: clustering.metrics}
    results["provenance"] = {
        **{**results["provenance"], "rows": len(x), "labels_used_for": []},
        **provenance.environment(),
    }
    points = clustering.points if clustering.points.size else None
    return dataclasses.replace(run, results=io.plain(results), points=points, truth=None)


def _differs(run: Run, items: Items) -> bool:
    """Returns whether rows are new, gone, renamed or changed."""
    return items.names != run.names or not np.array_equal(items.rows, run.columns["row"])


def _unchanged(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Says that nothing has happened; notes where the photos are now."""
    if run.config != before.config:
        run.write()
        has_page = (run.workdir / workdirs.REPORT).exists()
        page.write_outputs(run, page.render(run) if has_page else None)
    elif not page.is_published(run):  # A kill came between the state and its outputs.
        _write_changes(run)
        page.repaired(run, with_report=with_report)
    has = f"{run.workdir} has all {counted(len(run.columns), run.words[0])} already"
    lines = [*_missing_folders(run), f"Nothing has happened: {has}, and none is gone."]
    if run.config != before.config:
        lines.append(f"They are in {image_files.shown(run.config['data']['dir'])} from now on.")
    text = "\n".join(lines)
    return text, _values(dataclasses.replace(run, events=()), {}, refit=False)


def _updated(
    before: Run, run: Run, items: Items, made: NDArray, *, refit: bool
) -> tuple[Run, Clustering]:
    """Returns the run of what is there now, whose clusters keep their numbers, and a fit of it.

    Args:
        before: as it is written.
        run: the same with what is back as its last rows.
        items: what is there now.
        made: features of what is new.
        refit: whether all rows are clustered anew, and matched to the known clusters.
    """
    n_old, now = len(items.old), run.updates + 1
    columns = np.zeros(len(items.rows), COLUMNS)
    columns[:n_old], columns["since"][n_old:] = run.columns[items.old], now
    columns["row"] = items.rows
    assert before.store is not None
    after = dataclasses.replace(
        run,
        store=np.concatenate([before.store, made]),
        columns=columns,
        names=items.names,
        facts=items.facts,
        gone=np.concatenate([run.gone, _kept_decisions(run, items.old)]),
        updates=now,
        points=None,
        probabilities=None,
    )
    x = after.all_features
    is_fixed = columns["decided"] | np.isin(columns["label"], list(run.held))
    is_fixed[n_old:] = False

    clustering = clusters.find(x, run.options, seed=run.config["seed"])
    assert clustering.tree is not None
    state = clustering.tree.numbered(run.living.of(items.old), x, is_fixed[:n_old])
    told = state.events
    if refit:
        state = numbering.refit(state, clustering.tree.labels_, is_fixed)
        told += state.events
    columns["label"], columns["apart"] = state.ids, state.apart
    columns["found"] = np.where(columns["decided"], columns["found"], state.ids)
    had, born = before.labels, {event.id for event in told if event.kind == numbering.EMERGED}
    stayed = had[items.old[items.old < len(had)]]
    events = numbering.events(stayed, state.ids, born, had=had)
    after = dataclasses.replace(after, next_label=state.next_id, events=events)
    return after, _with_old_map(before, items, clustering, x)


def _kept_decisions(run: Run, kept: NDArray) -> NDArray:
    """Returns what is to be known of the rows that leave, if they come back."""
    columns, is_said = run.columns, run.columns["decided"].copy()
    is_said |= np.isin(columns["label"], list(run.held))
    is_said[kept] = False
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
    assert clustering.tree is not None
    run = dataclasses.replace(
        run,
        placer=dataclasses.replace(placer, labels=run.labels.copy()),
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


def _written(
    before: Run, run: Run, *, dataset: Dataset | None, with_report: bool, refit: bool
) -> Ended:
    """Writes the next state of a run, with a table of what has changed, and says what was done."""
    file = run.workdir / workdirs.CHANGES
    if run.is_corrected:
        run = finish.scored(run)
    run = dataclasses.replace(run, number=before.number + 1, made_by="update", page=None)
    if with_report:
        run = finish.with_map(run)
    table, text = _changes(before, run), page.render(run, dataset) if with_report else None
    run.write()
    io.write(file, assignments.to_csv(table))
    page.write_outputs(run, text)
    values = _values(run, collections.Counter(table["change"]), refit=refit)
    return _words(run, values), values


def _write_changes(run: Run) -> None:
    """Writes the table of what the last update of a state has changed, or removes another's."""
    file, numbers = run.workdir / workdirs.CHANGES, workdirs.states(run.workdir)
    for back in range(numbers[-1] - run.number, len(numbers) - 1):
        if (after := records.read(run.workdir, back)).made_by == "update":
            before = records.read(run.workdir, back + 1)
            io.write(file, assignments.to_csv(_changes(before, after)))
            return
    file.unlink(missing_ok=True)


def _changes(before: Run, run: Run) -> dict[str, list[Any]]:
    """Lists the rows that are new, gone, changed, renamed, or in another cluster."""
    place = {row: i for i, row in enumerate(before.columns["row"].tolist())}
    olds = [place.pop(row, None) for row in run.columns["row"].tolist()]
    earlier, paths = _paths(before), _paths(run)
    left = {earlier[i]: i for i in place.values()} if run.names is not None else {}
    table: list[tuple[Any, str, int | None, int | None]] = []
    for new, old in enumerate(olds):
        if old is None:
            old = left.pop(paths[new], None)
            kind = "new" if old is None else "changed"
        elif run.names is not None and earlier[old] != paths[new]:
            kind = "renamed"
        elif before.labels[old] != run.labels[new]:
            kind = "moved"
        else:
            continue
        table.append((_name(run, new), kind, old, new))
    is_gone = sorted(set(place.values()) - {old for _, _, old, _ in table})
    table += [(_name(before, old), "gone", old, None) for old in is_gone]
    return {
        "name": [name for name, *_ in table],
        "change": [kind for _, kind, *_ in table],
        "before": ["" if old is None else int(before.labels[old]) for _, _, old, _ in table],
        "after": ["" if new is None else int(run.labels[new]) for *_, new in table],
    }


def _name(run: Run, row: int) -> str | int:
    return row if run.names is None else run.names[row]


def _paths(run: Run) -> tuple[Any, ...]:
    """Returns absolute paths of photos: another folder in an update changes the relative ones."""
    if run.names is None:
        return tuple(range(len(run.columns)))
    if not run.is_of_images:
        return run.names
    root = image_files.root(str(run.config["data"]["dir"]))
    return tuple(os.path.abspath(os.path.join(root, name)) for name in run.names)


def _values(run: Run, counts: Mapping[str, int], *, refit: bool) -> dict[str, Any]:
    """Returns what a program is told of an update with so many changes of each kind."""
    return {
        "workdir": str(run.workdir),
        "update": run.updates,
        **{kind: counts.get(kind, 0) for kind in _KINDS},
        "refit": refit,
        "away": list(run.away),
        f"{run.words[0]}s": len(run.columns),
        "clusters": len(np.unique(run.labels[run.labels >= 0])),
        "events": [event._asdict() for event in run.events],
    }


def _words(run: Run, values: dict[str, Any]) -> str:
    """Tells in plain words what has happened: numbers of files, then a line for each event."""
    noun, group = run.words
    names = run.cluster_names

    def called(cluster: int) -> str:
        name = names.get(str(cluster)) or run.named.get(cluster)
        return f"{group} {cluster}" + (f" ({name})" if name else "")

    counts = [(values[kind], word) for kind, word in _KINDS.items()]
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in counts if n]
    lines = [*_missing_folders(run), "; ".join(parts) + "." if parts else f"No {noun} is new."]
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


def _missing_folders(run: Run) -> list[str]:
    """Returns a sentence for each folder that is not there."""
    noun = run.words[0]
    return [f"{folder} is away or empty: its {noun}s stay as they were." for folder in run.away]
