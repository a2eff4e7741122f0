"""Selecting GridShift's bandwidth without labels: rules compared on generated sets and embeddings.

    python -m experiments.bandwidth [--embeddings RUN/embedding.npz ...] [--out=PATH]

About three minutes on 2 cores, plus half a minute per embedding of the digits. A rule sees only
the points; labels are used to score the rules, never to select a bandwidth. The thresholds of the
rule that GridShift uses were set on the choosing halves of `bandwidth_sets.py`; the table shows
both halves.
"""

import argparse
import pathlib
import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, calinski_harabasz_score

from cluster_jax import GridShift
from cluster_jax.clustering import bandwidth
from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import io
from cluster_jax.core.config import load_config
from cluster_jax.metrics import partition
from experiments import bandwidth_sets, tables

RULES = (
    "silhouette (GridShift's)",
    "plateau",
    "persistence",
    "Calinski-Harabasz",
    "resampling",
    "silhouette + resampling",
)
SHIFTS = 20


def pick(points: NDArray, curve: bandwidth.BandwidthCurve) -> dict[str, int]:
    """Index of the bandwidth that each rule selects from the same scan."""
    sample = np.random.default_rng(1).permutation(len(points))[:10_000]
    x = points[sample]
    half = len(x) // 2
    calinski_harabasz, agreement = np.full((2, len(curve.bandwidths)), np.nan)
    all_counts = np.empty(len(curve.bandwidths), np.int64)
    for b, h in enumerate(curve.bandwidths):
        fitted = GridShift(float(h), max_iter=100).fit(x)
        all_counts[b] = len(fitted.cluster_centers_)
        if curve.n_clusters[b] < 2:
            continue
        inliers = ~fitted.outliers_
        if 2 <= len(set(fitted.labels_[inliers])) < inliers.sum():
            calinski_harabasz[b] = calinski_harabasz_score(x[inliers], fitted.labels_[inliers])
        halves = [GridShift(float(h), max_iter=100).fit(part) for part in (x[:half], x[half:])]
        agreement[b] = adjusted_rand_score(*(fit.predict(x[:1000]) for fit in halves))
    persistent = np.minimum.accumulate(curve.n_clusters)
    return {
        RULES[0]: curve.best_index,
        RULES[1]: _widest(all_counts),
        RULES[2]: _widest(persistent),
        RULES[3]: _best(calinski_harabasz),
        RULES[4]: _middle_of_fewest(curve.n_clusters, agreement),
        RULES[5]: _middle_of_fewest(curve.n_clusters, curve.scores + agreement),
    }


def _widest(counts: NDArray) -> int:
    """Middle of the longest run of bandwidths with the same number of clusters, at least two."""
    borders = np.flatnonzero(np.diff(counts)) + 1
    plateaus = [p for p in np.split(np.arange(len(counts)), borders) if counts[p[0]] > 1]
    longest = max(plateaus, key=len, default=np.arange(len(counts)))
    return int(longest[len(longest) // 2])


def _best(scores: NDArray) -> int:
    return len(scores) - 1 if np.isnan(scores).all() else int(np.nanargmax(scores))


def _middle_of_fewest(counts: NDArray, scores: NDArray) -> int:
    if np.isnan(scores).all():
        return len(scores) - 1
    good = np.flatnonzero(scores >= np.nanmax(scores) - 0.02)
    fewest = good[counts[good] == counts[good].min()]
    return int(fewest[len(fewest) // 2])


def judge(generated: bandwidth_sets.Set) -> dict:
    """How each rule does on a generated set, and GridShift's verdict."""
    points, truth = bandwidth_sets.make(generated)
    fitted = GridShift().fit(points)
    curve = fitted.bandwidth_curve_
    inliers = truth >= 0
    by_rule = {}
    for rule, b in pick(points, curve).items():
        model = GridShift(float(curve.bandwidths[b])).fit(points)
        count = len(set(model.labels_[~model.outliers_]))
        tolerance = 0 if generated.truth <= 5 else 0.1 * generated.truth
        ari = adjusted_rand_score(truth[inliers], model.labels_[inliers])
        by_rule[rule] = {
            "n_clusters": count,
            "with_small_ones": len(model.cluster_centers_),
            "ari": ari,
            "right": bool(abs(count - generated.truth) <= tolerance and ari >= 0.9),
        }
    return {
        "set": generated._asdict(),
        "verdict": curve.verdict,
        "score": curve.scores[curve.best_index],
        "stability": fitted.stability_,
        "rules": by_rule,
    }


def embedded(file: str, seed: int) -> dict:
    """The rules, and the effect of the grid's origin, on the map of an embedding of the digits."""
    config = load_config("nrcc_digits").eval
    features = io.read_arrays(file)[config.features]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    points = reduce(features, seed=seed, **config.reduce).astype(np.float64)
    labels = load_digits().target
    curve = GridShift().fit(points).bandwidth_curve_

    def score(fitted: GridShift) -> dict:
        values = partition.scores(labels, fitted.labels_)
        return {name: values[name] for name in ("n_clusters", "acc", "nmi")}

    rules = {
        rule: score(GridShift(float(curve.bandwidths[b])).fit(points))
        for rule, b in pick(points, curve).items()
    }
    h = float(curve.bandwidths[curve.best_index])
    rng = np.random.default_rng(0)
    shifted = [GridShift(h).fit(points + h * rng.uniform(size=3)) for _ in range(SHIFTS)]
    shifted_scores = [score(fitted) for fitted in shifted]
    pairwise_ari = np.array(
        [[adjusted_rand_score(a.labels_, b.labels_) for b in shifted] for a in shifted]
    )
    # A consensus without labels: the partition that agrees best with all the others.
    groups = [range(i, i + 5) for i in range(0, SHIFTS, 5)]
    medoids = [g[int(pairwise_ari[np.ix_(g, g)].sum(axis=1).argmax())] for g in groups]
    nmi = [s["nmi"] for s in shifted_scores]
    return {
        "file": pathlib.Path(file).parent.name,
        "umap_seed": seed,
        "rules": rules,
        "verdict": curve.verdict,
        "origin": {
            "nmi": [min(nmi), float(np.mean(nmi)), max(nmi)],
            "ari_between": float(pairwise_ari[np.triu_indices(SHIFTS, 1)].mean()),
            "nmi_of_consensus_of_5": [shifted_scores[i]["nmi"] for i in medoids],
        },
    }


def texts(results: list[dict], embeddings: list[dict]) -> list[str]:
    """The results as Markdown."""
    lists = sorted({(r["set"]["round"], r["set"]["half"]) for r in results})
    titles = [f"{half}, list {number}" for number, half in lists]

    def of(kind: str) -> list[list[dict]]:
        keys = ("kind", "round", "half")
        return [
            [r for r in results if [r["set"][k] for k in keys] == [kind, *key]] for key in lists
        ]

    def verdicts(group: list[dict]) -> str:
        found = [r["verdict"] for r in group]
        return " / ".join(str(found.count(v)) for v in bandwidth.VERDICTS)

    blobs = of("blobs")
    sizes = [f"{title} ({len(group)})" for title, group in zip(titles, blobs, strict=True)]
    right = [[r, *(sum(x["rules"][r]["right"] for x in group) for group in blobs)] for r in RULES]
    kinds = ("blobs", "blob", "noise", "moons")
    parts = [
        "# Bandwidth rules",
        "Sets of blobs with the right number of clusters (exact up to 5, within 10 % above; small "
        "clusters of outliers not counted) and an ARI of at least 0.9:",
        tables.markdown(["rule", *sizes], right),
        "Verdicts of GridShift's rule, clear / one cluster / no clear answer:",
        tables.markdown(["kind", *titles], [[k, *map(verdicts, of(k))] for k in kinds]),
    ]
    if not embeddings:
        return parts
    nmi = [[r, *(f"{e['rules'][r]['nmi']:.3f}" for e in embeddings)] for r in RULES]
    origins = []
    for e in embeddings:
        low_mean_high, consensus = (
            ", ".join(f"{v:.3f}" for v in e["origin"][key])
            for key in ("nmi", "nmi_of_consensus_of_5")
        )
        origins.append([e["file"], low_mean_high, f"{e['origin']['ari_between']:.3f}", consensus])
    columns = ["embedding", "NMI lowest, mean, highest", "ARI between grids"]
    return [
        *parts,
        "NMI on UMAP maps of embeddings of the digits:",
        tables.markdown(["rule", *(e["file"] for e in embeddings)], nmi),
        f"The same bandwidth on {SHIFTS} randomly shifted grids; the consensus of 5 grids is the "
        "partition with the highest mean ARI to the other four:",
        tables.markdown([*columns, "NMI of 4 consensuses"], origins),
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bandwidth")
    parser.add_argument("--embeddings", nargs="*", default=[])
    parser.add_argument("--out", default="experiments/bandwidth")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # expected at some of the bandwidths
    results = []
    for generated in bandwidth_sets.SETS:
        results.append(judge(generated))
        print(generated.name, generated.half, results[-1]["verdict"], flush=True)
    embeddings = [embedded(file, seed) for seed, file in enumerate(arguments.embeddings)]
    about = tables.origin("python -m experiments.bandwidth --embeddings RUN/embedding.npz ...")
    found = {"sets": results, "embeddings": embeddings}
    print(tables.write(arguments.out, found, about, *texts(results, embeddings)))


if __name__ == "__main__":
    main()
