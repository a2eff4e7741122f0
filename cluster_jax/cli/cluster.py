"""`python -m cluster_jax.cluster --features=x.npy [--labels=y.npy]`: clusters of your embeddings.

Writes assignments.csv, results.json and report.html. Labels are used to score, never to cluster.
"""

import argparse
import contextlib
import csv
import hashlib
import itertools
import json
import pathlib
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any, NoReturn

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering.reduce import METHODS
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from cluster_jax.evaluation import cluster_features, summary


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _stop(message)


def run(
    features: tables.Table,
    labels: tables.Labels | None,
    options: cluster_features.Options,
    *,
    origin: Mapping[str, str | None],
    workdir: epath.PathLike | None,
    tell: Callable[[str], None],
) -> tuple[epath.Path, dict[str, Any]]:
    """Clusters features and leaves the result in a folder; what is done already is not done again.

    Args:
        features: what to cluster.
        labels: what to score against, or None.
        options: how.
        origin: `features` and `labels`, where they are from; part of the protocol.
        workdir: folder or bucket path, made if it is not there; None: `clusters/NAME-HASH` of the
            features' name and of all that the result depends on.
        tell: receives what is done now, in words.

    Returns:
        The folder and what `results.json` holds.

    Raises:
        InputError: something given cannot be used, or the folder holds something else; nothing
            was written.
    """
    codes = None if labels is None else labels.codes
    options = cluster_features.resolve(features.values, codes, options)
    data = _fingerprint(features, labels)
    config = {**options._asdict(), "data": data, "version": __version__}
    workdir = epath.Path(workdir or _default_workdir(origin["features"], config)).expanduser()
    previous = _claim(workdir, config)
    if previous is not None:
        tell(f"{workdir} is finished; to run again, give another --workdir")
        return workdir, previous
    started = time.perf_counter()
    if options.method == "kmeans":
        _use_cores()
    found = cluster_features.cluster(features.values, codes, options, tell)
    if labels is not None:
        metrics = found.metrics[options.method]
        metrics["matching"] = {c: labels.names[y] for c, y in metrics["matching"].items()}
    tell("writing ...")
    results = {
        "provenance": _protocol(features, labels, options, origin),
        "metrics": found.metrics,
        "seconds": {"cluster": time.perf_counter() - started},
        "config": config,
    }
    results = io.plain(results)
    workdir.mkdir(parents=True, exist_ok=True)
    io.write_json(workdir / "config.json", config)
    io.write(workdir / "assignments.csv", _assignments(features.names, found))
    _report(workdir / "report.html", results, features, labels, found)
    io.write_json(workdir / "results.json", results)
    return workdir, results


def _use_cores() -> None:
    """One CPU device for each core: k-means spreads its rows over the devices."""
    # Loads JAX, which GridShift need not wait for.
    from cluster_jax.core import devices

    devices.cpu_devices(devices.cores())


def _protocol(
    features: tables.Table,
    labels: tables.Labels | None,
    options: cluster_features.Options,
    origin: Mapping[str, str | None],
) -> dict[str, Any]:
    # Loads JAX, which bad input and the clustering need not wait for.
    from cluster_jax.pipeline import provenance

    kmeans = options.method == "kmeans"
    bandwidth = "found" if options.bandwidth == "auto" else "given"
    unused = {"k"} if kmeans else {"k", "n_init", "max_iter"}
    if options.reduce == "none":
        unused |= {"n_components", "n_neighbors", "min_dist"}
    return {
        **origin,
        "rows": features.values.shape[0],
        "columns": features.values.shape[1],
        **{key: value for key, value in options._asdict().items() if key not in unused},
        "labels_used_for": [] if labels is None else ["scoring"],
        "number_of_clusters": {options.method: "given" if kmeans else "found"},
        "bandwidth": None if kmeans else bandwidth,
        "nmi": "arithmetic mean of the entropies",
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }


def _report(
    path: epath.Path,
    results: dict[str, Any],
    features: tables.Table,
    labels: tables.Labels | None,
    found: cluster_features.ClusteringResult,
) -> None:
    # Loads plotly.
    from cluster_jax.evaluation import report

    points = found.points
    if points.shape[1] == 1:  # a map has two axes
        points = np.pad(points, ((0, 0), (0, 1)))
    data = report.ReportData(
        title=pathlib.Path(results["provenance"]["features"]).name,
        results=results,
        history=[],
        points=points,
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        true_labels=None if labels is None else labels.codes,
        label_names=None if labels is None else labels.names,
        fetch_images=None,
        sources=features.names,
        curve=found.curve,
        skipped=(),
    )
    report.write_report(path, data)


def _default_workdir(features: str, config: Mapping[str, Any]) -> pathlib.Path:
    text = json.dumps(config, sort_keys=True)
    name = re.sub(r"[^\w.-]+", "_", pathlib.Path(features).stem)
    return pathlib.Path("clusters") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _fingerprint(features: tables.Table, labels: tables.Labels | None) -> dict[str, Any]:
    """Tells whether a result is of the same numbers, names and labels."""

    def digest(*parts: bytes | NDArray) -> str:
        total = hashlib.sha256()
        for part in parts:
            total.update(part)
        return total.hexdigest()

    values = np.ascontiguousarray(features.values)
    names = json.dumps([values.shape, str(values.dtype), features.names]).encode()
    known = None if labels is None else digest(labels.codes, json.dumps(labels.names).encode())
    return {"features": digest(values, names), "labels": known}


def _claim(workdir: epath.Path, config: Mapping[str, Any]) -> dict | None:
    """Results of a finished run of this very config, else None.

    Raises:
        InputError: the folder holds something else, or cannot be one.
    """
    for folder in (workdir, *workdir.parents):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give another --workdir")
    files = sorted(file.name for file in workdir.iterdir()) if workdir.exists() else []
    # What `io.write` leaves when it is killed is no obstacle.
    files = [name for name in files if not (name.startswith(".") and name.endswith(".partial"))]
    if not files:
        return None
    own = None
    with contextlib.suppress(OSError, ValueError):
        own = io.read_json(workdir / "config.json")
        if own == io.plain(config):
            done = (workdir / "results.json").exists()
            return io.read_json(workdir / "results.json") if done else None
    if isinstance(own, dict) and {**own, "version": __version__} == io.plain(config):
        raise InputError(
            f"{workdir} is of another version of cluster_jax, {own.get('version', 'unknown')}, "
            f"and this is {__version__}; give another --workdir"
        )
    raise InputError(f"{workdir} holds other files, {files[0]} among them; give another --workdir")


def _assignments(names: Sequence[str] | None, found: cluster_features.ClusteringResult) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "cluster", "distance", "outlier"])
    outliers = itertools.repeat(False) if found.outliers is None else found.outliers.tolist()
    named = range(len(found.cluster_labels)) if names is None else names
    rows = zip(
        named, found.cluster_labels.tolist(), found.distances.tolist(), outliers, strict=False
    )
    writer.writerows((name, c, f"{d:.6g}", int(o)) for name, c, d, o in rows)
    return text.getvalue()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _stop(error: object) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)


def _bandwidth(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        message = f"bandwidth must be 'auto' or a number greater than 0; got {text!r}"
        raise argparse.ArgumentTypeError(message) from error


def _parser() -> _Parser:
    """The flags; they are the only place of a default."""
    parser = _Parser(
        "python -m cluster_jax.cluster",
        description=__doc__.split("\n", 2)[2],
        allow_abbrev=False,
    )
    add = parser.add_argument
    files = "one row per vector: .npy, .npz or .csv (with or without titles and names of rows)"
    add("--features", required=True, metavar="FILE", help=files)
    add("--array", metavar="NAME", help="which array of an .npz of features")
    texts = "one whole number or text per row: .npy, .npz, .csv or .txt"
    add("--labels", metavar="FILE", help=f"{texts}; only to score against")
    add("--labels_array", metavar="NAME", help="which array of an .npz of labels")
    add("--workdir", metavar="DIR", help="folder of the result (clusters/NAME-HASH)")
    methods = "gridshift finds the number of clusters (%(default)s)"
    add("--method", default="gridshift", choices=cluster_features.CLUSTERINGS, help=methods)
    add("--k", type=int, help="number of clusters, for kmeans")
    reductions = "what is clustered (gridshift on over 3 columns: umap, else none)"
    add("--reduce", choices=METHODS, help=reductions)
    add("--n_components", type=int, default=3, help="columns after the reduction (%(default)s)")
    n_neighbors = "neighbors of umap, perplexity of tsne (%(default)s)"
    add("--n_neighbors", type=int, default=15, help=n_neighbors)
    add("--min_dist", type=float, default=0.0, help="closest distance of umap (%(default)s)")
    metrics = "of umap, tsne and kmeans (over 3 columns: cosine, else euclidean)"
    add("--metric", choices=cluster_features.METRICS, help=metrics)
    widths = "of gridshift: auto or a number (%(default)s)"
    add("--bandwidth", type=_bandwidth, default="auto", help=widths)
    add("--n_init", type=int, default=10, help="runs of kmeans (%(default)s)")
    add("--max_iter", type=int, default=300, help="of a run of kmeans at most (%(default)s)")
    add("--seed", type=int, default=0, help="of everything random (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    given = vars(_parser().parse_args(arguments))
    options = cluster_features.Options(*(given[name] for name in cluster_features.Options._fields))
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: sys.stderr.write(f"warning: {message}\n")
        try:
            _command(given, options)
        except ValueError as error:
            _stop(error)
        except (OSError, MemoryError) as error:
            sys.stderr.write(f"error: {error or 'the memory does not suffice'}\n")
            sys.exit(1)
        except KeyboardInterrupt:
            sys.stderr.write("stopped; the same command begins again\n")
            sys.exit(130)


def _command(given: Mapping[str, Any], options: cluster_features.Options) -> None:
    file = given["features"]
    features = tables.read_table(file, given["array"])
    labels = None
    if given["labels"] is not None:
        labels = tables.read_labels(given["labels"], given["labels_array"], len(features.values))
    origin = {"features": file, "labels": given["labels"]}
    workdir, results = run(
        features, labels, options, origin=origin, workdir=given["workdir"], tell=_say
    )
    _say(f"\n{summary.text(results)}\n")
    for name in ("report.html", "assignments.csv", "results.json"):
        _say(str(workdir / name))


if __name__ == "__main__":
    main()
