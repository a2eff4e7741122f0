"""How many clusters there are, in words, and the summary of a clustering for the terminal."""

from collections.abc import Mapping
from typing import Any

# Clusters named in a summary, the largest first.
NAMED = 20


def tally(metrics: Mapping[str, Any]) -> tuple[int, int]:
    """Clusters that count and small ones, by one method's figures; k-means has no small ones."""
    large = metrics.get("n_large", metrics["n_clusters"])
    return large, metrics["n_clusters"] - large


def number(large: int, small: int) -> str:
    """The number of clusters: those that count, and how many small ones there are besides."""
    return f"{large:,} and {small:,} small" if small else f"{large:,}"


def groups(large: int, small: int, noun: str) -> str:
    """Clusters that count and, where there are any, small ones in words."""
    text = f"{large:,} {noun}" if large == 1 else f"{large:,} {noun}s"
    if not small:
        return text
    return f"{text} and {small:,} small " + ("one" if small == 1 else "ones")


def doubt(metrics: Mapping[str, Any]) -> str | None:
    """What speaks against the novel classes of a run without any label, in words, or None."""
    used, count = metrics["novel"]["n_clusters"], metrics["novel_classes"]
    if metrics.get("undecided"):
        return (
            "the novel head is undecided, its highest probability is "
            f"{metrics['confidence']:.3f} on average"
        )
    return f"the novel head uses {used} of its {count} classes" if used < count else None


def figure(value: float | None) -> str:
    """A score, or a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def text(results: Mapping[str, Any]) -> str:
    """The figures of a clustering's `results.json` and its largest clusters as lines of text."""
    ((method, metrics),) = results["metrics"].items()
    title = {"gridshift": "GridShift", "kmeans": "k-means"}[method]
    title += f" (k {results['provenance']['number_of_clusters'][method]})"
    scores = {"ACC": "acc", "NMI": "nmi", "ARI": "ari", "AMI": "ami", "silhouette": "silhouette"}
    cells = "".join(f"{figure(metrics[key]):>{len(name) + 5}}" for name, key in scores.items())
    large, small = tally(metrics)
    found = number(large, small)
    width = max(len(found), len("clusters"))
    lines = [f"{'':21}{'clusters':>{width}}" + "".join(f"     {name}" for name in scores)]
    lines += [f"{title:21}{found:>{width}}{cells}", ""]
    lines += _listed(metrics, large, small)
    if metrics.get("verdict") == "one cluster":
        lines.append("the rows form one cluster: no division is as good as separate clusters are")
    if metrics.get("verdict") == "no clear answer":
        lines.append("no clear answer: the rows may form one group, or none (see the report)")
    return "\n".join(lines)


def _listed(metrics: Mapping[str, Any], large: int, small: int) -> list[str]:
    """A line for each of the largest clusters that count, and one for what is left."""
    sizes, labels = metrics["cluster_sizes"], metrics.get("matching", {})
    rows, purity = sum(sizes.values()), metrics.get("cluster_purity")
    # A cluster counts by its size, so the first ones in this order are those that do.
    order = sorted(sizes, key=lambda c: (-sizes[c], int(c)))
    lines = []
    for c in order[: min(large, NAMED)]:
        pure = "" if purity is None else f"   purity {purity[c]:.3f}"
        match = f", matched with {labels[c]}" if c in labels else ""
        share = f"{sizes[c]:>12,} {'row ' if sizes[c] == 1 else 'rows'}{sizes[c] / rows:>8.1%}"
        lines.append(f"cluster {c:>6}{share}{pure}{match}")
    if large > NAMED:
        lines.append(f"and {large - NAMED:,} of {sizes[order[NAMED]]:,} rows or fewer")
    if small:
        lines.append(
            f"and {small:,} small, of {sizes[order[large]]:,} rows or fewer, too small to count; "
            f"{metrics['outliers']:,} rows are outliers"
        )
    return lines
