"""The next state of a finished run by an update.

An update compares the photos or rows that exist now with those of the run, by contents and names,
clusters all of them, where clusters keep their numbers (`clustering.numbering`), and writes the
next state.
"""

import collections
import dataclasses
import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import numbering, tree_fit
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.data import images
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.tables import Table
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.report import duplicates
from cluster_jax.runs import changes, finish, page, photos, provenance, sources
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.changes import Ended
from cluster_jax.runs.run import COLUMNS, DEPARTED, Run
from cluster_jax.training import build
from cluster_jax.training.config import PhotosConfig, parse_config


class _Comparison(NamedTuple):
    """The m photos or rows that exist now, compared with the n rows of a run.

    Attributes:
        run: the run; rows that had left and have returned are its last ones, with their
            corrections. Its names are, of photos, absolute paths.
        known: int64 `[n]`, for each row of `run` its index among the m present ones, -1 if it is
            gone.
        new: int64, ascending, indices among the m present ones that `run` does not have.
        names: ids or absolute paths of the m present ones; None: they are numbered.
        facts: `[m]`, facts about the present ones, see `Run.facts`.
    """

    run: Run
    known: NDArray
    new: NDArray
    names: tuple[str, ...] | None
    facts: NDArray

    @property
    def _facts_now(self) -> NDArray:
        """Facts about the rows of `run`, `[n]`: of the present ones those of now.

        The same photo may be in another file, in which a program has written a title.
        """
        assert self.run.facts is not None
        facts = self.run.facts.copy()
        is_there = self.known >= 0
        facts[is_there] = self.facts[self.known[is_there]]
        return facts

    def joined(self, is_kept: NDArray) -> tuple[Run, NDArray]:
        """Returns the run with the rows that stay, and after them all new ones.

        The new rows become the last ones of the store of features, which still lacks them, and have
        no cluster yet. All else but names, facts and decisions about rows that leave is as before.

        Args:
            is_kept: bool `[n]`, the rows of `run` that stay, also where they are not present.

        Returns:
            The run, and the indices of the rows that stay, int64, ascending: an index from the size
            of the run before the update on is that of a row that has returned.
        """
        run = self.run
        old = np.flatnonzero(is_kept)
        assert run.facts is not None
        assert run.store is not None
        names = None
        if self.names is not None and run.names is not None:
            places = zip(old.tolist(), self.known[old].tolist(), strict=True)
            known = (run.names[row] if i < 0 else self.names[i] for row, i in places)
            names = (*known, *(self.names[i] for i in self.new.tolist()))
        added = np.zeros(len(self.new), COLUMNS)
        added["row"] = len(run.store) + np.arange(len(added))
        added["since"] = run.updates + 1
        after = dataclasses.replace(
            run,
            names=names,
            columns=np.concatenate([run.columns[old], added]),
            facts=np.concatenate([self._facts_now[old], self.facts[self.new]]),
            gone=np.concatenate([run.gone, _kept_decisions(run, old)]),
        )
        return after, old


def _compare(run: Run, names: Sequence[str] | None, facts: NDArray) -> _Comparison:
    """Compares the present photos or rows with a run, by contents and names.

    Equal content under another name is the same photo; of embeddings it is another row.

    Args:
        run: the run before the update, with facts; its names are, of photos, absolute paths.
        names: the names of the m present ones, as those of `run`; None: they are numbered.
        facts: `[m]` of `data.images.FACTS`, facts about the present ones.
    """
    names = None if names is None else tuple(names)
    assert run.facts is not None
    known = _matched(_keys(run.facts, run.names), _keys(facts, names))
    if run.is_of_images:
        left = np.flatnonzero(known < 0)
        free = np.setdiff1d(np.arange(len(facts)), known)
        place = _matched(_keys(run.facts[left]), _keys(facts[free]))
        known[left[place >= 0]] = free[place[place >= 0]]
    new = np.setdiff1d(np.arange(len(facts)), known)
    of_new = None if names is None else [names[i] for i in new.tolist()]
    gone = [digest.tobytes() for digest in run.gone["digest"]]
    place = _matched(gone, _digests_of_departed(run, facts[new], of_new))
    back = new[place[place >= 0]]
    columns = run.gone[place >= 0][list(COLUMNS.names or ())].astype(COLUMNS)
    every = None
    if run.names is not None and names is not None:
        every = (*run.names, *(names[i] for i in back.tolist()))
    run = dataclasses.replace(
        run,
        columns=np.concatenate([run.columns, columns]),
        facts=np.concatenate([run.facts, facts[back]]),
        names=every,
        gone=run.gone[place < 0],
    )
    return _Comparison(run, np.concatenate([known, back]), np.setdiff1d(new, back), names, facts)


def _keys(facts: NDArray, names: Sequence[str] | None = None) -> list[tuple[bytes, str]]:
    """Returns what `_matched` compares: contents, and names, if there are any."""
    contents = (digest.tobytes() for digest in facts["digest"])
    if names is None:
        names = [""] * len(facts)
    return list(zip(contents, names, strict=True))


def _matched(known: Sequence[Any], now: Sequence[Any]) -> NDArray:
    """Returns for each known key the index of an equal key in `now`, int64 `[n]`, -1 without one.

    Equal keys are paired in order: the first known one gets the first of `now`, the second the
    second, and so on. No index is used twice.
    """
    comparison = collections.defaultdict[Any, list[int]](list)
    for i in reversed(range(len(now))):
        comparison[now[i]].append(i)
    return np.array([comparison[key].pop() if comparison[key] else -1 for key in known], np.int64)


def _confirm(run: Run, gone: int, confirmed: bool, do: str) -> None:
    """Raises an `InputError` if more than half of a run would leave and nobody has confirmed it.

    Args:
        run: the run before the update.
        gone: number of its rows that would leave.
        confirmed: whether somebody has confirmed that so many leave.
        do: advice for the message: what to do if they are not meant to leave.
    """
    if 2 * gone > len(run.columns) and not confirmed:
        raise InputError(
            f"{gone:,} of the {counted(len(run.columns), run.words[0])} of {run.workdir} are gone "
            f"or have changed: {do}, or confirm that they leave, with what was decided about them, "
            "by --yes (in Python confirmed=True)"
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
        after = dataclasses.replace(after, skipped=(*inputs.dataset.skipped, *skipped))
        after, dataset = _photos_now(after, comparison, old, inputs)
        if not (refit or _differs(before, after)):
            return _unchanged(before, after, with_report=with_report)
        if not len(after.columns):
            raise InputError(f"PHOTOS must have an image that can be read; got none of {workdir}")
        run, clustering = _updated(before, after, old, made, refit=refit)
        inputs = inputs._replace(dataset=dataset)
        seconds = time.perf_counter() - started
        run = _scored_photos(run, inputs, clustering, seconds, _groups_before(before, run))
        stores.append(workdir, made)
        return _write_next_state(before, run, with_report=with_report, refit=refit)


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
) -> tuple[build.Inputs[PhotosConfig], _Comparison, NDArray]:
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
    comparison = _compare(run, now.paths, now.facts)
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
    comparison: _Comparison, inputs: build.Inputs[PhotosConfig]
) -> tuple[_Comparison, NDArray, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new.

    Returns:
        The comparison, without new photos that cannot be read; the features of its new photos,
        float `[l, d]`; and (path, reason) of each new file that cannot be read.
    """
    assert comparison.run.store is not None
    if not len(comparison.new):
        return comparison, comparison.run.store[:0], ()
    fresh = images.select(inputs.dataset, comparison.new)
    made = photos.embed(inputs._replace(dataset=fresh), comparison.run.encoder())
    rows = readable_rows({**made, "index": comparison.new})
    first = len(comparison.run.store)
    pictures = photos.pictures_of(made, first)
    if pictures is not None and len(pictures.rows):
        stores.write_pictures(comparison.run.workdir, first, pictures)
    comparison = comparison._replace(new=rows["index"])
    return comparison, rows["backbone"], readable_images(fresh, made).skipped


def _photos_now(
    after: Run, comparison: _Comparison, old: NDArray, inputs: build.Inputs[PhotosConfig]
) -> tuple[Run, Dataset]:
    """Returns the updated run with the new config, and its photos as a data set in the same order.

    Names are relative to the folder of the new config.

    Args:
        after: the run with the photos of now, whose names are absolute paths.
        comparison: see `_compare_photos`, without unreadable photos.
        old: int `[l]`, indices in `comparison.run` of the photos that stay.
        inputs: the photos that are there.
    """
    root = image_files.root(str(inputs.config.data.dir))
    names = tuple(os.path.relpath(path, root) for path in after.names or ())
    before = comparison.run
    known = np.full(len(names), -1, np.int32)
    if before.truth is not None:  # Those of photos that have returned are not known.
        stayed = np.flatnonzero(old < len(before.truth))
        known[stayed] = before.truth[old[stayed]]
    truth, label_names = sources.labels_of(inputs.config, names, known, before.label_names or ())
    after = dataclasses.replace(after, names=names, config=inputs.config.values)
    after = dataclasses.replace(after, truth=truth, label_names=label_names)
    dataset = photos.of_run(after)._replace(labels=after.labels_for_scores, label_names=label_names)
    return after, dataset._replace(ignored=inputs.dataset.ignored)


def _scored_photos(
    run: Run,
    inputs: build.Inputs[PhotosConfig],
    clustering: Clustering,
    seconds: float,
    groups: NDArray,
) -> Run:
    """Returns an updated run of photos with results and duplicates.

    Suggested names of clusters that had some before stay.

    Args:
        run: the updated run.
        inputs: its photos.
        clustering: a new clustering of its rows, whose clusters are replaced by those of `run`.
        seconds: seconds that the update took so far.
        groups: see `_groups_before`.
    """
    assert run.store is not None
    named = run.results.get("suggested_names") or {}
    dataset = inputs.dataset
    embedding = {"backbone": run.store[run.columns["row"]]}
    features = {workdirs.TRAIN_EMBEDDING: embedding}
    clustering = _own_clusters(run, clustering)
    started = time.perf_counter()
    repeated = finish.find_duplicates(dataset, embedding["backbone"], groups)
    found = finish.Found(inputs, features, dataset, embedding, clustering, repeated, started)
    run = finish.complete(found, run, seconds=seconds)
    suggested = run.results["suggested_names"] or {}
    # Those of a known group stay: with each new photo, others would come first.
    suggested = {str(key): named.get(str(key), words) for key, words in suggested.items()}
    return dataclasses.replace(run, results={**run.results, "suggested_names": suggested or None})


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
) -> Ended:
    """Updates a run to the rows that exist now; returns the message and values for `--json`.

    A row is known if its id and its vector are those of a row of the run; numbered rows are known
    by their vectors alone. Rows of the run that the table lacks leave. A row whose vector has
    changed is a new row under the old id. Scores that need labels are None after an update. If
    there is no change, no state is added.

    Args:
        workdir: folder of a finished run of embeddings in memory, with the clusters of the tree.
        table: the rows; None: those of the run.
        add: whether the rows of the run that the table lacks stay.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the rows may leave.
        with_report: whether the page is written; if not, and the run changes, an existing page is
            removed.

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
        _confirm(before, int((~is_kept).sum()), confirmed, do)
        after, old = comparison.joined(is_kept)
        if not (refit or _differs(before, after)):
            return _unchanged(before, before, with_report=with_report)
        made = embeddings.rows_of(values[comparison.new].astype(x.dtype), options)
        run, clustering = _updated(before, after, old, made, refit=refit)
        run = _scored_rows(run, clustering, options)
        stores.append(workdir, made)
        return _write_next_state(before, run, with_report=with_report, refit=refit)


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


def _compare_rows(run: Run, values: NDArray, table: Table | None) -> _Comparison:
    """Compares rows `[m, d]` of a table with a run.

    A row is known if the run has a row of the same id and the same vector. If the rows of the run
    are numbered, the vector alone decides, and ids of the table are ignored. Any other row is new.

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
        return _compare(run, run.names, run.facts)
    with checks.named({"X must": "--features must"}):
        run.checked(values)
    if run.names is not None and table.names is None:
        raise InputError(
            f"--features must name its rows, as {run.workdir} does; got none: say by --ids which "
            "column or array has the ids, or for .npy which other file"
        )
    names = None if run.names is None else table.names
    return _compare(run, names, embeddings.digests(values))


def _scored_rows(run: Run, clustering: Clustering, options: ClusterOptions) -> Run:
    """Returns an updated run of embeddings with results, and without true labels.

    Args:
        run: the updated run.
        clustering: a new clustering of its rows, whose clusters are replaced by those of `run`.
        options: how the rows were clustered.
    """
    x = run.all_features
    results = dict(run.results)
    clustering = _own_clusters(run, clustering)
    metric = str(options.metric)
    clustering = clusters.scored(x, clustering, None, metric, run.config["seed"])
    results["metrics"] = {options.method: clustering.metrics}
    results["provenance"] = {
        **{**results["provenance"], "rows": len(x), "labels_used_for": []},
        **provenance.environment(),
    }
    return dataclasses.replace(run, results=io.plain(results), truth=None)


def _differs(before: Run, after: Run) -> bool:
    """Returns whether a photo or row is new, gone, renamed or changed."""
    is_same = np.array_equal(after.columns["row"], before.columns["row"])
    return after.names != before.names or not is_same


def _unchanged(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Returns the message and values of an update without a change of photos or rows.

    A new place of the photos, what is away, and facts about files into which something was written
    are stored in the state, whose number stays. Outputs that a killed process has left behind are
    written again.

    Args:
        before: the newest written state.
        run: the same state, perhaps with another `config`, `facts`, `away` and `skipped`.
        with_report: whether the page is among the outputs that are written again.
    """
    assert run.facts is not None
    assert before.facts is not None
    is_of_now = (run.config, run.away) == (before.config, before.away)
    is_of_now &= np.array_equal(run.facts, before.facts)
    if not is_of_now:
        page.publish(run, with_report=(run.workdir / workdirs.REPORT).exists())
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


def _updated(
    before: Run, after: Run, old: NDArray, made: NDArray, *, refit: bool
) -> tuple[Run, Clustering]:
    """Returns the updated run, whose clusters keep their numbers, and a new clustering of its rows.

    Args:
        before: the newest written state.
        after: the run with the rows of now, see `_Comparison.joined`, which also returns `old`.
        old: int `[l]`, indices of the rows that stay.
        made: float `[m, d]`, features of the m new rows, in their order in `after`.
        refit: whether all rows are clustered anew, and matched to the known clusters.
    """
    n_old = len(old)
    columns = after.columns
    label, since, apart = (columns[name][:n_old].copy() for name in ("label", "since", "apart"))
    living = numbering.State(label, since, apart, after.next_label, after.updates)
    is_fixed = columns["decided"] | np.isin(columns["label"], list(after.held))
    is_fixed[n_old:] = False
    assert before.store is not None
    after = dataclasses.replace(
        after,
        store=np.concatenate([before.store, made]),
        updates=after.updates + 1,
        points=None,
        probabilities=None,
    )
    x = after.all_features
    clustering = clusters.find(x, after.options, seed=after.config["seed"])
    assert clustering.tree is not None
    state = tree_fit.numbered(living, x, clustering.tree, is_fixed[:n_old])
    told = state.events
    if refit:
        state = numbering.refit(state, clustering.tree.labels, is_fixed)
        told += state.events
    columns["label"] = state.ids
    columns["apart"] = state.apart
    columns["found"] = np.where(columns["decided"], columns["found"], state.ids)
    born = {event.id for event in told if event.kind == numbering.EMERGED}
    had = before.labels
    stayed = had[old[old < len(had)]]
    placer = finish.placer_of(clustering, x, after.options, of_images=after.is_of_images)
    assert isinstance(placer, ByTree)
    after = dataclasses.replace(
        after,
        next_label=state.next_id,
        events=numbering.events(stayed, state.ids, born, had=had),
        placer=dataclasses.replace(placer, labels=state.ids.copy()),
        tree=clustering.tree.linkage,
        probabilities=clustering.tree.membership.probabilities,
    )
    return finish.described(after), clustering


def _kept_decisions(run: Run, kept: NDArray) -> NDArray:
    """Returns what a person has decided about rows that leave, `[g]` of `DEPARTED`.

    They are the rows that a person has decided about, and those of a cluster of `Run.held`.

    Args:
        run: the run with all rows of which some leave.
        kept: int `[l]`, indices of the rows that stay.
    """
    columns = run.columns
    is_said = columns["decided"].copy()
    is_said |= np.isin(columns["label"], list(run.held))
    is_said[kept] = False
    left = np.zeros(is_said.sum(), DEPARTED)
    left[list(COLUMNS.names or ())] = columns[is_said]
    assert run.facts is not None
    names = None if run.names is None else [run.names[i] for i in np.flatnonzero(is_said).tolist()]
    digests = b"".join(_digests_of_departed(run, run.facts[is_said], names))
    left["digest"] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    return left


def _digests_of_departed(run: Run, facts: NDArray, names: Sequence[str] | None) -> list[bytes]:
    """Returns digests by which images or rows are known again when they return.

    They are of the content, and of rows with ids of content and id.
    """
    contents = [digest.tobytes() for digest in facts["digest"]]
    if run.is_of_images or names is None:
        return contents
    ids = (name.encode("utf-8", "surrogateescape") for name in names)
    return [hashlib.sha256(c + key).digest() for c, key in zip(contents, ids, strict=True)]


def _own_clusters(run: Run, clustering: Clustering) -> Clustering:
    """Returns a clustering of the rows of a run, with the clusters of the run as its own."""
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


def _write_next_state(before: Run, run: Run, *, with_report: bool, refit: bool) -> Ended:
    """Writes the next state of a run, the table of changes and the outputs.

    Args:
        before: the newest written state.
        run: the updated run, not yet numbered.
        with_report: whether the page is written; if not, an existing page is removed.
        refit: whether all rows were clustered anew, for the message.

    Returns:
        The message, and the values for `--json`.
    """
    if run.is_corrected:
        run = finish.scored(run)
    run = dataclasses.replace(run, number=before.number + 1, made_by="update", page=None)
    table = changes.table(before, run)
    run = dataclasses.replace(run, changes=collections.Counter(table["change"]))
    page.publish(run, with_report=with_report, changed=table)
    return changes.words(run, refit=refit), changes.values(run, refit=refit)
