"""Clusters your own embeddings and writes assignments.csv, results.json and report.html.

Labels are used to score the clusters, never to find them.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_row_names
from cluster_jax.clustering import custom
from cluster_jax.clustering.reduce import METHODS
from cluster_jax.clustering.smooth import METRICS
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions
from cluster_jax.report import summary
from cluster_jax.runs import rows
from cluster_jax.runs import workdir as workdirs

# Flag -> the flag, and its values, without which it has no use.
_USES = {
    "n_init": ("method", ("kmeans",)),
    "max_iter": ("method", ("kmeans",)),
    "n_components": ("reduce", ("umap", "tsne", "pca", None)),
    "n_neighbors": ("reduce", ("umap", "tsne", None)),
}


def _check(flags: argparse.Namespace, parser: Parser) -> None:
    """Raises an `InputError` for a flag that has no use with the others."""
    for name, (other, values) in _USES.items():
        value, choice = getattr(flags, name), getattr(flags, other)
        if value != parser.get_default(name) and choice not in values:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} must be left out for --{other}={choice}; got {value}")
    for name, array in (("features", "array"), ("labels", "labels_array")):
        file, value = getattr(flags, name), getattr(flags, array)
        if file == "":
            raise InputError(f"--{name} must be the path of a file; got an empty one")
        suffix = pathlib.Path(file or "").suffix.lower()
        named = (".npz", *tables.SUFFIXES) if name == "features" else (".npz",)
        if value is not None and suffix not in named:
            flag = array.replace("_", "-")
            raise InputError(
                f"--{flag} must name an array of a file of type {', '.join(named)}; got {value!r} "
                f"of {file}"
            )


def _parser() -> Parser:
    """Builds the parser with the flags, the only place where defaults are set."""
    parser = Parser("cluster", __doc__)
    add = parser.add_argument
    files = (
        "one row per vector: .npy, .npz, .parquet or .csv (with titles), or a folder of .npy "
        "shards; read in blocks above 2^28 numbers"
    )
    add("--features", required=True, metavar="FILE", help=files)
    add("--array", metavar="NAME", help="array or column of the file of features")
    add_row_names(parser)
    strings = "one integer or string per row: .npy, .npz, .csv or .txt"
    add("--labels", metavar="FILE", help=f"{strings}; only used to score")
    add("--labels-array", metavar="NAME", help="array of an .npz file of labels (default: labels)")
    workdir = "folder of the results (default: clusters/NAME-HASH)"
    add("--workdir", metavar="DIR", help=workdir)
    methods = (
        "tree or gridshift, which find the number of clusters, kmeans, or a module of your own, "
        "with a function fit(x, n_clusters, seed) (default: %(default)s)"
    )
    output.add_report(parser)
    add("--method", default="tree", metavar="METHOD", help=methods)
    add("--n-clusters", type=int, help="number of clusters, not of gridshift (default: found)")
    reductions = "map; gridshift clusters in it (default: umap; none for kmeans or 3 columns)"
    add("--reduce", choices=METHODS, help=reductions)
    columns = "columns after the reduction (default: %(default)s)"
    add("--n-components", type=int, default=3, help=columns)
    n_neighbors = "neighbors of umap, perplexity of tsne (default: %(default)s)"
    add("--n-neighbors", type=int, default=15, help=n_neighbors)
    metrics = (
        "distance of tree, umap, tsne, kmeans (default: cosine above 3 columns, else euclidean)"
    )
    add("--metric", choices=METRICS, help=metrics)
    widths = "bandwidth of gridshift: auto or a number (default: %(default)s)"
    add("--bandwidth", default="auto", help=widths)
    add("--n-init", type=int, default=10, help="runs of kmeans (default: %(default)s)")
    iterations = "maximum iterations per run of kmeans (default: %(default)s)"
    add("--max-iter", type=int, default=300, help=iterations)
    add("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        parser = _parser()
        flags = parser.parse_args(arguments)
        _check(flags, parser)
        custom.check("--method", flags.method, CLUSTERINGS)
        names = [field.name for field in dataclasses.fields(ClusterOptions)]
        options = ClusterOptions(**{name: getattr(flags, name) for name in names})
        if flags.workdir is not None:
            workdirs.check_folder(checks.local(flags.workdir))
        features, labels = tables.read_rows(flags.features, flags.array, flags.ids), None
        if flags.labels is not None:
            n_rows = len(features.values)
            labels = tables.read_labels(flags.labels, flags.labels_array, n_rows)
        from cluster_jax.core import devices  # Not before: bad input is told without JAX.

        if options.method == "kmeans":
            devices.cpu_devices(devices.cores())
        devices.join()
        files = {name: getattr(flags, name) for name in ("features", "labels")}
        workdir, results = rows.cluster(
            features, labels, options, files, flags.workdir, with_report=flags.report == "yes"
        )
        if not devices.is_first():
            return
        written = workdirs.outputs(workdir)
        text = "\n".join([f"\n{summary.run_table(results)}\n", *written.values()])
        output.end(flags, text, {"workdir": str(workdir), **written, "results": results})
