"""Clusters your own embeddings and writes assignments.csv, results.json and report.html.

Labels are used to score the clusters, never to find them.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_row_names
from cluster_jax.clustering.reduce import METHODS
from cluster_jax.clustering.smooth import METRICS
from cluster_jax.core import buckets, disk, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import columns, metadata, tables
from cluster_jax.data.shards import Shards
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions, resolve
from cluster_jax.pipeline import large
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.report import summary

# Flag -> the flag, and its values, without which it has no use.
_USES = {
    "n_init": ("method", ("kmeans",)),
    "max_iter": ("method", ("kmeans",)),
    "n_components": ("reduce", ("umap", "tsne", "pca", None)),
    "n_neighbors": ("reduce", ("umap", "tsne", None)),
    "min_dist": ("reduce", ("umap", None)),
}


class Inputs(NamedTuple):
    """Features to cluster, and labels to score the clusters against.

    Attributes:
        features: features of all rows, and their names and metadata.
        labels: label of each row, or None.
        shown: those in the report: all, or the sample of features that are read in blocks.
    """

    features: metadata.Rows
    labels: tables.Labels | None
    shown: tables.Table

    @property
    def shards(self) -> Shards | None:
        """The features, if they are read in blocks."""
        return self.features.values if isinstance(self.features.values, Shards) else None

    @property
    def true_labels(self) -> NDArray | None:
        """The labels as numbers, int32 `[n]`, or None."""
        return None if self.labels is None else self.labels.codes


def _check(flags: argparse.Namespace, parser: Parser) -> None:
    """Raises an `InputError` for a flag that has no use with the others."""
    for name, (other, values) in _USES.items():
        given, choice = getattr(flags, name), getattr(flags, other)
        if given != parser.get_default(name) and choice not in values:
            raise InputError(f"--{name} must be left out for --{other}={choice}; got {given}")
    for name, array in (("features", "array"), ("labels", "labels_array")):
        file, given = getattr(flags, name), getattr(flags, array)
        if file == "":
            raise InputError(f"--{name} must be the path of a file; got an empty one")
        suffix = pathlib.Path(file or "").suffix.lower()
        named = (".npz", ".csv", ".tsv", *columns.SUFFIXES) if name == "features" else (".npz",)
        if given is not None and suffix not in named:
            raise InputError(
                f"--{array} must name an array of a file of type {', '.join(named)}; got {given!r} "
                f"of {file}"
            )


def _read(flags: argparse.Namespace, seed: int) -> Inputs:
    features = metadata.read_rows(flags.features, flags.array, flags.ids, flags.metadata)
    values, names, more = features
    labels = None
    if isinstance(values, Shards):
        sample = large.sample_rows(values, seed).tolist()
        shown = tables.Table(
            values[sample],
            tuple(f"row {i}" if names is None else names[i] for i in sample),
            {title: [cells[i] for i in sample] for title, cells in more.items()},
        )
    else:
        shown = tables.Table(values, names, more)
    if flags.labels is not None:
        labels = tables.read_labels(flags.labels, flags.labels_array, len(values))
    return Inputs(features, labels, shown)


def _run(
    flags: argparse.Namespace, inputs: Inputs, options: ClusterOptions
) -> tuple[epath.Path, dict[str, Any]]:
    """Clusters features and writes the results to a folder; a finished run is not run again.

    Returns:
        The folder, and the content of `results.json`, which of several processes the first writes.

    Raises:
        InputError: features, labels or an option cannot be used, in several processes all but
            k-means without a reduction, or the folder holds something else; nothing was written.
    """
    import jax

    from cluster_jax.core import devices
    from cluster_jax.pipeline import corrections, embeddings, outputs
    from cluster_jax.report import assignments, decisions, report

    shards = inputs.shards
    if shards is None:
        options = resolve(inputs.shown.values, options)
    else:
        options = large.resolve_large(shards, options)
        devices.say(
            f"reading {counted(len(shards), 'row')} of {counted(shards.shape[1], 'column')} ..."
        )
    several = jax.distributed.is_initialized()
    if several and (options.method != "kmeans" or options.reduce != "none"):
        raise InputError(
            f"method must be kmeans, and reduce none, in several processes; got {options.method} "
            f"and {options.reduce}: run the command in one process"
        )
    config = {
        **dataclasses.asdict(options),
        "data": fingerprint(inputs.features, inputs.labels),
        "version": __version__,
    }
    stem = pathlib.Path(flags.features).stem
    workdir = flags.workdir or workdirs.default_path("clusters", stem, config)
    workdir = buckets.path(workdir)
    _check_same_files(workdir, flags, config["data"])
    previous = workdirs.claim(workdir, config)
    disk.check(workdir)
    if workdirs.agree(previous is not None, workdir) and previous is not None:
        devices.say(f"{workdir} is finished; choose another folder to run it again")
        if devices.is_first():
            previous = corrections.current_results(workdir, inputs.true_labels) or previous
        return workdir, previous
    started = time.perf_counter()
    result, all_rows = _cluster(inputs, options)
    devices.say("writing ...")
    results = io.plain(
        {
            "provenance": _provenance(flags, inputs, options, all_rows),
            "metrics": {options.method: result.metrics},
            "seconds": {"cluster": time.perf_counter() - started},
            "config": config,
        }
    )
    if not devices.is_first():
        return workdir, results
    disk.make(workdir, parents=True)
    io.write_json(workdir / workdirs.CONFIG, config, checksum=True)
    sample = None if all_rows is None else all_rows.sample
    embeddings.write(workdir, inputs.shown.values, result, options, sample)
    labels = inputs.true_labels
    if all_rows is None:
        table = assignments.rows_csv(inputs.features.names, result, inputs.features.metadata)
        io.write(workdir / workdirs.ASSIGNMENTS, table)
    else:
        large.write_assignments(workdir / workdirs.ASSIGNMENTS, all_rows, inputs.features)
        labels = None if labels is None else labels[all_rows.sample]
    tree, names = result.tree, None if inputs.labels is None else inputs.labels.names
    data = report.ReportData(
        title=pathlib.Path(flags.features).name,
        results=results,
        clustering=result,
        true_labels=labels,
        label_names=names,
        sources=inputs.shown.names,
        linkage=None if tree is None else tree.cluster_linkage_,
        features=clusters.rows_of_likeness(tree, inputs.shown.values, str(options.metric)),
        run=decisions.clustered(assignments.read_workdir(workdir))[1].run,
        command=outputs.correction_command(workdir),
        **outputs.described_fields(inputs.shown.metadata, results["provenance"]),
    )
    if flags.report == "yes":
        report.write_report(workdir / workdirs.REPORT, data)
    # Written last, because its presence marks the run as finished.
    io.write_json(workdir / workdirs.RESULTS, results, checksum=True)
    return workdir, results


def _check_same_files(
    workdir: epath.Path, flags: argparse.Namespace, data: Mapping[str, str | None]
) -> None:
    """Raises an `InputError` that names the files if the folder has clusters of other ones."""
    if (stored := workdirs.finished_results(workdir)) is None:
        return
    for name in ("features", "labels", "metadata"):
        hashed = stored["config"].get("data", data).get(name)
        file = stored["provenance"].get(name)
        if hashed == data.get(name):
            continue
        given = getattr(flags, name)
        as_it_was = " as it was before" if file == given else ""
        raise InputError(
            f"{workdir} contains a run with --{name}={file}{as_it_was}, not {given}; choose "
            "another folder"
        )


def fingerprint(features: metadata.Rows, labels: tables.Labels | None) -> dict[str, str | None]:
    """Hashes that identify the features, names, labels and metadata of a result."""
    values, names, more = features
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
    found = {"features": hashed, "labels": label_hash}
    if more:
        found["metadata"] = workdirs.fingerprint(json.dumps(dict(more), sort_keys=True).encode())
    return found


def _cluster(
    inputs: Inputs, options: ClusterOptions
) -> tuple[Clustering, large.LargeClustering | None]:
    """Clusters features; of shards returns the clusters of the sample, and those of all rows."""
    from cluster_jax.core import devices

    known, all_rows = inputs.true_labels, None
    if inputs.shards is None:
        result = clusters.cluster(inputs.shown.values, known, options, devices.say)
    else:
        all_rows = large.cluster_shards(inputs.shards, known, options, devices.say)
        result = all_rows.clustering
    if inputs.labels is not None:
        names, matching = inputs.labels.names, result.metrics["matching"]
        result.metrics["matching"] = {c: names[label] for c, label in matching.items()}
    return result, all_rows


def _provenance(
    flags: argparse.Namespace,
    inputs: Inputs,
    options: ClusterOptions,
    all_rows: large.LargeClustering | None,
) -> dict[str, Any]:
    from cluster_jax.pipeline import provenance

    unused = {"k"} if options.method == "kmeans" else {"k", "n_init", "max_iter"}
    if options.reduce == "none":
        unused |= {"n_components", "n_neighbors", "min_dist"}
    used = {k: v for k, v in dataclasses.asdict(options).items() if k not in unused}
    bandwidth = "found" if options.bandwidth == "auto" else "given"
    return {
        "features": flags.features,
        "labels": flags.labels,
        "metadata": flags.metadata,
        "rows": len(inputs.features.values),
        "columns": inputs.features.values.shape[1],
        **({} if all_rows is None else {"rows_used": all_rows.rows_used}),
        **used,
        "labels_used_for": [] if inputs.labels is None else ["scoring"],
        "number_of_clusters": {options.method: "found" if options.k is None else "given"},
        "bandwidth": bandwidth if options.method == "gridshift" else None,
        "nmi": "arithmetic mean of the entropies",
        **provenance.environment(),
    }


def _parser() -> Parser:
    """Builds the parser with the flags, the only place where defaults are set."""
    parser = Parser("cluster", __doc__)
    add = parser.add_argument
    files = (
        "one row per vector: .npy, .npz, .parquet, .arrow, .jsonl, .safetensors, .csv or .tsv "
        "(with or without column titles and row names), or a folder of .npy shards; read in blocks "
        "above 2^28 numbers"
    )
    add("--features", required=True, metavar="FILE", help=files)
    add("--array", metavar="NAME", help="array, column or tensor of the file of features")
    add_row_names(parser)
    strings = "one integer or string per row: .npy, .npz, .csv or .txt"
    add("--labels", metavar="FILE", help=f"{strings}; only used to score")
    add("--labels_array", metavar="NAME", help="array of an .npz file of labels (default: labels)")
    workdir = "folder of the results (default: clusters/NAME-HASH)"
    add("--workdir", "--out", metavar="DIR", help=workdir)
    methods = "tree and gridshift find the number of clusters (default: %(default)s)"
    output.add_report(parser)
    add("--method", default="tree", choices=CLUSTERINGS, help=methods)
    add("--k", type=int, help="number of clusters of kmeans or tree (default: found)")
    reductions = "map; gridshift clusters in it (default: umap; none for kmeans or 3 columns)"
    add("--reduce", choices=METHODS, help=reductions)
    columns = "columns after the reduction (default: %(default)s)"
    add("--n_components", type=int, default=3, help=columns)
    n_neighbors = "neighbors of umap, perplexity of tsne (default: %(default)s)"
    add("--n_neighbors", type=int, default=15, help=n_neighbors)
    min_dist = "minimum distance of points of umap (default: %(default)s)"
    add("--min_dist", type=float, default=0.0, help=min_dist)
    metrics = (
        "distance of tree, umap, tsne, kmeans (default: cosine above 3 columns, else euclidean)"
    )
    add("--metric", choices=METRICS, help=metrics)
    widths = "bandwidth of gridshift: auto or a number (default: %(default)s)"
    add("--bandwidth", default="auto", help=widths)
    add("--n_init", type=int, default=10, help="runs of kmeans (default: %(default)s)")
    iterations = "maximum iterations per run of kmeans (default: %(default)s)"
    add("--max_iter", type=int, default=300, help=iterations)
    add("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors(joins=True):
        parser = _parser()
        flags = parser.parse_args(arguments)
        _check(flags, parser)
        names = [field.name for field in dataclasses.fields(ClusterOptions)]
        options = ClusterOptions(**{name: getattr(flags, name) for name in names})
        inputs = _read(flags, options.seed)
        from cluster_jax.core import devices  # Not before: bad input is told without JAX.

        if options.method == "kmeans":
            devices.cpu_devices(devices.cores())
        devices.join()
        workdir, results = _run(flags, inputs, options)
        if not devices.is_first():
            return
        files = {
            key: str(workdir / name)
            for key, name in (
                ("report", workdirs.REPORT),
                ("assignments", workdirs.ASSIGNMENTS),
                ("metrics", workdirs.RESULTS),
            )
            if (workdir / name).exists()
        }
        text = "\n".join([f"\n{summary.run_table(results)}\n", *files.values()])
        output.end(flags, text, {"workdir": str(workdir), **files, "results": results})
