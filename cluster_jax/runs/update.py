"""The next state of a finished run by an update.

An update compares the photos or rows that exist now with those of the run, by contents and names,
clusters all of them, where clusters keep their numbers (`clustering.stable_ids`), and writes the
next state.
"""

import collections
import dataclasses
import os
import time
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.data import images
from cluster_jax.data.tables import Table
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.report import duplicates
from cluster_jax.runs import (
    changes,
    claims,
    finish,
    match,
    measured,
    page,
    photos,
    provenance,
    sources,
)
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.changes import Ended
from cluster_jax.runs.match import Comparison
from cluster_jax.runs.next_state import Numbers, Step, find, next_state
from cluster_jax.runs.run import Run
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, PhotosConfig, parse_config


def _confirm(run: Run, gone: int, confirmed: bool, do: str, changed: int = 0) -> None:
    """Raises an `InputError` if more than half of a run would leave or change without a yes.

    Args:
        run: the run before the update.
        gone: number of its rows that would leave.
        confirmed: whether somebody has confirmed that so many leave or change.
        do: advice for the message: what to do if they are not meant to.
        changed: number of its rows that would stay with another vector.
    """
    if 2 * (gone + changed) <= len(run.columns) or confirmed:
        return
    rows = f"of the {counted(len(run.columns), run.words[0])} of {run.workdir}"
    yes = "by --yes (in Python confirmed=True)"
    if not changed:
        raise InputError(
            f"{gone:,} {rows} are gone or have changed: {do}, or confirm that they leave, with "
            f"what was decided about them, {yes}"
        )
    left = f", and {gone:,} {'is' if gone == 1 else 'are'} gone" if gone else ""
    raise InputError(
        f"{changed:,} {rows} have another vector under the same id{left}: {do}, or confirm {yes} "
        "that they have changed; what was decided about rows that are there stays"
    )


def update_photos(
    workdir: epath.PathLike,
    folders: Sequence[str] = (),
    *,
    gone: Sequence[str] = (),
    exclude: Sequence[str] = (),
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run to the photos that exist now; returns the message and values for `--json`.

    Photos of a folder that is away or empty, and files that cannot be read now, stay as they were,
    unless they are found elsewhere. A moved or renamed file is the same photo; another picture
    under an old name is another photo. If there is no change, no state is added.

    Args:
        workdir: folder of a finished run that trains nothing, with the clusters of the tree.
        folders: folders or files beside those of the run.
        gone: folders of the run that are gone for good, whose photos leave.
        exclude: globs of names or paths that are left out from now on, also of photos of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the photos may leave.
        with_report: whether the page is written; if not, and the run changes, an existing page is
            removed.

    Raises:
        InputError: the run or the photos cannot be used, or another process uses the workdir; no
            state was written.
    """
    started = time.perf_counter()
    workdir = workdirs.of_run(checks.local(workdir))
    with workdirs.locked(workdir):
        before = records.read(workdir)
        inputs, comparison, is_kept = _compare_photos(before, folders, gone, exclude)
        _confirm(before, int((~is_kept).sum()), confirmed, "name the folder in which they are now")
        comparison, made, skipped = _embedded(comparison, inputs)
        after, old = comparison.joined(is_kept)
        after = dataclasses.replace(after, config=inputs.config.values)
        root = image_files.root(str(inputs.config.data.dir))
        names = tuple(os.path.relpath(path, root) for path in after.names or ())
        known = np.full(len(names), -1, np.int32) if after.truth is None else after.truth
        truth, titles = sources.labels_of(inputs.config, names, known, before.label_names or ())
        skipped = (*inputs.dataset.skipped, *skipped)
        after = dataclasses.replace(
            after, names=names, skipped=skipped, truth=truth, label_names=titles
        )
        if not (refit or _differs(before, after)):
            return _unchanged(before, after, with_report=with_report)
        if not len(after.columns):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        assert before.store is not None
        after = dataclasses.replace(after, store=np.concatenate([before.store, made]))
        numbers: Numbers = "refit" if refit else "kept"
        run = _next_photos(before, after, old, numbers, started, inputs.dataset.ignored)
        stores.append(workdir, made)
        run = write_next(before, run, with_report=with_report)
        return changes.words(before, run, refit=refit), changes.values(run, refit=refit)


def cluster_again(before: Run, config: AnyConfig, *, with_report: bool) -> Run:
    """Returns the next state of a run of photos by another section `eval`, after writing it.

    The photos are those of the run, of which no file is read. Clusters of which most photos are the
    same keep their numbers and names.

    Args:
        before: the newest state of the run, whose folder is locked.
        config: the config; all but the section `eval` and the labels is that of the run, of which
            labels stay if it names none.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    started = time.perf_counter()
    data = dict(before.config["data"])
    data["labels"] = config.data.labels or data["labels"]
    values = {**before.config, "data": data}
    values |= {key: config.values[key] for key in claims.AFTER_TRAINING}
    after = dataclasses.replace(before, config=values)
    if data["labels"] is not None and before.names is not None:
        known = before.truth
        known = np.full(len(before.names), -1, np.int32) if known is None else known
        now = parse_config(values)
        assert isinstance(now, PhotosConfig)
        truth, titles = sources.labels_of(now, before.names, known, before.label_names or ())
        after = dataclasses.replace(after, truth=truth, label_names=titles)
    old = np.arange(len(before.columns))
    ignored = before.source["ignored"].items()
    run = _next_photos(before, after, old, "other", started, ignored)
    return write_next(before, run, with_report=with_report)


def with_number(workdir: epath.PathLike, n_clusters: int, *, with_report: bool = True) -> Ended:
    """Clusters a run into another number of clusters; returns the message and values for `--json`.

    The photos or rows are those of the run. Clusters of which most are the same keep their numbers
    and names, and what a person has decided about rows of these holds.

    Args:
        workdir: folder of a finished run that can be updated.
        n_clusters: number of clusters.
        with_report: whether the page is written; if not, an existing page is removed.

    Raises:
        InputError: the run cannot be updated, has fewer different rows, or another process uses
            the workdir; no state was written.
    """
    workdir = workdirs.of_run(checks.local(workdir))
    checks.whole("--n-clusters", n_clusters, 1)
    with workdirs.locked(workdir):
        before = records.read(workdir)
        if before.is_of_images:
            values = _photos_config(before).values
            values = {**values, "eval": {**values["eval"], "n_clusters": n_clusters}}
            run = cluster_again(before, parse_config(values), with_report=with_report)
        else:
            _row_options(before)
            after = dataclasses.replace(before, config={**before.config, "n_clusters": n_clusters})
            run = _next_rows(before, after, np.arange(len(before.columns)), Step("other"))
            run = write_next(before, run, with_report=with_report)
        return changes.words(before, run, refit=True), changes.values(run, refit=True)


def _next_rows(before: Run, after: Run, old: NDArray, step: Step) -> Run:
    """Returns the next state of a run of embeddings with its results.

    Args:
        before: the state before.
        after: see `next_state.next_state`, like `old`.
        old: int `[l]`.
        step: see `next_state.Step`.
    """
    x = after.all_features
    run = next_state(before, after, old, x, step, find(after, old, x, step))
    results = {**run.results, "metrics": {}}
    results["provenance"] = {
        **{**results["provenance"], "rows": len(x)},
        **{"features": after.source["files"][0], "files": after.source["files"]},
        **provenance.environment(),
    }
    return measured.measured(dataclasses.replace(run, results=results))


def _next_photos(
    before: Run,
    after: Run,
    old: NDArray,
    numbers: Numbers,
    started: float,
    ignored: Iterable[tuple[str, int]],
) -> Run:
    """Returns the next state of a run of photos with its results; no photo is read.

    Args:
        before: the state before.
        after: see `next_state.next_state`, like `old`.
        old: int `[l]`.
        numbers: see `next_state.Step`.
        started: what `time.perf_counter` returned when the command began.
        ignored: see `data.images.Dataset`.
    """
    config = parse_config(after.config)
    assert after.store is not None
    dataset = photos.of_run(after)._replace(labels=after.truth, label_names=after.label_names)
    dataset = dataset._replace(ignored=tuple(ignored))
    features = {workdirs.TRAIN_EMBEDDING: {"backbone": after.store[after.columns["row"]]}}
    made = finish.embedded(Inputs(config, dataset, None), features, _groups_before(before, after))
    run, clustering = finish.clustered(made, before, after, old, numbers)
    return finish.complete(made, run, clustering, seconds=time.perf_counter() - started)


def _photos_config(run: Run) -> PhotosConfig:
    """Returns the config of a run of photos.

    Raises:
        InputError: the run cannot be updated: it trains, is not of all images of a folder, or has
            no tree.
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
    run: Run, more: Sequence[str], gone: Sequence[str], exclude: Sequence[str]
) -> tuple[Inputs[PhotosConfig], Comparison, NDArray]:
    """Compares the photos that are in the folders of a run now, and in others, with the run.

    Args:
        run: the run before the update.
        more: further folders or files.
        gone: folders of the run that a person gives up.
        exclude: globs of files that are left out from now on.

    Returns:
        The photos that are there, as inputs of the config with all folders; the comparison, whose
        run has in `away` what cannot be read; and which rows of that run stay, bool `[n]`: also
        those that may be there, see `sources.Present`.

    Raises:
        InputError: see `_photos_config` and `sources.find`.
    """
    now = sources.find(run, _photos_config(run), more, gone, exclude)
    run = dataclasses.replace(run, names=changes.paths(run))
    comparison = match.compare(run, now.paths, now.facts)
    is_kept = comparison.known >= 0
    names = comparison.run.names or ()
    not_found = [row for row in np.flatnonzero(~is_kept).tolist() if now.may_be_there(names[row])]
    is_kept[not_found] = True
    left = [names[row] for row in not_found]
    # A folder of which all photos are elsewhere has moved.
    away = [line for line in now.missing if any(p.startswith(line + os.sep) for p in left)]
    moved = [line for line in now.missing if line not in away and not os.path.lexists(line)]
    closed = [path for path in left if path in now.unreadable]
    run = dataclasses.replace(comparison.run, away=(*away, *closed))
    inputs = now.inputs._replace(config=sources.without_folders(now.inputs.config, moved))
    return inputs, comparison._replace(run=run), is_kept


def _embedded(
    comparison: Comparison, inputs: Inputs[PhotosConfig]
) -> tuple[Comparison, NDArray, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new, or turned.

    Returns:
        The comparison, without those that cannot be read; the features of its turned and new
        photos, float `[l, d]`; and (path, reason) of each of their files that cannot be read.
    """
    assert comparison.run.store is not None
    asked = comparison.embedded
    if not len(asked):
        return comparison, comparison.run.store[:0], ()
    fresh = images.select(inputs.dataset, asked)
    made = photos.embed(inputs._replace(dataset=fresh), comparison.run.encoder())
    rows = readable_rows({**made, "index": asked})
    first = len(comparison.run.store)
    pictures = photos.pictures_of(made, first)
    if pictures is not None and len(pictures.rows):
        stores.write_pictures(comparison.run.workdir, first, pictures)
    comparison = comparison._replace(
        changed=comparison.changed & np.isin(comparison.known, rows["index"]),
        new=comparison.new[np.isin(comparison.new, rows["index"])],
    )
    return comparison, rows["backbone"], readable_images(fresh, made).skipped


def _groups_before(before: Run, run: Run) -> NDArray:
    """Returns the group of duplicates that each row of a run had in the state before, -1 for none.

    The result is int64 `[n]`.
    """
    rows = np.concatenate([before.columns["row"], run.columns["row"]])
    groups = np.full(rows.max(initial=-1) + 1, -1)
    groups[before.columns["row"]] = duplicates.groups_of(before.duplicates, len(before.columns))
    return groups[run.columns["row"]]


def update_rows(
    workdir: epath.PathLike,
    table: Table | None = None,
    *,
    add: bool = False,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
    file: str | None = None,
) -> Ended:
    """Updates a run to the rows that exist now; returns the message and values for `--json`.

    A row is known by its id; numbered rows are known by their vectors. Rows of the run that the
    table lacks leave. A row whose vector has changed stays in its cluster, if the clusters do not
    part it from that, and as a person has decided. The tables are in the order of `table`. Scores
    by labels are of the rows whose label is known. If there is no change, no state is added.

    Args:
        workdir: folder of a finished run of embeddings in memory, with the clusters of the tree.
        table: the rows; None: those of the run.
        add: whether the rows of the run that the table lacks stay.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the rows may leave or change.
        with_report: whether the page is written; if not, and the run changes, an existing page is
            removed.
        file: path of the table, after which the page is named; None: it keeps its name.

    Raises:
        InputError: the run or the rows cannot be used, or another process uses the workdir; no
            state was written.
    """
    workdir = workdirs.of_run(checks.local(workdir))
    with workdirs.locked(workdir):
        before = records.read(workdir)
        options = _row_options(before)
        x = before.all_features
        values = x if table is None else table.values[:]
        comparison = _compare_rows(before, values, table)
        is_kept = comparison.known >= 0
        if add:
            names = comparison.run.names or [""] * len(is_kept)
            asked = set(comparison.names or ())
            is_kept |= np.array([name not in asked for name in names], bool)
        do = "give the file that has all rows, or --add for new ones"
        counts = [int(rows.sum()) for rows in (~is_kept, is_kept & comparison.changed)]
        _confirm(before, counts[0], confirmed, do, counts[1])
        after, old = comparison.joined(is_kept)
        order = np.arange(len(after.columns))
        if not add and table is not None:
            order = np.argsort(np.concatenate([comparison.known[old], comparison.new]))
        if not (refit or _differs(before, after)):
            return _unchanged(before, records.reordered(after, order), with_report=with_report)
        made = embeddings.rows_of(values[comparison.embedded].astype(x.dtype), options)
        assert before.store is not None
        after = dataclasses.replace(after, store=np.concatenate([before.store, made]))
        if file is not None:
            files = [*after.source["files"], file] if add else [file]
            source = {**after.source, "files": [*dict.fromkeys(files)]}
            after = dataclasses.replace(after, source=source)
        changed = np.zeros(len(after.columns), bool)
        changed[: len(old)] = comparison.changed[old]
        step = Step("refit" if refit else "kept", changed=changed)
        run = records.reordered(_next_rows(before, after, old, step), order)
        stores.append(workdir, made)
        run = write_next(before, run, with_report=with_report)
        return changes.words(before, run, refit=refit), changes.values(run, refit=refit)


def _row_options(run: Run) -> ClusterOptions:
    """Returns the options of a run of embeddings.

    Raises:
        InputError: the run cannot be updated: it has no tree, or its rows were read in blocks.
    """
    if not isinstance(run.placer, ByTree):
        must = "method must be 'tree' for an update"
        raise InputError(f"{must}; got {run.method!r} in {run.workdir}: cluster all rows anew")
    if run.store is None:
        must = "the run of an update must have its rows in memory"
        how = "whose rows were read in blocks: use predict, or cluster all rows in another folder"
        raise InputError(f"{must}; got {run.workdir}, {how}")
    return ClusterOptions.of(run.config)


def _compare_rows(run: Run, values: NDArray, table: Table | None) -> Comparison:
    """Compares rows `[m, d]` of a table with a run.

    A row is known if the run has a row of the same id. If the rows of the run are numbered, the
    vector alone decides, and ids of the table are ignored. Any other row is new.

    Args:
        run: before.
        values: the rows; the features of the run if `table` is None.
        table: the table, for its ids. None: the rows are those of the run.

    Raises:
        InputError: a row is not finite, the number of columns differs from that of the run, or the
            rows of the run have ids and those of the table have none.
        TypeError: see `core.arrays.numeric`.
    """
    if table is None:
        assert run.facts is not None
        return match.compare(run, run.names, run.facts)
    with checks.named({"X must": "--features must"}):
        run.checked(values)
    if run.names is not None and table.names is None:
        raise InputError(
            f"--features must name its rows, as {run.workdir} does; got none: say by --ids which "
            "column or array has the ids, or for .npy which other file"
        )
    names = None if run.names is None else table.names
    return match.compare(run, names, embeddings.digests(values))


def _differs(before: Run, after: Run) -> bool:
    """Returns whether a photo or row is new, gone, renamed or changed."""
    is_same = np.array_equal(after.columns["row"], before.columns["row"])
    return after.names != before.names or not is_same


def _unchanged(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Returns the message and values of an update without a change of photos or rows.

    A new place of the photos, what is away, another order of rows, and facts about files into which
    something was written are stored in the state, whose number stays. Outputs that a killed process
    has left behind are written again.

    Args:
        before: the newest written state.
        run: the same state, perhaps with another `config`, `facts`, `away`, `skipped` and order.
        with_report: whether the page is among the outputs that are written again.
    """
    assert run.facts is not None
    assert before.facts is not None
    is_of_now = (run.config, run.away) == (before.config, before.away)
    is_of_now &= np.array_equal(run.facts, before.facts)
    is_of_now &= run.names == before.names
    if not is_of_now:
        page.publish(run, with_report=(run.workdir / workdirs.REPORT).exists())
        changes.write_last(run)
    elif not page.is_published(run, with_report=with_report):
        # A kill came between the state and its outputs, or outputs were deleted.
        changes.write_last(run)
        page.repaired(run, with_report=with_report)
    has = f"{run.workdir} has all {counted(len(run.columns), run.words[0])} already"
    lines = [*changes.missing_folders(run), f"Nothing has happened: {has}, and none is gone."]
    if run.config != before.config:
        lines.append(f"They are in {image_files.shown(run.config['data']['dir'])} from now on.")
    text = "\n".join(lines)
    return text, changes.values(dataclasses.replace(run, events=(), changes={}), refit=False)


def write_next(before: Run, run: Run, *, with_report: bool) -> Run:
    """Returns the next state of a run, after writing it with its table of changes and its outputs.

    Args:
        before: the newest written state.
        run: the next one, not yet numbered.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    run = dataclasses.replace(run, number=before.number + 1, made_by="update")
    table = changes.table(before, run)
    run = dataclasses.replace(run, changes=collections.Counter(table["change"]))
    return page.publish(run, with_report=with_report, changed=table)
