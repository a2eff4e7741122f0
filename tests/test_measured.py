"""What README says of trainings on USPS, MNIST and Fashion-MNIST is of the results."""

import functools
import json
import pathlib
import re

import numpy as np

from experiments import registry, tables
from experiments.real import __main__ as real

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETS = {"usps": "USPS", "mnist": "MNIST", "fashion": "Fashion-MNIST"}
VIEWS = ("SGHMC", "noise", "augmentation")
FEWEST = 3  # seeds of a figure


def _words(name):
    """The words of a page, without the ends of its lines."""
    return " ".join((ROOT / name).read_text().split())


def _stored(name):
    return [json.loads(x) for x in (registry.FOLDER / "real" / name).read_text().splitlines()]


@functools.cache
def trained(number):
    """Row -> seed -> metrics, in the order of the table."""
    rows = {row.name: {} for row in registry.find("real", number).rows}
    for one in real.finished(number, registry.stored()):
        rows[one.row][one.seed] = one.line["metrics"]
    return rows


def commits(number):
    return {
        one.line["provenance"]["commit"][:8] for one in real.finished(number, registry.stored())
    }


@functools.cache
def found(number):
    """Row -> seed -> clusters of the same features by k-means on the map and by `SmoothTree`."""
    rows = {}
    for line in _stored("found.jsonl"):
        if line["set"] == number:
            rows.setdefault(line["row"], {})[line["seed"]] = line
    return rows


def _range(values):
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _ends(values):
    return f"{min(values):.1f} to {max(values):.1f}"


def table():
    """The lines of README's table."""
    heads = [f"{title}, {by}" for title in SETS.values() for by in ("k-means", "GridShift")]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in trained("usps"):
        cells = []
        for number in SETS:
            own = list(trained(number)[row].values())
            if len(own) < FEWEST:
                cells += ["", ""]
                continue
            clusters = [each["gridshift"]["n_clusters"] for each in own]
            cells.append(tables.mean([100 * each["kmeans"]["acc"] for each in own], 1))
            acc = tables.mean([100 * each["gridshift"]["acc"] for each in own], 1)
            cells.append(f"{acc}; {_range(clusters)}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def gap(number, view, value, of=trained):
    """What a third view adds to SimCLR over the seeds that both have, and its standard error."""
    rows = of(number)
    with_view, without = rows[f"SimCLR + NRCC, {view}"], rows["SimCLR"]
    seeds = sorted(with_view.keys() & without.keys())
    assert len(seeds) >= FEWEST
    gaps = np.array([value(with_view[seed]) - value(without[seed]) for seed in seeds])
    return f"{gaps.mean():.1f} ± {gaps.std(ddof=1) / len(gaps) ** 0.5:.1f}"


def third_view():
    """ACC of k-means, GridShift, `SmoothTree` and k-means on the map by each view on each set."""
    said = []
    for by in ("kmeans", "gridshift"):
        for number, title in SETS.items():
            gaps = [gap(number, view, lambda x, by=by: 100 * x[by]["acc"]) for view in VIEWS]
            said.append(f"{', '.join(gaps)} on {title}")
    for by in ("tree", "map"):
        for number, title in SETS.items():
            gaps = [gap(number, view, lambda x, by=by: x[by], found) for view in VIEWS]
            said.append(f"{', '.join(gaps)} on {title}")
    return said


def gains(number):
    """What each view adds to NMI and to ARI of k-means, see `gap`."""
    return [
        gap(number, view, lambda x, by=by: 100 * x["kmeans"][by])
        for by in ("nmi", "ari")
        for view in VIEWS
    ]


def share():
    """The least and largest share of the gradient in a displacement of SGHMC."""
    shares = [
        each["gradient_share"]
        for number in SETS for each in trained(number)["SimCLR + NRCC, SGHMC"].values()
    ]  # fmt: skip
    return f"{min(shares):.5f} to {max(shares):.5f}"


def jumps():
    """The largest change between checkpoints 300 steps apart: of SimCLR and NRCC, ACC and 5-NN."""
    largest = {"acc": 0.0, "knn": 0.0}
    points = {(x["row"], x["step"]): x for x in _stored("curves.jsonl")}
    for (row, step), point in points.items():
        if row.startswith("SimCLR") and step >= 300 and (row, step + 300) in points:
            for by in largest:
                change = abs(points[row, step + 300][by] - point[by])
                largest[by] = max(largest[by], change)
    return f"{largest['acc']:.0f} points", f"{largest['knn']:.1f}"


def others():
    """k-means on the map: the ends of each set; `SmoothTree`: ACC and numbers of two kinds."""
    said = []
    for number, title in SETS.items():
        rows = {row: list(own.values()) for row, own in found(number).items() if len(own) >= FEWEST}
        means = {row: np.mean([x["map"] for x in own]) for row, own in rows.items()}
        best = max(means, key=means.get)
        acc = f"{min(means.values()):.1f} to {tables.mean([x['map'] for x in rows[best]], 1)}"
        trees = [np.mean([x["tree"] for x in own]) for own in rows.values()]
        counts = [x["clusters"] for own in rows.values() for x in own]
        said.append(f"{acc} on {title} ({best})")
        said.append(f"{_ends(trees)} on {title} ({_range(counts)} clusters)")
    return said


def pixels():
    """Without training: k-means on UMAP's map of the pixels, and `SmoothTree`."""
    rows = {}
    for line in _stored("pixels.jsonl"):
        rows.setdefault((line["method"], line["set"].removesuffix("_test")), []).append(line)
    maps, trees = [], []
    for number, title in SETS.items():
        for (method, name), own in rows.items():
            acc = [100 * x["acc"] for x in own]
            if name == number and method.startswith("DROWCULA"):
                maps.append(f"{np.mean(acc):.1f} on {title}")
            if name == number and method == "SmoothTree":
                counts = ", ".join(map(str, dict.fromkeys(x["k"] for x in own)))
                low, high = f"{min(acc):.1f}", f"{max(acc):.1f}"
                acc = low if max(acc) - min(acc) < 0.2 else f"{low} to {high}"
                trees.append(f"{acc} on {title} ({counts} clusters)")
    return [*maps, *trees]


def test_the_table_is_of_the_results():
    readme = (ROOT / "README.md").read_text()
    assert [line for line in table() if line not in readme] == []
    known = {commit for number in SETS for commit in commits(number)}
    assert {commit for commit in known if commit not in readme} == set()


def test_sentences_are_of_the_results():
    readme = _words("README.md")
    said = [*third_view(), share(), *jumps(), *others(), *pixels()]
    assert [words for words in said if words not in readme] == []
    assert f"jumps by up to {jumps()[0]} from" in _words("experiments/real/tables.md")
    lines = [x for number in SETS for own in found(number).values() for x in own.values()]
    lines += [x for x in _stored("pixels.jsonl") if x["method"][:8] in ("DROWCULA", "SmoothTr")]
    assert {x["commit"][:8] for x in lines if x["commit"][:8] not in readme} == set()


def test_what_is_said_of_few_photos_is_of_the_results():
    """The share that is right among those of the highest probability."""
    page = (registry.FOLDER / "number_of_clusters/results.md").read_text()
    part = page.partition("\n## few photos\n")[2].partition("\n## ")[0]
    mean, right = re.search(r"rows and more: .*?([\d.]+): ([\d.]+)\.\n", part).groups()
    said = f"Of three to eight photos of a kind they say little: {mean} ({100 * float(right):.0f})."
    assert said in _words("README.md")


def test_the_gains_in_nmi_and_ari_are_as_they_are_called():
    """By any view about two to three points higher on USPS, and lower on MNIST."""
    for number, sign in (("usps", 1), ("mnist", -1)):
        for change in (float(each.split()[0]) for each in gains(number)):
            assert 1.5 < change * sign < 3.5


def test_training_is_below_pixels_on_the_map_of_usps_where_it_is_said():
    """SimCLR with and without NRCC, and Kernel-InfoNCE."""
    lines = [x for x in _stored("pixels.jsonl") if x["set"] == "usps"]
    on_pixels = np.mean([100 * x["acc"] for x in lines if x["method"].startswith("DROWCULA")])
    below = set()
    for row, own in found("usps").items():
        if np.mean([x["map"] for x in own.values()]) < on_pixels:
            below.add(row)
    views = {f"SimCLR + NRCC, {view}" for view in VIEWS}
    assert below == {"SimCLR", "Kernel-InfoNCE", *views}
