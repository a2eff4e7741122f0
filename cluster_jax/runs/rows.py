"""A run of embeddings: rows of features of the user's own are clustered. Nothing is embedded."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering import custom
from cluster_jax.clustering.placing import voters
from cluster_jax.core import checks, io
from cluster_jax.core.arrays import blocks, normalize_rows
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import tables
from cluster_jax.data.arrays import Shards
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions, resolve
from cluster_jax.runs import large
from cluster_jax.runs import workdir as workdirs

if TYPE_CHECKING:
    from cluster_jax.runs.run import Run  # It loads JAX, without which bad input is told.


def cluster(
    features: tables.Table,
    labels: tables.Labels | None,
    options: ClusterOptions,
    files: Mapping[str, str | None],
    workdir: epath.PathLike | None,
    *,
    with_report: bool,
) -> tuple[epath.Path, dict[str, Any]]:
    """Clusters features and writes the results to a folder; a finished run is not run again.

    Args:
        features: features of all rows, and their ids; those that are read in blocks are shown by a
            sample.
        labels: label of each row, to score the clusters against, or None.
        options: how they are clustered.
        files: paths of `features` and `labels`.
        workdir: the folder; None: `clusters/NAME-HASH` of file, options and content.
        with_report: whether to write `report.html`.

    Returns:
        The folder, and the results, which of several processes the first writes.

    Raises:
        InputError: features, labels or an option cannot be used, in several processes all but
            k-means without a reduction, or the folder holds something else; nothing was written.
    """
    from cluster_jax.core import devices
    from cluster_jax.runs import finish, page
    from cluster_jax.runs import run as records
    from cluster_jax.runs import store as stores

    shown, options = _prepared(features, options)
    config = {
        **dataclasses.asdict(options),
        "data": fingerprint(features, labels),
        **custom.described(options.method, CLUSTERINGS),
        "version": __version__,
    }
    if workdir is None:
        stem = pathlib.Path(str(files["features"])).stem
        workdir = workdirs.default_path("clusters", stem, config)
    workdir = epath.Path(checks.local(workdir)).expanduser()
    _check_same_rows(workdir, files["features"], config["data"]["features"])
    with checks.named({"data.labels": "the SHA-256 of --labels"}):
        previous = workdirs.claim(workdir, config)
    io.check_writable(workdir)
    if workdirs.agree(previous is not None, workdir) and previous is not None:
        devices.say(f"{workdir} is finished; choose another folder to run it again")
        if devices.is_first():
            page.repaired(records.read(workdir), with_report=with_report)
        return workdir, previous
    started = time.perf_counter()
    result, all_rows = _cluster(features, labels, options)
    results = io.plain(
        {
            "provenance": _provenance(files, features, labels, options, all_rows),
            "metrics": {options.method: result.metrics},
            "seconds": {"cluster": time.perf_counter() - started},
        }
    )
    if devices.is_first():
        run = _as_run(features, labels, shown, options, result, all_rows, workdir)
        about = {"config": io.plain(config), "results": results}
        run = dataclasses.replace(run, number=1, **about)
        if with_report and run.points is None:
            run = finish.with_map(run, shown)
        devices.say("writing ...")
        workdir.mkdir(parents=True, exist_ok=True)
        io.write_json(workdir / workdirs.CONFIG, run.config)
        if run.store is not None:
            (workdir / stores.FEATURES).unlink(missing_ok=True)  # Left by a kill.
            stores.append(workdir, run.store)
        page.publish(run, with_report=with_report)
    return workdir, results


def _prepared(features: tables.Table, options: ClusterOptions) -> tuple[NDArray, ClusterOptions]:
    """Returns the rows that are shown, and the options with their defaults for these features."""
    import jax

    from cluster_jax.core import devices

    if features.described:
        devices.say(features.described)
    values, is_large = features.values, isinstance(features.values, Shards)
    if isinstance(values, Shards):
        columns = counted(values.shape[1], "column")
        devices.say(f"reading {counted(len(values), 'row')} of {columns} ...")
        options = large.resolve_large(values, options)
        values = values[large.sample_rows(values, options.seed)]
    else:
        options = resolve(values, options)
    zeros = int((~np.asarray(values).any(axis=1)).sum())
    if options.metric == "cosine" and zeros and (options.method != "tree" or is_large):
        said = f"{counted(zeros, 'row is', 'rows are')} zeros alone, which have no direction"
        devices.say(f"{said}: their cluster means nothing")
    if jax.distributed.is_initialized() and (options.method, options.reduce) != ("kmeans", "none"):
        raise InputError(
            f"method must be kmeans, and reduce none, in several processes; got {options.method} "
            f"and {options.reduce}: run the command in one process"
        )
    return values, options


def _as_run(
    features: tables.Table,
    labels: tables.Labels | None,
    x: NDArray,
    options: ClusterOptions,
    result: Clustering,
    all_rows: large.LargeClustering | None,
    workdir: epath.Path,
) -> "Run":
    """Returns the first state of a run of embeddings, without its config and results.

    Args:
        features: of all rows, and their ids.
        labels: of the rows, or None.
        x: the features, or those of a sample.
        options: how they were clustered.
        result: their clusters.
        all_rows: those of all rows, if `result` is of a sample.
        workdir: folder of the run.
    """
    from cluster_jax.runs import finish

    is_whole, tree = all_rows is None, result.tree
    known = voters(x, str(options.metric)) if tree is None else tree.clusterer_.voters
    return finish.first_state(
        result,
        result.cluster_labels if all_rows is None else all_rows.labels,
        workdir=workdir,
        config={},
        images={},
        store=rows_of(x, options) if is_whole else None,
        names=None if features.names is None else tuple(features.names),
        linkage=result.linkage(x),
        placer=clusters.clusterer(
            result,
            known,
            method=options.method,
            reduce=options.reduce,
            n_neighbors=options.n_neighbors,
        ),
        facts=digests(x) if is_whole else None,
        truth=None if labels is None else labels.codes,
        label_names=None if labels is None else tuple(labels.names),
        shown=None if all_rows is None else all_rows.sample,
        shares=None if all_rows is None else all_rows.shares,
    )


def rows_of(x: NDArray, options: ClusterOptions) -> NDArray:
    """Returns rows `[n, d]` as they are compared: by cosine, unit rows."""
    return normalize_rows(x) if options.metric == "cosine" else np.asarray(x)


def digests(x: NDArray) -> NDArray:
    """Hashes (SHA-256) each row `[n, d]` as float32, as facts of which all else is unknown."""
    from cluster_jax.data.images import FACTS

    facts = np.zeros(len(x), FACTS)
    for rows in blocks(*x.shape):
        for i, row in enumerate(np.ascontiguousarray(x[rows], np.float32), rows.start):
            facts["digest"][i] = np.frombuffer(hashlib.sha256(row.tobytes()).digest(), np.uint8)
    return facts


def read_rows(
    run: "Run", path: str, array: str | None = None, ids: str | None = None
) -> tables.Table:
    """Reads new rows of a run, of the same columns and ids; see `tables.read_rows`.

    Raises:
        InputError: the file cannot be used.
    """
    stored = run.results["provenance"]
    columns, is_table = stored["feature_columns"], path.lower().endswith(tables.SUFFIXES)
    if is_table and columns is not None and array is None:
        of_run = {} if ids else {"--ids must": "--ids (by default that of the run) must"}
        with checks.named(of_run):
            return tables.read_rows(path, None, ids or stored["ids"], columns)
    return tables.read_rows(path, array, ids)


def _check_same_rows(workdir: epath.Path, file: str | None, hashed: str | None) -> None:
    """Raises an `InputError` if a folder has clusters of other rows than those of a file."""
    stored = None
    with contextlib.suppress(io.DamagedFile):  # Of which `workdir.claim` tells.
        stored = workdirs.about(workdir)
    if stored is not None and stored["config"].get("data", {}).get("features", hashed) != hashed:
        do = "`cluster-jax update` takes these in, or choose another folder"
        raise InputError(f"{workdir} must be of the rows of {file}; got clusters of others: {do}")


def fingerprint(features: tables.Table, labels: tables.Labels | None) -> dict[str, str | None]:
    """Hashes that identify the features, ids and labels of a result."""
    values, names, *_ = features
    if isinstance(values, Shards):
        parts = (workdirs.fingerprint(rows.data).encode() for _, rows in values.blocks())
        header = str(values.shape) if names is None else json.dumps([values.shape, names])
        hashed = workdirs.fingerprint(header.encode(), *parts)
    else:
        values = np.ascontiguousarray(values)
        header = json.dumps([values.shape, str(values.dtype), names])
        hashed = workdirs.fingerprint(values.data, header.encode())
    label_hash = None
    if labels is not None:
        label_names = json.dumps(labels.names).encode()
        label_hash = workdirs.fingerprint(labels.codes.tobytes(), label_names)
    return {"features": hashed, "labels": label_hash}


def _cluster(
    features: tables.Table, labels: tables.Labels | None, options: ClusterOptions
) -> tuple[Clustering, large.LargeClustering | None]:
    """Clusters features; of shards returns the clusters of the sample, and those of all rows."""
    from cluster_jax.core import devices

    codes, all_rows = None if labels is None else labels.codes, None
    if isinstance(features.values, Shards):
        all_rows = large.cluster_shards(features.values, codes, options, devices.say)
        result = all_rows.clustering
    else:
        result = clusters.cluster(features.values, codes, options, devices.say)
    if labels is not None:
        matching = result.metrics["matching"]
        result.metrics["matching"] = {c: labels.names[label] for c, label in matching.items()}
    return result, all_rows


def _provenance(
    files: Mapping[str, str | None],
    features: tables.Table,
    labels: tables.Labels | None,
    options: ClusterOptions,
    all_rows: large.LargeClustering | None,
) -> dict[str, Any]:
    from cluster_jax.runs import provenance

    unused = {"n_clusters"} if options.method == "kmeans" else {"n_clusters", "n_init", "max_iter"}
    if options.reduce == "none":
        unused |= {"n_components", "n_neighbors"}
    used = {k: v for k, v in dataclasses.asdict(options).items() if k not in unused}
    bandwidth = "found" if options.bandwidth == "auto" else "given"
    return {
        **files,
        "ids": features.ids,
        "feature_columns": features.columns,
        "columns_left_out": features.left_out,
        "rows": len(features.values),
        "columns": features.values.shape[1],
        **({} if all_rows is None else {"rows_used": all_rows.rows_used}),
        **used,
        "labels_used_for": [] if labels is None else ["scoring"],
        "number_of_clusters": {options.method: "found" if options.n_clusters is None else "given"},
        "bandwidth": bandwidth if options.method == "gridshift" else None,
        **provenance.environment(),
    }
