"""Options of clustering: the section `eval` of a config, and the flags of `cluster`.

An error names the option as the user has written it: `eval.n_init` in a config, `n_init` as a flag.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from cluster_jax.clustering import custom, representation
from cluster_jax.clustering.reduce import MAP_COLUMNS
from cluster_jax.core import checks, outside
from cluster_jax.core.arrays import numeric
from cluster_jax.core.checks import Count, InputError
from cluster_jax.core.config import parse_section
from cluster_jax.core.names import counted
from cluster_jax.evaluation import own
from cluster_jax.metrics.probe_settings import ProbeSettings

# Rows that are clustered in a job of several processes, see `EvalConfig.sample`.
SAMPLE = 50_000
FEATURES = ("backbone", "projection")
CLUSTERINGS = ("tree", "gridshift", "kmeans")
# Those of them that find the number of clusters, as trainings and images need it.
FINDERS = ("tree", "gridshift")
# The largest value of counters and seeds, that of int32.
_INT32_MAX = 2**31 - 1


def parse_bandwidth(name: str, bandwidth: float | str) -> float | str:
    """Parses a bandwidth of GridShift: "auto", or a number greater than 0, also as a string.

    Raises:
        InputError: `bandwidth` is something else.
    """
    with contextlib.suppress(ValueError):
        if bandwidth == "auto" or 0 < float(bandwidth) < float("inf"):
            return bandwidth if bandwidth == "auto" else float(bandwidth)
    raise InputError(f"{name} must be 'auto' or a number greater than 0; got {bandwidth!r}")


def _one_of(choices: tuple[str, ...]) -> Any:
    # A run that is read needs no module: it has the clusters.
    return outside.named(choices, *custom.NEEDS)


Clusterer = Annotated[str, _one_of(CLUSTERINGS)]
Finder = Annotated[str, _one_of(FINDERS)]
Reduction = Literal["umap", "tsne", "pca", "none"]
Neighborhood = Annotated[int, functools.partial(checks.whole, least=2)]
Counter = Annotated[int, functools.partial(checks.whole, least=1, most=_INT32_MAX)]


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How rows of features are clustered: flags of `cluster`, and keys of the section `eval`.

    Attributes:
        method: `"tree"` for `clustering.smooth_tree.SmoothTree`, `"gridshift"`, `"kmeans"` for a
            given number of clusters, or a module of one's own, see `clustering.custom`.
        n_clusters: required for k-means, None for GridShift; for the others None if the number is
            to be found.
        reduce: a method of `clustering.reduce`; None: `"none"` for k-means and for up to three
            columns, else `"umap"` for GridShift and `"tsne"` for the others. GridShift and k-means
            cluster the reduced features; the others cluster the features, and the reduced features
            are the map of the report, see `maps.drawn`.
        n_components: number of columns of the reduced features; a map by t-SNE has two.
        n_neighbors: number of neighbors of UMAP, perplexity of t-SNE.
        metric: distance between features, `"cosine"` or `"euclidean"`, for the tree, UMAP, t-SNE,
            and k-means without a reduction; None: cosine if one of them is used and there are more
            than three columns, else Euclidean.
        bandwidth: bandwidth of GridShift, a number or `"auto"`.
        n_init: number of initializations of k-means; the result of lowest inertia is kept.
    """

    PREFIX: ClassVar[str] = ""  # before the name of an option in messages

    method: Clusterer
    n_clusters: int | None
    reduce: Reduction | None
    n_components: Count
    n_neighbors: Neighborhood
    metric: Literal["cosine", "euclidean"] | None
    bandwidth: float | str
    n_init: Counter

    def __post_init__(self) -> None:
        # A flag over the default "auto" is a string: "0.5" is accepted as a number.
        value = parse_bandwidth(f"{self.PREFIX}bandwidth", self.bandwidth)
        object.__setattr__(self, "bandwidth", value)
        if self.method == "gridshift" and self.n_clusters is not None:
            raise InputError(
                f"{self.PREFIX}n_clusters must be left out for GridShift, which finds the number "
                f"of clusters; got {self.n_clusters} (or set the method to tree)"
            )
        if self.method != "gridshift" and value != "auto":
            raise InputError(
                f"{self.PREFIX}bandwidth must be 'auto' for the method {self.method}, which has "
                f"none; got {value} (or set the method to gridshift)"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the options among flags, or in the config of a run of embeddings.

        Raises:
            InputError: a value is out of range, or an option has no use for the method.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        options = parse_section(cls, "", {name: values[name] for name in names})
        if options.method == "kmeans" and options.n_clusters is None:
            raise InputError("n_clusters must be given for k-means; got none: add --n-clusters=N")
        return options

    @property
    def reduce_options(self) -> dict[str, Any]:
        """Arguments of `clustering.reduce.reduce`, without the features and the seed."""
        names = ("n_components", "n_neighbors", "metric")
        return {"method": self.reduce} | {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class KMeansConfig:
    """The section `eval.kmeans`.

    Attributes:
        n_clusters: see `check_k`; None: the number of classes, or without labels the number of
            clusters that `eval.method` finds.
        metric: `"euclidean"` or `"spherical"`; the rows have length one.
    """

    n_clusters: int | None
    metric: Literal["euclidean", "spherical"]


@dataclasses.dataclass(frozen=True)
class EvalConfig(ClusterOptions):
    """The section `eval`: how the features of a run are clustered and scored.

    Features are unit rows. `method` finds the number of clusters: `"gridshift"`, as in the papers,
    `"tree"`, or a module of one's own. With `"tree"`, k-means clusters the smooth rows.

    Attributes:
        features: which features are clustered, `"backbone"` or `"projection"`.
        batch_size: number of images in a forward pass of the embedding, on all devices together.
        sample: rows that are clustered by a method other than the tree, to which all others are
            then assigned; None: all rows, and at most `SAMPLE` in a job of several processes, of
            which all others wait meanwhile, at most `hosts.LONGEST_WAIT`.
        kmeans: settings of the k-means beside `method`, with `n_init` runs.
        knn: numbers of neighbors for k-NN accuracy; (): it is skipped.
        metrics: modules of one's own that score features and clusters, see `evaluation.own`.
        linear_probe: settings of the linear probe; None: it is skipped.
    """

    PREFIX: ClassVar[str] = "eval."

    method: Finder
    reduce: Reduction
    metric: Literal["cosine", "euclidean"]
    features: Literal["backbone", "projection"]
    batch_size: Count
    sample: Count | None
    kmeans: KMeansConfig
    knn: tuple[Count, ...]
    metrics: tuple[Annotated[str, outside.named((), *own.NEEDS)], ...]
    linear_probe: ProbeSettings | None

    def sample_of(self, n: int, processes: int) -> int | None:
        """Returns how many of n rows are clustered, see `sample`; None: all of them."""
        if self.method == "tree":
            return None
        most = SAMPLE if self.sample is None and processes > 1 else self.sample
        return most if most is not None and most < n else None


def resolve(
    features: NDArray, options: ClusterOptions, n_rows: int | None = None
) -> ClusterOptions:
    """Checks features and options, and fills in the defaults of `reduce` and `metric`.

    Args:
        features: floating-point numbers `[n, d]`.
        options: options of clustering.
        n_rows: number of rows that are clustered, if the features are a sample of them.

    Raises:
        InputError: the features or an option cannot be used.
    """
    n, d = numeric(features, "features", representation.LARGEST).shape
    is_low_dimensional = d <= MAP_COLUMNS
    method = options.method
    map_method = options.reduce
    if map_method is None:
        is_none = method == "kmeans" or is_low_dimensional
        map_method = "none" if is_none else "umap" if method == "gridshift" else "tsne"
    # Whether any step computes distances between the features themselves.
    is_compared = method not in ("gridshift", "kmeans")
    is_compared |= method == "kmeans" and map_method == "none"
    is_compared |= map_method in ("umap", "tsne")
    metric = options.metric or ("euclidean" if is_low_dimensional or not is_compared else "cosine")
    if metric == "cosine" and not is_compared:
        raise InputError(
            f"metric must be 'euclidean' for {method} with reduction {map_method!r}; got "
            "'cosine': scale the rows of the features to length one instead"
        )
    if map_method != "none" and (width := options.n_components) > d:
        raise InputError(f"n_components must be at most the {counted(d, 'column')}; got {width}")
    check_k("n_clusters", options.n_clusters, n_rows or n, "rows")
    return dataclasses.replace(options, reduce=map_method, metric=metric)


def check_k(name: str, k: int | None, n: int, noun: str) -> None:
    """Raises an `InputError` unless `k` is None or a number of clusters of `n` images or rows."""
    if k is not None:
        if not 1 <= k <= n:
            raise InputError(f"{name} must be between 1 and {n:,}, the number of {noun}; got {k}")
        checks.whole(name, k, 1)
