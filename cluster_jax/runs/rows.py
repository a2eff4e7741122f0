"""A run of embeddings: rows of features of the user's own are clustered. Nothing is embedded."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering import custom
from cluster_jax.core import checks, devices, io
from cluster_jax.core.arrays import Rows, blocks, normalize_rows
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import tables
from cluster_jax.data.arrays import Shards
from cluster_jax.data.images import FACTS
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions, resolve
from cluster_jax.runs import claims, match, measured, provenance
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.match import Comparison
from cluster_jax.runs.next_state import Now, Numbers, find, next_state, with_rows
from cluster_jax.runs.run import Run

SAMPLE = 10_000  # rows that are described, of those that are read in blocks
KMEANS = ("kmeans", "none")  # method and reduction that several processes compute together


def first(
    features: tables.Table,
    labels: tables.Labels | None,
    options: ClusterOptions,
    files: Mapping[str, str | None],
    workdir: epath.PathLike | None,
    seed: int,
) -> tuple[Run, Now]:
    """Returns an empty run, and its rows of now; nothing is written.

    Args:
        features: the features of all rows, and their ids. Of features that are read in blocks, a
            random sample of at most 10,000 rows is in the report and in the silhouette.
        labels: a label for each row, to score the clusters, or None.
        options: how the rows are clustered; a metric or reduction that is None is chosen, see
            `options.resolve`.
        files: the paths of the files, by "features" and "labels"; None for no file of labels.
        workdir: the folder; None: `clusters/NAME-HASH`, with a hash of options, content and seed.
        seed: random seed.

    Raises:
        InputError: the features, the labels or an option cannot be used, or there are several
            processes, and the method is not k-means without a reduction.
    """
    x, shown, options = _prepared(features, options, seed)
    config = {
        **dataclasses.asdict(options),
        "seed": seed,
        "data": fingerprint(features, labels),
        **custom.file_hash(options.method, CLUSTERINGS),
        "version": __version__,
    }
    if workdir is None:
        stem = pathlib.Path(str(files["features"])).stem or "features"
        workdir = claims.default_path("clusters", stem, config)
    store = rows_of(x, options) if shown is None else None
    before = Run("rows", epath.Path(checks.local(workdir)).expanduser(), io.plain(config), {})
    before = dataclasses.replace(before, store=None if store is None else store[:0])
    after = dataclasses.replace(
        with_rows(before, len(features.values)),
        source=_source(files, features),
        store=store,
        names=None if features.names is None else tuple(features.names),
        facts=digests(x) if shown is None else None,
        truth=None if labels is None else labels.codes,
        label_names=None if labels is None else tuple(labels.names),
        shown=shown,
    )
    return before, Now(after, np.arange(0), in_blocks=None if shown is None else features.values)


def clustered(before: Run, now: Now, numbers: Numbers, started: float) -> Run:
    """Returns the next state of a run of embeddings with its results.

    Args:
        before: the state before, perhaps an empty one: a first run shows its steps.
        now: the n rows of now.
        numbers: how the clusters get their numbers.
        started: what `time.perf_counter` returned before.
    """
    progress = (lambda text: None) if before.number else devices.say
    values = now.after.features if now.in_blocks is None else now.in_blocks
    clustering = find(now.after, values, numbers, progress)
    run = next_state(before, now, values, numbers, clustering)
    progress("scoring ...")
    described = None if now.in_blocks is None else now.in_blocks[run.rows]
    results = {"metrics": {}, "provenance": _provenance(run, values)}
    if not before.number:
        results["seconds"] = {"cluster": time.perf_counter() - started}
    return measured.measured(dataclasses.replace(run, results=results), described)


def stored(before: Run, run: Run) -> Run:
    """Returns the next state of a run, after writing its new rows into the store.

    In a first run `config.json` comes before them: it tells of which run the other files are, if
    the process is killed.

    Args:
        before: the state before, perhaps an empty one.
        run: the next state, not yet written.
    """
    if not before.number:
        devices.say("writing ...")
        io.write_json(run.workdir / workdirs.CONFIG, run.config)
    if run.store is None or before.store is None:  # They are read in blocks.
        return run
    first = len(before.store)
    if not len(new := run.store[first:]):
        return run
    files = stores.write(run.workdir, first, new)
    return dataclasses.replace(run, files={**run.files, **files})


def _prepared(
    features: tables.Table, options: ClusterOptions, seed: int
) -> tuple[NDArray, NDArray | None, ClusterOptions]:
    """Returns the described rows, their indices (None: all rows), and the completed options.

    Rows that are read in blocks are described by a random sample.

    Raises:
        InputError: the features or an option cannot be used, the method needs all rows in memory,
            or several processes cannot compute it together.
    """
    if features.described:
        devices.say(features.described)
    x = features.values
    n = len(x)
    shown = None
    if isinstance(x, Shards):
        devices.say(f"reading {counted(n, 'row')} of {counted(x.shape[1], 'column')} ...")
        shown = np.sort(np.random.default_rng(seed).choice(n, min(n, SAMPLE), replace=False))
        x = x[shown]
    options = resolve(x, options, n)
    is_in_blocks = options.method == "tree" or (options.method, options.reduce) == KMEANS
    if shown is not None and not is_in_blocks:
        must = "method must be 'tree', or 'kmeans' with reduce='none', for rows read in blocks"
        raise InputError(f"{must}; got {options.method!r} with reduce={options.reduce!r}")
    zeros = int((~np.asarray(x).any(axis=1)).sum())
    if options.metric == "cosine" and zeros and (options.method != "tree" or shown is not None):
        said = f"{counted(zeros, 'row is', 'rows are')} zeros alone, which have no direction"
        devices.say(f"{said}: their cluster means nothing")
    if jax.distributed.is_initialized() and (options.method, options.reduce) != KMEANS:
        raise InputError(
            f"method must be kmeans, and reduce none, in several processes; got {options.method} "
            f"and {options.reduce}: run the command in one process"
        )
    return x, shown, options


def rows_of(x: NDArray, options: ClusterOptions) -> NDArray:
    """Returns rows `[n, d]` as the run stores them: unit rows if the metric is cosine."""
    if options.metric == "cosine":
        return normalize_rows(x)
    return np.asarray(x)


def digests(x: NDArray) -> NDArray:
    """Hashes (SHA-256) each row `[n, d]` as float64; returns `[n]` of `data.images.FACTS`.

    All facts but the digest are zero or empty.
    """
    facts = np.zeros(len(x), FACTS)
    for rows in blocks(*x.shape):
        for i, row in enumerate(np.ascontiguousarray(x[rows], np.float64), rows.start):
            facts["digest"][i] = np.frombuffer(hashlib.sha256(row.tobytes()).digest(), np.uint8)
    return facts


def read_rows(
    run: Run, path: str, array: str | None = None, ids: str | None = None
) -> tables.Table:
    """Reads new rows for a run of embeddings, see `tables.read_rows`.

    Args:
        run: the run. If it is of a CSV or Parquet file and the new file is one, too, its columns of
            features and ids are read, and of an `.npz` its arrays.
        path: path of the file or folder.
        array: column or array of the features, in place of those of the run.
        ids: column, array or file of the ids, in place of those of the run.

    Raises:
        InputError: the file cannot be used.
    """
    stored = run.source
    columns = stored["feature_columns"]
    earlier = tables.Table(None, None, stored["ids"], columns, array=stored["array"])
    if path.lower().endswith(tables.SUFFIXES) and columns is not None and ids is None:
        with checks.named({"--ids must": "--ids (by default that of the run) must"}):
            return tables.read_rows(path, array, stored["ids"], earlier)
    return tables.read_rows(path, array, ids, earlier)


def now(run: Run, table: tables.Table, confirmed: bool, *, add: bool) -> Now:
    """Returns the rows of the next state of a run, in the order of the table.

    Args:
        run: the run before the update.
        table: the rows.
        confirmed: whether somebody has confirmed that more than half of the rows may leave or
            change.
        add: whether the rows of the run that the table lacks stay; the order is that of the run
            then, and after it new rows.

    Raises:
        InputError: see `_compare` and `match.check_leaving`.
    """
    x = run.features
    values = table.values[:]
    comparison = _compare(run, values, table)
    is_kept = comparison.known >= 0
    if add:
        is_kept[:] = True
    do = "give the file that has all rows, or --add for new ones"
    # Rows that return do not count.
    is_changed = (is_kept & comparison.changed)[: len(run.columns)]
    gone, changed = int((~is_kept).sum()), int(is_changed.sum())
    match.check_leaving(run, gone, changed, confirmed, do)
    made = rows_of(values[comparison.to_embed].astype(x.dtype), run.options)
    found = comparison.joined(is_kept, made)
    if add:
        return found
    places = np.concatenate([comparison.known[found.old], comparison.new])
    return found._replace(order=np.argsort(places))


def _compare(run: Run, values: NDArray, table: tables.Table) -> Comparison:
    """Compares rows `[m, d]` of a table with a run.

    A row is known if the run has a row of the same id. If the rows of the run are numbered, the
    vector alone decides, and ids of the table are ignored. Any other row is new.

    Args:
        run: before.
        values: the rows.
        table: the table, for its ids.

    Raises:
        InputError: a row is not finite, the number of columns differs from that of the run, or the
            rows of the run have ids and those of the table have none.
        TypeError: see `core.arrays.numeric`.
    """
    with checks.named({"X must": "--features must"}):
        run.checked(values)
    if run.names is not None and table.names is None:
        raise InputError(
            f"--features must name its rows, as {run.workdir} does; got none: say by --ids which "
            "column or array has the ids, or for .npy which other file"
        )
    names = None if run.names is None else table.names
    return match.compare(run, names, digests(values))


def fingerprint(features: tables.Table, labels: tables.Labels | None) -> dict[str, str | None]:
    """Returns SHA-256 hashes, by which a later call recognizes the same features and labels.

    Returns:
        "features", the hash of the features, whose dtype has no effect, and of the ids; "labels",
        that of the labels or None. Rows that are read in blocks have another hash.
    """
    values, names, *_ = features
    if isinstance(values, Shards):
        parts = (rows for _, rows in values.blocks())
    else:
        parts = (values[rows] for rows in blocks(*values.shape))
    hashes = [json.dumps([values.shape, names]).encode()]
    for part in parts:
        # As in `digests`, by which an update knows rows again.
        part = np.ascontiguousarray(part, np.float64)
        hashes.append(workdirs.fingerprint(part.data).encode())
    hashed = workdirs.fingerprint(*hashes)
    label_hash = None
    if labels is not None:
        label_names = json.dumps(labels.names).encode()
        label_hash = workdirs.fingerprint(labels.codes.tobytes(), label_names)
    return {"features": hashed, "labels": label_hash}


def _source(files: Mapping[str, str | None], features: tables.Table) -> dict[str, Any]:
    """Returns what rows were read from, see `Run.source`."""
    return {
        **files,
        "ids": features.ids,
        "feature_columns": features.columns,
        "columns_left_out": features.left_out,
        "array": features.array,
        "columns": features.values.shape[1],
    }


def _provenance(run: Run, values: Rows) -> dict[str, Any]:
    """Returns the entry "provenance" of the results, without the origin of the number of clusters.

    Args:
        run: the run.
        values: its rows `[n, d]`, in memory or not.
    """
    rows_used = {}
    if isinstance(values, Shards):
        of_all = {"all": len(values), "files": len(values.files), "in_report": len(run.rows)}
        rows_used = {"rows_used": of_all}
    return {
        **run.source,
        "rows": values.shape[0],
        **rows_used,
        "labels_used_for": [] if run.truth is None else ["scoring"],
        **provenance.environment(),
    }
