"""What the pages say of trainings, clusters, benchmarks and networks is of the results."""

import functools
import json
import pathlib
import re

import numpy as np
import yaml

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


def _acc(by):
    return lambda metrics: 100 * metrics[by]["acc"]


def third_view():
    """What each view adds to the ACC of k-means on each set."""
    return [
        f"{', '.join(gap(number, view, _acc('kmeans')) for view in VIEWS)} on {title}"
        for number, title in SETS.items()
    ]


def gains(number):
    """What each view adds to NMI and to ARI of k-means, see `gap`."""
    return [
        gap(number, view, lambda x, by=by: 100 * x["kmeans"][by])
        for by in ("nmi", "ari")
        for view in VIEWS
    ]


def nearest(number):
    """What each view adds to the accuracy by the five nearest images, without its error."""
    gaps = [gap(number, view, lambda x: 100 * x["knn"]["5"]) for view in VIEWS]
    return [float(each.split()[0]) for each in gaps]


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
                is_same = max(acc) - min(acc) < 0.2
                acc = f"{np.mean(acc):.1f}" if is_same else _ends(acc)
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
    page = _words("experiments/real/tables.md")
    assert f"jumps by up to {jumps()[0]} from" in page
    assert "where 5-NN hardly moves from step 300 on" in page
    lines = [x for number in SETS for own in found(number).values() for x in own.values()]
    lines += [x for x in _stored("pixels.jsonl") if x["method"][:8] in ("DROWCULA", "SmoothTr")]
    assert {x["commit"][:8] for x in lines if x["commit"][:8] not in readme} == set()


def test_processors_are_those_of_the_results():
    """Fashion-MNIST, and noise and augmentation on MNIST, ran on one core of another one."""
    for number in SETS:
        for one in real.finished(number, registry.stored()):
            about = one.line["provenance"]
            is_late = number == "fashion" or (number == "mnist" and one.row.endswith(VIEWS[1:]))
            machine, devices = ("AMD EPYC", 1) if is_late else ("Intel(R) Xeon(R)", 2)
            assert about["machine"].startswith(machine)
            assert about["devices"] == f"{devices} x cpu"
    late = "Fashion-MNIST, and noise and augmentation on MNIST, ran on one of an AMD EPYC."
    assert f"They ran on two cores of an Intel Xeon; {late}" in _words("README.md")


def test_what_is_said_of_few_photos_is_of_the_results():
    """The share that is right among those of the highest probability."""
    page = (registry.FOLDER / "number_of_clusters/results.md").read_text()
    part = page.partition("\n## few photos\n")[2].partition("\n## ")[0]
    mean, right = re.search(r"rows and more: .*?([\d.]+): ([\d.]+)\.\n", part).groups()
    said = (
        f"they say little: of photos with a mean of {mean}, {100 * float(right):.0f} % are right."
    )
    assert f"Of three to eight photos of a kind {said}" in _words("README.md")


def test_gains_are_as_they_are_called():
    """NMI, ARI and 5-NN by any view: about two to three points more on USPS, fewer on MNIST, ..."""
    for number, low, high in (("usps", 1.5, 3.5), ("mnist", -3.5, -1.5), ("fashion", -0.1, 0.1)):
        for change in (float(each.split()[0]) for each in gains(number)):
            assert low <= change <= high
    assert set(nearest("usps")) == {0.1}
    assert set(nearest("mnist")) <= {-1.1, -1.2}
    assert (min(nearest("fashion")), max(nearest("fashion"))) == (-0.5, -0.3)
    for page in ("README.md", "experiments/README.md"):
        said = "5-NN stays on USPS and falls by about 1.1 on MNIST and 0.3 to 0.5 on Fashion-MNIST."
        assert said in _words(page)


def test_a_third_view_changes_gridshift_where_it_is_said():
    """By more than two standard errors; other changes of it are smaller."""
    changed = {}
    for number in SETS:
        for view in VIEWS:
            mean, error = map(float, gap(number, view, _acc("gridshift")).split(" ± "))
            if abs(mean) > 2 * error:
                changed[number, view] = mean > 0
    rises = {("fashion", "noise"): True, ("fashion", "augmentation"): True}
    assert changed == {**rises, ("mnist", "noise"): False}


def test_what_a_third_view_does_to_clusterers_is_as_it_is_called():
    """Falls, rises or stays, on average over the seeds; and how many changes exceed their error."""
    ways = {
        "gridshift": (trained, _acc("gridshift")),
        "map": (found, lambda line: line["map"]),
        "tree": (found, lambda line: line["tree"]),
    }
    changes = {
        (by, number): [
            tuple(map(float, gap(number, view, value, of).split(" ± "))) for view in VIEWS
        ]
        for by, (of, value) in ways.items() for number in SETS
    }  # fmt: skip
    for by, number, low, high in (
        ("gridshift", "usps", -99, 0), ("gridshift", "mnist", -99, 0),
        ("gridshift", "fashion", 0, 99), ("map", "usps", -99, 0), ("map", "mnist", -99, 0),
        ("map", "fashion", -1, 1), *(("tree", number, -1, 99) for number in SETS),
    ):  # fmt: skip
        assert all(low < mean < high for mean, _ in changes[by, number]), (by, number)
    every = [pair for three in changes.values() for pair in three]
    exceed = sum(abs(mean) > 2 * error for mean, error in every)
    assert f"Of these {len(every)} changes {exceed} exceed two standard errors" in _words(
        "README.md"
    )


def test_the_share_of_the_gradient_on_the_digits():
    cells = registry.cells(registry.find("digits", "methods"), "config")
    (run,) = (cell.run for cell in cells if cell.row.name == "SimCLR + NRCC, SGHMC")
    lines = (registry.stored().find(run._replace(seed=seed)._asdict()) for seed in range(5))
    shares = {f"{line['metrics']['gradient_share']:.5f}" for line in lines}
    assert "0.00015" in shares
    assert shares <= {"0.00014", "0.00015"}
    for page in ("README.md", "experiments/README.md"):
        assert "on these sets (0.00015 on scikit-learn's digits)" in _words(page)


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


def test_what_others_print_is_of_the_file():
    rows = yaml.safe_load((registry.FOLDER / "real/published.yaml").read_text())
    acc = {(method, name): value for method, name, value, *_ in rows}
    usps = ", ".join(f"{acc[name, 'usps']} ({name})" for name in ("DEC", "DEKM"))
    usps += f" and {acc['ConvDEC-DA', 'usps']} (ConvDEC-DA) on USPS"
    mnist = [f"{acc[name, 'mnist']} ({name})" for name in ("N2D", "ConvDEC-DA")]
    assert f"{usps}, {' and '.join(mnist)} on MNIST" in _words("README.md")


def test_what_is_said_of_novel_classes_is_of_the_results():
    cells = registry.cells(registry.find("real", "usps_ncl"), "config")
    lines = [
        registry.stored().find(cell.run._replace(seed=seed)._asdict())
        for cell in cells for seed in range(3)
    ]  # fmt: skip
    novel = tables.mean([100 * x["metrics"]["discovery"]["novel"]["acc"] for x in lines], 1)
    means = [np.mean([_acc(by)(x["metrics"]) for x in lines]) for by in ("kmeans", "gridshift")]
    (commit,) = {x["provenance"]["commit"][:8] for x in lines}
    said = f"has {novel} on these ({commit}, three seeds), k-means on its features {means[0]:.1f}"
    assert f"{said}, GridShift {means[1]:.1f}." in _words("README.md")


@functools.cache
def peers():
    """Set -> method -> its line."""
    sets = {}
    for line in map(json.loads, (registry.FOLDER / "peers.jsonl").read_text().splitlines()):
        sets.setdefault(line["set"], {})[line["method"]] = line
    return sets


def test_what_is_said_of_peers_is_of_the_results():
    readme, measured = _words("README.md"), _words("experiments/README.md")
    ours, theirs = "SmoothTree", ("Leiden", "UMAP + HDBSCAN n/100")
    acc = {k: [f"{v[m]['acc']:.3f}" for m in (*theirs, ours)] for k, v in peers().items()}
    assert len({*acc["imagenette_lite2"][:2]}) == 1
    first = "of Imagenette Leiden and UMAP + HDBSCAN have an ACC of {}, ours has {};"
    second = "of scikit-learn's digits {}, {} and {} (19 clusters);"
    third = "of ten classes of Tiny-ImageNet they have {} and {}, ours {}"
    assert first.format(*acc["imagenette_lite2"][1:]) in readme
    assert second.format(*acc["digits"]) in readme
    assert peers()["digits"][ours]["k"] == 19
    assert third.format(*acc["tiny_imagenet10_lite2"]) in readme
    for title, name, count in (
        ("Imagenette, 10 classes", "imagenette_lite2", "3,000"),
        ("10 classes of Tiny-ImageNet, 64 px", "tiny_imagenet10_lite2", "1,500"),
    ):
        tree, given = (peers()[name][x] for x in (ours, "k-means on smooth rows, k given"))
        scores = f"{tree['k']} | {tree['acc']:.3f}, {tree['nmi']:.3f} | {given['acc']:.3f}"
        assert f"| {title} | {count} | {scores} |" in measured
    few = [own for name, own in peers().items() if name != "tiny95_lite2"]
    mean = np.mean([own["k-means, silhouette"]["acc"] for own in few])
    photos = [own for name, own in peers().items() if name != "digits"]
    times = [own["k-means, silhouette"]["seconds"] / own[ours]["seconds"] for own in photos]
    assert f"k-means by silhouette is as good ({mean:.3f}; better" in measured
    assert f"in {min(times):.0f} to {max(times):.0f} times its CPU time on photos" in measured
    k = peers()["tiny95_lite2"]["k-means, silhouette"]["k"]
    assert f"finds {k} of 95 classes" in measured


def numbers(name, method="SmoothTree"):
    """The lines of a list of `experiments.number_of_clusters`."""
    file = registry.FOLDER / "number_of_clusters/results.jsonl"
    lines = map(json.loads, file.read_text().splitlines())
    return [x for x in lines if (x["list"], x["method"]) == (name, method)]


def test_weaknesses_are_of_the_results():
    guide = _words("experiments/guide/how_it_works.md")
    three = [x for x in numbers("few photos") if "-3x" in x["set"]]
    right = sum(x["k"] == x["true"] for x in three)
    assert f"the number of kinds was right in {right} of {len(three)} sets" in guide
    single = [x["k"] == 1 for x in numbers("one class of photos")]
    assert round(1 / (1 - np.mean(single))) == 6
    assert "By Lite0, a sixth of the sets of a single kind is split." in guide
    rare = [x["overlap"] < 0.5 for x in numbers("rare kinds, Lite2")]
    said = f"by Lite2 {sum(rare)} of {len(rare)} kinds of 6 to 30 are not found"
    assert said in guide
    (iris,) = (x for x in numbers("real") if x["set"] == "iris")
    assert (iris["verdict"], iris["k"], iris["true"]) == ("clear", 2, 3)
    assert "iris is clear, with two clusters of three classes" in _words("README.md")


def test_differences_on_draws_of_photos_are_those_of_the_results():
    """Ours less each of the two peers in README's table, and the standard error."""
    ours = {x["set"]: x["ari"] for x in numbers("photos, Lite2")}
    said = []
    for peer in ("k-means, silhouette", "UMAP + HDBSCAN n/100"):
        more = np.array([ours[x["set"]] - x["ari"] for x in numbers("photos, Lite2", peer)])
        assert len(more) == len(ours) == 20
        said.append(f"{more.mean():.2f} ± {more.std(ddof=1) / len(more) ** 0.5:.2f}")
    assert f"the differences are {' and '.join(said)} (standard error)" in _words("README.md")


def test_peers_that_are_better_on_real_sets_are_counted():
    file = registry.FOLDER / "number_of_clusters/results.jsonl"
    lines = [x for x in map(json.loads, file.read_text().splitlines()) if x["list"] == "real"]
    mean = {
        method: np.mean([x["ari"] for x in lines if x["method"] == method])
        for method in {x["method"] for x in lines}
    }
    better = sum(value > mean["SmoothTree"] for value in mean.values())
    assert better == 3
    assert "On the four real sets three peers have a higher ARI." in _words("experiments/README.md")


def test_evoc_is_recommended_where_it_is_right():
    """For many embeddings in few clusters: of many clusters it finds the number alone."""
    lines = map(
        json.loads, (registry.FOLDER / "number_of_clusters/many.jsonl").read_text().splitlines()
    )
    ari = {x["set"]: x["ari"] for x in lines if x["method"] == "EVoC"}
    assert ari["60,000 rows"] > 0.95
    assert ari["200,000 rows"] < 0.1
    assert "you have many embeddings and few clusters" in _words("experiments/README.md")


def test_what_is_said_of_ids_that_stay_is_of_the_streams():
    lines = [json.loads(x) for x in (ROOT / "experiments/living.jsonl").read_text().splitlines()]
    assert {tables.current(x["code_digest"]) for x in lines} == {
        tables.code_digest(tables.CLUSTERS)
    }
    halves = [[x for x in lines if x["half"] == half] for half in ("choose", "confirm")]
    tails = [[x for x in half if x["kind"] == "long tail"] for half in halves]

    def both(template, name, of=halves, factor=1):
        means = (factor * np.mean([x[name] for x in half]) for half in of)
        return " and ".join(template.format(value) for value in means)

    log, page = _words("experiments/log.md"), _words("experiments/guide/updates.md")
    for said in (
        f"ARI in the end {both('{:.3f}', 'ari')} ",
        f"of a fit of everything {both('{:.3f}', 'full')} ",
        f"id at an update {both('{:.2f} %', 'moved', factor=100)} ",
        f"with long tails {both('{:.2f} %', 'moved', tails, 100)};",
        f"false births {both('{:.2f}', 'false')} ",
        f"kept by a refit {both('{:.3f}', 'clusters_kept')}, rows {both('{:.3f}', 'rows_kept')}.",
    ):
        assert said in log, said
    moved = [np.mean([x["moved"] for x in part]) for part in (*halves, *tails)]
    anew = [1 - np.mean([x["rows_kept"] for x in half]) for half in halves]
    rounded = [f"{100 * value:.0f}" for value in (min(moved), max(moved), min(anew), max(anew))]
    few, many, least, most = rounded
    assert f"moves {few} to {many} % of the rows, clustering all anew {least} to {most} %" in page
