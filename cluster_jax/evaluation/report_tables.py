"""Tables of the report: the contents of `results.json` in words."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cluster_jax.evaluation import summary

# Keys of the results that read better as other words.
_WORDS = {
    "gridshift": "GridShift",
    "gap": "silhouette above that of one cluster",
    "rows_clustered": "rows clustered, the others placed by their neighbors",
    "kmeans": "k-means",
    "kmeans_n_init": "k-means initializations",
    "kmeans_metric": "k-means metric",
    "knn": "k-NN accuracy, k =",
    "linear_probe": "linear probe accuracy",
    "collapse": "embedding",
    "std": "standard deviation",
    "gradient_share": "gradient share of the sampler's displacement",
    "nrcc": "NRCC",
    "nmi": "NMI",
    "n_classes": "classes",
    "discovery": "novel class discovery:",
    "labeled_acc": "ACC on known classes",
    "novel_acc": "ACC on novel classes",
    "all_acc": "ACC on all classes",
    "kmeans_before_acc": "ACC of k-means before training",
    "images_per_second": "training images per second",
}


class MethodRow(NamedTuple):
    """One clustering against the true labels: its name, clusters, where k is from, scores."""

    name: str
    n_clusters: str
    origin: str
    scores: list[str]


def method_rows(results: Mapping[str, Any]) -> list[MethodRow]:
    """A row for each clustering in `results`; a dash for a score that needs labels."""
    origins = results["provenance"].get("number_of_clusters", {})
    rows = []
    discovery = results["metrics"].get("discovery")
    if discovery:
        rows.append(_method_row("novel head", discovery["novel"], "given"))
    for key, entry in results["metrics"].items():
        if _is_clustering(entry):
            rows.append(_method_row(key, entry, origins.get(key, "")))
    return rows


def _is_clustering(entry: object) -> bool:
    return isinstance(entry, Mapping) and "n_clusters" in entry


def _method_row(key: str, entry: Mapping[str, Any], origin: str) -> MethodRow:
    scores = [format_value(entry.get(score)) for score in summary.SCORES]
    return MethodRow(entry_name(key), summary.number(*summary.tally(entry)), origin, scores)


def other_metrics(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of all metrics that `method_rows` leaves out, except None."""
    metrics = dict(results["metrics"])
    if metrics.get("discovery"):
        discovery = dict(metrics["discovery"])
        metrics = {"novel head": discovery.pop("novel"), **metrics, "discovery": discovery}
    shown = (*summary.SCORES, "n_clusters", "n_large", "k_given")
    for key, entry in metrics.items():
        if _is_clustering(entry):
            # Values per cluster are shown with the clusters.
            metrics[key] = {
                name: value
                for name, value in entry.items()
                if name not in shown and not isinstance(value, Mapping)
            }
    metrics["images_per_second"] = results.get("images_per_second")
    metrics["seconds to"] = results.get("seconds")
    return [(entry_name(*path), format_value(value)) for path, value in _leaves((), metrics)]


def _leaves(path: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values of nested mappings that are not None, with the keys that lead to them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves((*path, key), item)
    elif value is not None:
        yield path, value


def provenance(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of how the results were obtained."""
    return [
        (entry_name(key), str(value) if key == "seed" else format_value(value, decimals=False))
        for key, value in results["provenance"].items()
    ]


def entry_name(*path: str) -> str:
    """The keys that lead to an entry of the results, in words."""
    text = " ".join(_WORDS.get(key, key.replace("_", " ")) for key in path)
    return text if text.startswith("k-") else text[:1].upper() + text[1:]  # k-means, k-NN


def format_value(value: object, decimals: bool = True) -> str:
    """An entry of the results as text; a dash for None, NaN and infinities.

    Args:
        value: anything that JSON can hold.
        decimals: three decimals for metrics; else four digits, for settings.
    """
    if isinstance(value, Mapping):
        pairs = [(k, format_value(v, decimals)) for k, v in value.items() if v is not None]
        return ", ".join(f"{_WORDS.get(key, key)} {text}" for key, text in pairs)
    if isinstance(value, list | tuple):
        return ", ".join(format_value(item, decimals) for item in value) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) or (decimals and isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if not isinstance(value, float):
        return str(value)
    if not decimals or 0 < abs(value) < 0.0005:  # three decimals would round it to zero
        return f"{value:.4g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """A number of things in words: "1 image", "2,000 images"; the plural is regular by default."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {plural or noun + 's'}"
