"""Clusters your own embeddings and writes assignments.csv, results.json and report.html.

Labels are used to score the clusters, never to find them.
"""

import argparse
import dataclasses
from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_row_names
from cluster_jax.clustering import custom
from cluster_jax.clustering.reduce import METHODS
from cluster_jax.clustering.representation import METRICS
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions
from cluster_jax.report import summary
from cluster_jax.runs import claims
from cluster_jax.runs import workdir as workdirs

# Flag -> the flag, and its values, without which it has no use.
_USES = {
    "n_init": ("method", ("kmeans",)),
    "n_components": ("reduce", ("umap", "tsne", "pca", None)),
    "n_neighbors": ("reduce", ("umap", "tsne", None)),
}
# What errors call an option -> its flag.
_FLAGS = {
    f"{field.name} must": f"--{field.name.replace('_', '-')} must"
    for field in dataclasses.fields(ClusterOptions)
} | {"set the method to": "use --method"}


def _check(flags: argparse.Namespace, parser: Parser) -> None:
    """Raises an `InputError` for a flag that has no use with the others."""
    for name, (other, values) in _USES.items():
        value = getattr(flags, name)
        choice = getattr(flags, other)
        if value != parser.get_default(name) and choice not in values:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} must be left out for --{other}={choice}; got {value}")
    for name in ("features", "labels"):
        if getattr(flags, name) == "":
            raise InputError(f"--{name} must be the path of a file; got an empty one")


def _parser() -> Parser:
    """Builds the parser with the flags, the only place where defaults are set."""
    parser = Parser("cluster", __doc__)
    add = parser.add_argument
    files = "vectors: .npy, .npz, .parquet, .csv with titles, or a folder of .npy"
    add("--features", required=True, metavar="FILE", help=files)
    add("--array", metavar="NAME", help="array or column of the features in the file")
    add_row_names(parser)
    strings = "a label of each row, only to score: .npy, .npz, .csv or .txt"
    add("--labels", metavar="FILE", help=strings)
    add("--workdir", metavar="DIR", help="folder of the results (default: clusters/NAME-HASH)")
    output.add_report(parser)
    methods = (
        "tree or gridshift, which find the number of clusters, kmeans, or a module of your own, "
        "with a function fit(x, n_clusters, seed) (default: %(default)s)"
    )
    add("--method", default="tree", metavar="METHOD", help=methods)
    add("--n-clusters", type=int, help="number of clusters, not for gridshift (default: estimated)")
    reductions = (
        "how the map is drawn, which gridshift clusters (default: umap for gridshift, else tsne; "
        "none for kmeans or 3 columns)"
    )
    add("--reduce", choices=METHODS, help=reductions)
    dimensions = "dimensions of the map; by tsne always two (default: %(default)s)"
    add("--n-components", type=int, default=3, help=dimensions)
    neighbors = "neighbors of umap, perplexity of tsne (default: %(default)s)"
    add("--n-neighbors", type=int, default=15, help=neighbors)
    metrics = "distance between rows (default: cosine above 3 columns, else euclidean)"
    add("--metric", choices=METRICS, help=metrics)
    add("--bandwidth", default="auto", help="bandwidth of gridshift (default: %(default)s)")
    add("--n-init", type=int, default=10, help="runs of kmeans (default: %(default)s)")
    add("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        parser = _parser()
        flags = parser.parse_args(arguments)
        _check(flags, parser)
        custom.check("--method", flags.method, CLUSTERINGS)
        with checks.named(_FLAGS):
            options = ClusterOptions.of(vars(flags))
        checks.whole("seed", flags.seed, 0, 2**31 - 1)
        if flags.workdir is not None:
            claims.check_folder(checks.local(flags.workdir))
        features = tables.read_rows(flags.features, flags.array, flags.ids)
        labels = None
        if flags.labels is not None:
            labels = tables.read_labels(flags.labels, len(features.values))
        from cluster_jax.core import devices  # Not before: bad input is told without JAX.
        from cluster_jax.runs import begin, rows

        if options.method == "kmeans":
            devices.cpu_devices(devices.cores())
        devices.join()
        files = {name: getattr(flags, name) for name in ("features", "labels")}
        with checks.named(_FLAGS):
            before, now = rows.first(features, labels, options, files, flags.workdir, flags.seed)
            run = begin.cluster(before, now, with_report=flags.report == "yes")
        if not devices.is_first():
            return
        written = workdirs.outputs(run.workdir)
        text = "\n".join([f"\n{summary.run_table(run.results)}\n", *written.values()])
        values = {"workdir": str(run.workdir), **written, "results": run.results}
        output.end(flags, text, values)
