"""The report: complete, safe, reproducible, written whole or not at all, right in its choices."""

import base64
import gzip
import html.parser
import io
import itertools
import json
import pathlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from etils import epath
from PIL import Image
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cluster_jax.clustering.gridshift import BandwidthCurve, Candidate
from cluster_jax.clustering.living import Event
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.number import CLEAR_GAP
from cluster_jax.data.images import PhotoFacts
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.report import (
    duplicates,
    plots,
    report,
    report_data,
    report_map,
    summary,
    thumbnails,
)
from cluster_jax.report.report import ReportData, render, write_report
from cluster_jax.report.report_data import Changes
from tests.rows import every_row

NO_SCORES = dict.fromkeys(("acc", "nmi", "ari", "ami"))
SCORES = {"acc": 0.8125, "nmi": 0.7654321, "ari": 0.6, "ami": 0.55}
CURVE = BandwidthCurve(
    bandwidths=np.array([0.1, 0.2, 0.4]),
    n_clusters=np.array([90, 5, 1]),
    scores=np.array([0.1, 0.9, np.nan]),
    best_index=1,
    verdict="clear",
    runners_up=(Candidate(0.1, 1_090, 0.12345),),
)
PHOTOS = tuple(f"2024/{i:02d}.jpg" for i in range(68))
CLUSTERS = np.repeat([4, 0, 2], [40, 25, 3])
LABELS = np.concatenate([np.repeat([1, 0], [30, 10]), np.zeros(25, int), [2, 2, 2]])
NAMES = ("cat", "dog", "owl")
# Of the clusters 0, 2, 4: the first and the last are near each other.
TREE = np.array([[0, 2, 0.25, 2], [1, 3, 0.75, 3]])


@pytest.fixture(autouse=True)
def _short_plotlyjs(monkeypatch):
    """Leaves out the four megabytes of plotly.js, which take most of the time to parse."""
    monkeypatch.setattr(report, "get_plotlyjs", lambda: "/* plotly.js */")


def make(clusters, *, seed=3, side=8, channels=1, dimensions=3, labels=None, names=None, **changes):
    """Synthetic data: clusters are Gaussian blobs, images are noise."""
    rng = np.random.default_rng(seed)
    clusters = np.asarray(clusters, np.int32)
    n = len(clusters)
    centers = rng.normal(size=(clusters.max() + 1, dimensions)) * 10
    points = (centers[clusters] + rng.normal(size=(n, dimensions))).astype(np.float32)
    images = rng.integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    metrics = {
        "gridshift": {"n_clusters": len(np.unique(clusters)), "bandwidth": 0.4125}
        | (NO_SCORES if labels is None else SCORES),
        "kmeans": {"n_clusters": 7, "k_given": 7, **NO_SCORES},
        "knn": {"5": None if labels is None else 0.98765},
        "collapse": {"backbone": {"std": 0.0625, "effective_rank": 17.3}},
    }
    provenance = {
        "images_trained": 1234,
        "seed": 2025,
        "number_of_clusters": {"gridshift": "found"},
    }
    data = ReportData(
        title="a run",
        results={"provenance": provenance, "metrics": metrics, "images_per_second": 5217.4},
        history=[{"step": s, "loss": 4 / s, "rank": s / 2} for s in range(1, 9)],
        clustering=Clustering(
            metrics={},
            points=points,
            centers=centers,
            cluster_labels=clusters,
            distances=np.linalg.norm(points - centers[clusters], axis=1).astype(np.float32),
            outliers=np.zeros(n, bool),
            curve=CURVE,
        ),
        true_labels=None if labels is None else np.asarray(labels, np.int32),
        label_names=names,
        fetch_images=lambda rows: images[rows],
    )
    return changed(data, **changes)


def changed(data, **changes):
    """The data with other fields, also those of the clustering."""
    own = {name: changes.pop(name) for name in Clustering._fields if name in changes}
    return data._replace(clustering=data.clustering._replace(**own), **changes)


def labeled(**changes):
    """Images with labels."""
    return make(CLUSTERS, labels=LABELS, names=NAMES, **changes)


def repeated(sources=None):
    """Two groups of duplicates among 68 images: one exact and near, one near."""
    found = duplicates.Duplicates(
        images=np.array([2, 40, 67, 5, 9]),
        groups=np.array([0, 0, 0, 1, 1]),
        is_exact=np.array([True, False, True, False, False]),
        similarities=np.array([1, 0.98765432, 1, 1, 0.97]),
        threshold=0.9625,
        facts=PhotoFacts(*np.full((3, 5), 8), ("2020-01-02T03:04:05",) * 5),
        keep=np.array([True, False, False, True, False]),
    )
    return duplicates.Shown(found, sources)


def rows_only(**changes):
    """Features without images and training."""
    return labeled(**{"fetch_images": None, "history": [], **changes})


def unzip(element):
    return gzip.decompress(base64.b64decode(text(element, scripts=True))).decode()


VOID = {"meta", "img", "input", "br"}
BLOCKS = {"h1", "h2", "h3", "h4", "p", "li", "th", "td", "caption", "option", "title", "label"}


class Page(html.parser.HTMLParser):
    """A page as a tree; a tag that is not closed where it should be is an error."""

    def __init__(self, page):
        super().__init__()
        self._tree = ElementTree.TreeBuilder()
        self._open = []
        self.feed(page)
        self.close()
        assert not self._open
        self.root = self._tree.close()
        self.text = text(self.root)
        self.record = json.loads(unzip(self.by_id("report-data")))

    def handle_starttag(self, tag, attrs):
        self._tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self._tree.end(tag)
        else:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._tree.end(tag)

    def handle_data(self, data):
        if self._open:
            self._tree.data(data)

    def by_id(self, value):
        return self.root.find(f".//*[@id='{value}']")

    def sections(self):
        return [section.get("id") for section in self.root.iter("section")]

    def pictures(self):
        return [image for image in self.root.iter("img") if image.get("alt")]


def text(element, scripts=False):
    """All text of an element in one line, without that of scripts and styles."""

    def pieces(element):
        if element.tag not in ("script", "style") or scripts:
            yield element.text or ""
            for child in element:
                yield from pieces(child)
                yield (" " if child.tag in BLOCKS else "") + (child.tail or "")

    return " ".join("".join(pieces(element)).split())


def page_of(data):
    return Page(render(data))


def decode(uri):
    """An image from its data URI."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["bytes"]), f"<{packed['dtype']}")


def points_of(page):
    """What the map knows of each point: title -> array."""
    chart = page.record["map"]
    columns = {title: unpack(column) for title, column in chart["columns"].items()}
    starts = [0, *(cluster["stop"] for cluster in chart["clusters"])]
    ids = [cluster["id"] for cluster in chart["clusters"]]
    return {**columns, "cluster": np.repeat(ids, np.diff(starts))}


def groups_of(cluster_labels, distances=None):
    distances = np.zeros(len(cluster_labels)) if distances is None else distances
    return report_data.clusters_by_size(np.asarray(cluster_labels), distances)


EVENTS = (
    Event("survived", 2, 3),
    Event("grew", 0, 2),
    Event("split", 4, 25, (0,)),
    Event("emerged", 2, 3),
    Event("disappeared", 9, 0),
)


@pytest.mark.parametrize("make_page", [labeled, rows_only])
def test_what_changed(make_page):
    """New points of a cluster that grew, births, and splits beside their parent."""
    data = make_page(distances=np.arange(68, dtype=float))._replace(names={"2": "cats"})
    new = np.flatnonzero(data.clustering.cluster_labels == 0)[[3, 7]]
    is_new = np.isin(np.arange(68), new)
    page = page_of(data._replace(changes=Changes(3, is_new, EVENTS)))
    section = page.by_id("changed")
    assert "What changed" in text(section)
    assert f"Update 3: 2 {data.noun}s are new; 1 {data.group} stayed as it was." in text(section)
    entries = section.findall(".//h3/..")
    assert [text(entry.find("h3")) for entry in entries] == [
        f"{data.group.capitalize()} 2 (cats) emerged (3 {data.noun}s)",
        f"{data.group.capitalize()} 4 split: 25 {data.noun}s of it now in {data.group} 0",
        f"{data.group.capitalize()} 9 disappeared: none of its {data.noun}s is left",
        f"{data.group.capitalize()} 0 grew by 2 {data.noun}s",
    ]
    shown = [[int(b.get("data-point")) for b in entry.iter("button")] for entry in entries]
    members = {c: np.flatnonzero(data.clustering.cluster_labels == c).tolist() for c in (0, 2, 4)}
    assert shown == [members[2], [*members[4][:8], *members[0][:8]], [], new.tolist()]
    assert "changed" not in page_of(data).sections()


def test_overview_metrics_and_sections():
    page = page_of(labeled())
    assert text(page.root.find(".//h1")) == "Found 3 clusters in 68 images."
    assert "The number of clusters was estimated from the data." in page.text
    assert "Accuracy 81.2%:" in page.text
    assert "(best one-to-one matching with 3 labels)" in page.text
    assert "GridShift 3 found 0.812 0.765 0.600 0.550" in page.text, "three decimals"
    assert "k-means 7 – – – –" in page.text
    assert "Embedding backbone effective rank 17.3" in page.text
    assert "Training images per second 5,217" in page.text
    assert "Provenance Images trained 1,234 Seed 2025" in page.text, "not 2,025"
    assert "Cluster 4 40 images, 58.8% of all; 75.0% labeled dog" in page.text
    assert "Cluster 2 3 images, 4.4% of all; 100.0% labeled owl" in page.text
    names = ["clusters", "doubtful", "map", "sizes", "training", "bandwidth", "labels", "metrics"]
    assert page.sections() == names
    assert page.by_id("details").get("open") is not None, "where there are labels"
    check_links(page)


def check_links(page):
    """Every link has a target, every ID is unique."""
    ids = [element.get("id") for element in page.root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    links = [link.get("href") for link in page.root.iter("a")]
    assert links
    assert {link[1:] for link in links} <= set(ids)


@pytest.mark.parametrize("undecided", [True, False])
def test_novel_classes_of_a_head_that_may_be_undecided(undecided):
    data = make(CLUSTERS, curve=CURVE if undecided else None)
    novel = {"n_clusters": 5, "purity": 0.625, **NO_SCORES}
    data.results["metrics"]["discovery"] = {
        "undecided": undecided,
        "confidence": 0.2104,
        "novel": novel,
        "novel_classes": 5,
        "labeled_acc": 0.75,
    }
    page = page_of(data)
    assert text(page.root.find(".//h1")) == "Found 3 novel classes in 68 unlabeled images."
    assert "their number was set in advance" in page.text
    assert "which is not told that number, finds 3 clusters" in page.text
    assert ("finds 3 clusters: see Bandwidth." in page.text) == undecided
    doubt = "highest probability is 0.210 on average: the clusters of k-means and GridShift, listed"
    assert (doubt in page.text) == undecided
    assert "Novel head 5 given GridShift" in page.text
    assert "Novel head purity 0.625" in page.text
    assert "Novel class discovery: ACC on known classes 0.750" in page.text
    check_links(page)


def smooth_tree(metrics, **changes):
    """Clusters 0, 1, 2 by the tree of smoothed features, with probabilities."""
    clusters = np.repeat([0, 1, 2], [40, 25, 3])
    sure = np.linspace(0.4, 1, 68)
    member = Membership(clusters, sure, (clusters + 1) % 3, 1 - sure)
    data = make(clusters, curve=None, linkage=np.array([[0, 2, 1.5, 2], [1, 3, 4.5, 3]]))
    data = changed(data, **{"membership": member, **changes})
    del data.results["metrics"]["gridshift"]
    data.results["metrics"]["tree"] = {"n_clusters": 3, **NO_SCORES, **metrics}
    return data


def test_levels_and_probabilities_of_the_tree():
    data = smooth_tree({"verdict": "no clear answer", "gap": 0.171})
    page = page_of(data)
    assert "the 3 clusters are a best guess, separated by a silhouette of 0.17 more" in page.text
    assert f"than parts of one cluster (clear: {CLEAR_GAP}). See Tree." in page.text
    assert "The clusters are clear" not in page.text
    assert "joined below the dotted line become one." in page.text
    assert "the farther apart they are (Ward's linkage of the smoothed features)" in page.text
    assert "average linkage" not in page.text
    assert page.record["figures"]["tree"]["layout"]["yaxis"]["title"]["text"] == "distance"
    points, member = points_of(page), data.clustering.membership
    for title, values in (
        ("probability", member.probabilities),
        ("runner_up", member.runners_up),
        ("runner_up_probability", member.runner_up_probabilities),
    ):
        np.testing.assert_allclose(points[title], values[points["index"]], rtol=1e-6)
    check_links(page)
    photos = page_of(smooth_tree({"verdict": "clear", "gap": 0.4}, sources=PHOTOS)).text
    assert "The groups are clearly apart." in photos
    assert "of the photos most like this one, 80 % are in this group" in photos
    assert "Nobody has said how many groups there are" in photos
    assert "half of the groups have" in photos
    assert "only where somebody has said what each photo shows" in photos
    said, found, _ = photos.partition("Details: how this was found")
    assert found
    for word in ("script ", "terminal", "dimensions", "cluster "):
        assert word not in said, word
    for verdict, steps in (("clear", 0), (None, 4)):
        data = smooth_tree({"verdict": verdict, "gap": 0.4}, fetch_images=None)
        data.results["provenance"]["steps"] = steps
        page = page_of(data)
        assert ("The clusters are clear: they are far better separated" in page.text) == (not steps)
        assert ("A training drives its own images apart" in page.text) == (steps > 0)
        assert "No clear answer" not in page.text
    novel = smooth_tree({"verdict": "no clear answer", "gap": 0.17}, membership=None)
    scores = {"n_clusters": 3, **NO_SCORES}
    novel.results["metrics"]["discovery"] = {"novel": scores, "novel_classes": 3}
    page_of_classes = page_of(novel).text
    assert "The tree of smoothed features, which is not told that number, finds 3 clusters." in (
        page_of_classes
    )
    assert "No clear answer" not in page_of_classes
    assert "average linkage" in page_of_classes
    for verdict in ("clear", "no clear answer"):
        given = smooth_tree({"verdict": verdict, "gap": 0.2})
        given.results["provenance"]["number_of_clusters"] = {"tree": "given"}
        said = page_of(given).text
        assert "The clusters are clear" not in said
        assert "No clear answer" not in said
    for _, _, cells in listed_rows(page):
        i = int(text(cells[0]).split()[1])
        assert text(cells[2]) == f"{data.clustering.membership.probabilities[i]:.3f}"


def test_nothing_comes_from_outside(monkeypatch):
    monkeypatch.undo()
    own = render(labeled())
    page = Page(own)
    assert unzip(page.by_id("plotly")) == get_plotlyjs()
    for element in page.root.iter():
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert (element.get(name) or "#").startswith(("data:image/", "#")), element.attrib
    assert "http:" not in own
    assert "https:" not in own
    assert "@import" not in own
    assert re.findall(r"url\(.{0,20}", own) == ['url("${sheet.src}")`);'], (
        "a blob of the page's own"
    )
    # plotly.js offers to upload a plot unless it is told not to.
    assert "showSendToCloud: false" in own
    assert "modeBarButtons:" in own
    policy = page.root.find(".//meta[@http-equiv='Content-Security-Policy']").get("content")
    assert policy.startswith("default-src 'none'")


def test_script_finds_what_it_asks_for():
    page = page_of(labeled(linkage=TREE))
    script = next(s.text for s in page.root.iter("script") if "use strict" in s.text)
    ids = {element.get("id") for element in page.root.iter()}
    requested = set(re.findall(r'(?:element|getElementById| on)\("([\w-]+)"', script))
    requested |= set(re.findall(r'\["([\w-]+)", (?:true|false|1\.5|1 / 1\.5)\]', script))
    assert {"plot-map", "card", "plot-tree", "view", "selection", "decided"} < requested
    absent = {"duplicate-groups", "sort"}  # no duplicates, and nothing to sort by
    assert requested - ids == absent
    record = {"state", "figures", "look", "duplicates"}
    assert set(re.findall(r"report\.(\w+)", script)) == record
    assert set(page.record) == record | {"map", "words", "tree"}
    assert set(re.findall(r"\btree\.(\w+)", script)) - {"layout"} <= set(page.record["tree"])
    chart = page.record["map"]
    assert set(re.findall(r"\bmap\.(\w+)", script)) == set(chart)
    asked = set(re.findall(r"\babout\.(\w+)", script))
    optional = {"probability", "runner_up", "runner_up_probability", "width", "height", "bytes"}
    assert asked - set(chart["columns"]) == set(optional)
    assert set(chart["columns"]) <= asked
    for figure in page.record["figures"].values():
        go.Figure(figure)  # refuses what plotly does not know
    variables = set(re.findall(r"var\((--\w+)\)", script + json.dumps(page.record)))
    style = page.root.find(".//style").text
    assert variables - {"--name"} <= set(re.findall(r"(--\w+):", style))
    # Every figure has a place, every place has a figure.
    places = [e.get("data-figure") for e in page.root.iter() if e.get("data-figure")]
    select = page.root.find(".//select[@data-plot]")
    options = [option.get("value") for option in select.iter("option")]
    assert {*places, *options} == set(page.record["figures"])
    assert select.get("data-plot") == "plot-training"
    assert page.by_id("plot-training").get("data-figure") == options[0]
    buttons = [e for e in page.root.iter("button") if e.get("data-shows")]
    names = ["Cluster 4 40", "Cluster 0 25", "Cluster 2 3"]
    assert [text(button) for button in buttons] == names, "name and size"
    assert [button.get("data-shows") for button in buttons] == ["4", "0", "2"]


def test_every_picture_has_an_alternative_text_and_every_plot_a_name():
    page = page_of(labeled(sources=tuple(f"f{i}.png" for i in range(68))))
    assert all("alt" in image.attrib for image in page.root.iter("img"))
    described = [image.get("alt") for image in page.pictures()]
    assert len(described) == 8 + 8 + 3
    pattern = r"f\d+\.png, Group \d, label (cat|dog|owl)$"
    assert all(re.match(pattern, alt) for alt in described)
    figures = [e.get("aria-label") for e in page.root.iter() if e.get("role") == "img"]
    assert len(figures) == 5
    assert all(figures)
    assert any("Loss: from 4 to 0.5" in figure for figure in figures)
    levels = [int(e.tag[1]) for e in page.root.iter() if re.fullmatch(r"h\d", e.tag)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "no level of headings is skipped"


def test_without_labels_curve_and_history():
    page = page_of(make(CLUSTERS, curve=None, history=[], dimensions=2))
    assert page.sections() == ["clusters", "doubtful", "map", "sizes", "metrics"]
    assert page.by_id("details").get("open") is None, "statistics are behind one line"
    assert "There are no labels to compare with" in page.text
    assert "–" not in page.text, "no scores"
    assert "ACC" not in page.text
    assert "Numbers of clusters Method Clusters GridShift 3 found k-means 7" in page.text
    assert set(page.record["figures"]) == {"sizes"}
    assert "from its widest side" not in page.text


@every_row(
    ("clusters", "headline"),
    [
        (np.zeros(20), "Found 1 cluster in 20 images."),
        (np.arange(5), "Found 5 clusters in 5 images."),
        ([0], "Found 1 cluster in 1 image."),
    ],
)
def test_few_clusters_and_images(clusters, headline):
    page = page_of(make(clusters, labels=0 * np.asarray(clusters, int), dimensions=5))
    n_clusters = len(np.unique(clusters))
    assert text(page.root.find(".//h1")) == headline
    assert ("do not split into several clusters" in page.text) == (n_clusters == 1)
    assert "Borderline" not in [text(title) for title in page.root.iter("h4")]
    assert len(page.record["map"]["clusters"]) == n_clusters


@every_row(("channels", "side", "kind"), [(1, 8, "png"), (1, 90, "webp"), (3, 32, "webp")])
def test_pictures_are_those_of_their_images(channels, side, kind):
    # Smooth images, so that a WebP stays near: the color tells the index.
    shade = np.arange(30, dtype=np.uint8) * 8
    images = np.broadcast_to(shade[:, None, None, None], (30, side, side, channels)).copy()
    images[..., 0] //= 2
    data = make(np.arange(30) % 2, fetch_images=lambda rows: images[rows])
    page = page_of(changed(data, distances=np.arange(30)))  # like ones are neighbors in the sprite
    for image in page.pictures():
        assert image.get("src").startswith(f"data:image/{kind};")
        assert ("pixels" in image.get("class")) == (side <= 32)
        picture = decode(image.get("src"))
        row = int(re.match(r"image (\d+)", image.get("alt"))[1])
        assert picture.shape == (side, side, 3)[: 2 + (kind == "webp")]
        assert np.abs(picture.mean(axis=(0, 1)) - images[row].mean(axis=(0, 1))).max() < 3
    assert len(page.pictures()) == 2 * 8
    sprite = page.record["map"]["sprite"]
    sheet = decode(sprite["uri"])
    points = points_of(page)
    for row, place in zip(points["index"], points["sample"], strict=True):
        y, x = divmod(place, sprite["columns"])
        tile = sheet[y * sprite["height"] :, x * sprite["width"] :]
        tile = tile[: sprite["height"], : sprite["width"]]
        assert tile.shape[0] == tile.shape[1] == side
        assert np.abs(tile.mean(axis=(0, 1)) - images[row].mean(axis=(0, 1))).max() < 3


def test_typical_least_typical_and_borderline():
    # On a line: cluster 0 at 0 to 39 with its center at 0, cluster 1 at 50 to 59.
    x = np.concatenate([np.arange(40), 50 + np.arange(10)])
    order = np.random.default_rng(0).permutation(50)
    points = np.stack([x, 0 * x], 1)[order].astype(np.float32)
    clusters = (x >= 50).astype(np.int32)[order]
    distances = np.where(clusters, points[:, 0] - 50, points[:, 0]).astype(np.float32)
    data = make(clusters, points=points, distances=distances, fetch_images=None)
    large, _ = report.exemplars(data, groups_of(clusters, distances))
    shown = {title: x[order[[i for i, _ in group]]].tolist() for title, group in large.items()}
    assert shown == {
        "Most typical": list(range(6)),
        "Least typical": [39, 38, 37, 36, 35, 34],
        "Borderline": [39, 38, 37, 36, 35, 34],
    }
    assert {neighbor.id for _, neighbor in large["Borderline"]} == {1}
    article = page_of(data).by_id("cluster-0")
    assert [text(title) for title in article.iter("h4")] == list(shown)
    (few,) = report.exemplars(data, groups_of(np.zeros(6, int)))
    assert list(few) == ["All rows"]
    # Images: the most typical, and those that are doubtful.
    data = make(clusters, points=points, distances=distances)
    large, _ = report.exemplars(data, groups_of(clusters, distances))
    assert x[order[[i for i, _ in large["Most typical"]]]].tolist() == list(range(8))
    alts = [image.get("alt") for image in page_of(data).by_id("cluster-0").iter("img")]
    images = [int(re.match(r"image (\d+),", alt)[1]) for alt in alts]
    assert images == [i for i, _ in large["Most typical"]]
    doubts = report.doubtful(data, groups_of(clusters, distances))
    assert x[order[[i for i, _ in doubts]]].tolist() == [*range(39, 33, -1), *range(50, 56)]
    assert [other for _, other in doubts] == [1] * 6 + [0] * 6


def test_doubtful_images_are_the_improbable_ones_until_a_person_decides():
    data = smooth_tree({"verdict": "clear", "gap": 0.4}, sources=PHOTOS)
    sure = data.clustering.membership.probabilities
    doubts = report.doubtful(data, groups_of(data.clustering.cluster_labels))
    expected = np.flatnonzero(sure < report.DOUBTFUL).tolist()
    assert [i for i, _ in doubts] == expected, "the least probable first"
    assert [other for _, other in doubts] == data.clustering.membership.runners_up[
        expected
    ].tolist()
    page = page_of(data)
    headline = f"68 photos, 3 groups; {len(expected)} are doubtful."
    assert text(page.root.find(".//h1")) == headline
    points = points_of(page)
    numbers = unpack(page.record["map"]["doubtful"])
    assert points["index"][numbers].tolist() == expected
    labels = data.clustering.cluster_labels.copy()
    labels[7] = -1
    decided = changed(data, is_decided=np.arange(68) == 3, cluster_labels=labels)
    left = [i for i, _ in report.doubtful(decided, groups_of(labels))]
    assert left == [i for i in expected if i not in (3, 7)]
    page = page_of(decided)
    assert "In no group 1 photo" in page.text
    assert points_of(page)["decided"][points_of(page)["index"] == 3] == 1


def test_borderline_images_are_the_least_probable():
    """Where there are probabilities, the map decides on nothing."""
    data = smooth_tree({"verdict": "clear", "gap": 0.4}, fetch_images=None)
    member = data.clustering.membership
    sure = np.where(np.arange(68) < 6, 1.0, member.probabilities)  # the least probable have no
    runners_up = np.where(np.arange(68) < 6, -1, member.runners_up)  # other cluster
    member = member._replace(probabilities=sure, runners_up=runners_up)
    points = np.zeros((68, 3), np.float32)
    data = changed(data, membership=member, points=points)
    clusters = groups_of(data.clustering.cluster_labels, data.clustering.distances)
    first, second, _ = report.exemplars(data, clusters)
    assert [i for i, _ in first["Borderline"]] == [6, 7, 8, 9, 10, 11]
    assert {neighbor.id for _, neighbor in first["Borderline"]} == {1}
    assert [i for i, _ in second["Borderline"]] == [40, 41, 42, 43, 44, 45]
    assert {neighbor.id for _, neighbor in second["Borderline"]} == {2}
    said = page_of(data).text
    assert "Borderline rows have the lowest probability of their cluster" in said
    assert "closest on the map to another cluster" in page_of(rows_only()).text


def test_suggested_names_are_shown_with_their_clusters():
    data = labeled(linkage=TREE)
    data.results["suggested_names"] = {"4": ["goldfish", "tench"], "2": ["owl"]}
    page = page_of(data)
    assert "Looks like: goldfish, tench" in page.text
    buttons = [text(e) for e in page.root.iter("button") if e.get("data-shows")]
    assert buttons == ["goldfish 40", "Cluster 0 25", "owl 3"]
    fields = [e.get("value") for e in page.root.iter("input") if e.get("class") == "title"]
    last = ["", None]  # of new groups, and of the large view
    assert fields == ["goldfish", "", "owl", *last]
    names = {cluster["id"]: cluster["name"] for cluster in page.record["map"]["clusters"]}
    assert names == {4: "goldfish", 0: "", 2: "owl"}
    assert {leaf["name"] for leaf in page.record["tree"]["leaves"]} == {"goldfish", "", "owl"}
    figures = page.record["figures"]
    assert figures["sizes"]["data"][0]["customdata"] == ["goldfish", "Cluster 0", "owl"]
    assert ["goldfish", 40] in figures["tree"]["data"][2]["customdata"]


def test_few_bars_fill_the_plot():
    for count in (1, 5, 30):
        figure = plots.size_figure(groups_of(np.arange(count)), "image", "cluster")
        assert figure["layout"]["xaxis"]["range"] == [-0.5, count - 0.5]
        share = figure["data"][0]["width"] / count  # of the plot's width
        assert share == pytest.approx(min(0.72 / 8, 0.72 / count))


def test_the_page_says_what_can_be_clicked_and_what_the_line_is():
    said = page_of(labeled(linkage=TREE)).text
    assert "Click one to enlarge it" in said
    keys = [text(row) for row in page_of(labeled()).by_id("keys").iter("tr")]
    assert "Enter enlarge the image" in keys
    assert "joined below the dotted line become one" in said


def test_frames_and_captions_belong_to_their_images():
    data = labeled()
    page = page_of(data)
    common = {4: "dog", 0: "cat", 2: "owl"}
    frames = 0
    for item in page.root.iter("li"):
        image = item.find("button/img")
        if image is not None:
            caption = re.match(r"image (\d+), Cluster (\d), label (\w+)$", image.get("alt"))
            row, label = int(caption[1]), caption[3]
            assert int(caption[2]) == CLUSTERS[row]
            assert label == NAMES[LABELS[row]]
            assert (item.get("class") == "odd") == (label != common[CLUSTERS[row]])
            frames += item.get("class") == "odd"
    assert frames > 0


def test_hostile_names_stay_text():
    evil = '</script><img src=x onerror="alert(1)">&<b>{{ data }} ${plotly}\''
    data = labeled(
        sources=(evil,) * 68,
        skipped=((evil, evil), ("lone \udcff.jpg", "no image")),
        duplicates=repeated(sources=(evil,) * 68),
        title=evil,
        history=[{"step": 1, "loss": 1.0, evil: 2.0}],
        label_names=("cat", evil, "owl"),
    )
    data.results["provenance"]["note"] = evil
    for variant in (data, data._replace(fetch_images=None)):
        whole = render(variant)
        assert evil not in whole
        assert "<img src=x" not in whole
        page = Page(whole)
        spaced = " ".join(evil.split())
        assert page.text.count(spaced) >= 6, "title, kicker, note, label, skipped file, reason"
        assert {image.get("src", "data:")[:5] for image in page.root.iter("img")} <= {"data:"}
        assert page.record["map"]["names"] == [evil] * 68
        assert evil in page.record["map"]["label_names"]
        # plotly reads markup in the texts of a figure.
        figures = page.record["figures"]
        assert "<" not in json.dumps(figures).replace("<extra></extra>", "")
        ticks = figures["confusion"]["layout"]["yaxis"]["ticktext"]
        assert "&lt;/script&gt;&lt;img src=x onerror…" in ticks
        assert html.unescape(figures["training-1"]["layout"]["yaxis"]["title"]["text"]) == evil


def test_skipped_files(tmp_path):
    data = make(CLUSTERS, skipped=(("a.jpg", "cut off"), ("lone \udcff.jpg", "no image")))
    write_report(tmp_path / "r.html", data)
    page = Page((tmp_path / "r.html").read_text("utf-8"))
    assert "2 files could not be read and were left out: see Skipped." in page.text
    rows = [[text(cell) for cell in row] for row in page.by_id("skipped").iter("tr")]
    assert rows[1:] == [["a.jpg", "cut off"], ["lone \\udcff.jpg", "no image"]], (
        "bytes that are not text are spelled out"
    )
    assert len(page.root.findall(".//a[@href='#skipped']")) == 2, "overview and list of sections"
    both = page_of(make(CLUSTERS, skipped=(("a.jpg", "cut off"), ("lost+found/", "denied"))))
    assert "1 file and 1 folder could not be read and were left out" in both.text
    assert "1 file and 1 folder could not be read, or are gone since" in both.text
    one = page_of(make(CLUSTERS, skipped=(("a.jpg", "cut off"),)))
    assert "1 file could not be read and was left out" in one.text


def test_training_curves_and_their_figures():
    history = [
        {"step": 5, "rank": 2.0},
        {"step": 10, "loss": 3.0},
        {"step": 20, "rank": float("inf"), "loss": float("nan")},
        {"step": 30, "loss": None, "rank": 7.0, "note": "text"},
        {"step": 40, "loss": 1.0},
        {"step": 40, "loss": 2.0},
    ]
    curves = plots.training_curves(history)
    assert curves == {
        "loss": {10: 3.0, 20: None, 30: None, 40: 2.0},
        "rank": {5: 2.0, 20: None, 30: 7.0},
    }, "the last value of a step logged twice, None for a gap"
    assert list(curves) == ["loss", "rank"], "the loss first"
    line = go.Figure(plots.training_figure({10: 3.0, 20: 1.0, 30: None, 40: 2.0}, "A & B"))
    assert line.data[0].x == (10, 20, 30, 40)
    assert line.data[0].y == (3.0, 1.0, None, 2.0)
    assert not line.data[0].connectgaps
    assert line.data[0].marker.size == (0, 0, 0, 5), "a marker shows a value between gaps"
    assert line.layout.yaxis.title.text == "A &amp; B"
    page = page_of(make(CLUSTERS, history=history))
    assert "The loss was not finite at 2 logged steps, first at step 20" in page.text
    options = [text(option) for option in page.by_id("scalar").iter("option")]
    assert options == ["Loss", "Rank"]
    assert page.record["figures"]["training-1"]["data"][0]["y"] == [2.0, None, 7.0]
    assert page.record["figures"]["training-1"]["layout"]["yaxis"]["title"]["text"] == "Rank"


def test_long_histories_are_thinned():
    curves = plots.training_curves([{"step": s, "loss": float(s)} for s in range(1, 9001)])
    steps = list(curves["loss"])
    assert len(steps) == plots.MAX_CURVE_STEPS
    assert (steps[0], steps[-1]) == (1, 9000)
    assert list(curves["loss"].values()) == steps


def test_history_without_a_finite_value():
    page = page_of(make(CLUSTERS, history=[{"step": 1, "loss": float("nan")}]))
    assert "No finite value was logged" in page.text
    assert "The loss was not finite at 1 logged step," in page.text
    assert page.by_id("plot-training") is None


def test_size_figure():
    clusters = groups_of(np.repeat([7, 3], [2, 5]))
    (bars,) = go.Figure(plots.size_figure(clusters, "row", "cluster")).data
    assert (bars.x, bars.y) == (("3", "7"), (5, 2))
    assert bars.marker.color == tuple(report_data.COLORS[:2])
    assert bars.hovertemplate == "%{customdata}: %{y:,} rows<extra></extra>"
    assert bars.texttemplate == "%{y:,}"
    many = go.Figure(plots.size_figure(groups_of(np.arange(501)), "row", "cluster"))
    assert len(many.data[0].x) == plots.MAX_BARS == 500
    assert many.data[0].texttemplate is None, "no numbers on narrow bars"
    assert many.data[0].marker.color[60] == "var(--faint)"


@pytest.mark.parametrize("side", [2, 150])
def test_confusion_figure(side):
    labels = np.arange(150)
    names = [f"<{i}>" for i in labels]
    figure = go.Figure(plots.confusion_figure(labels, names, labels % side, "image"))
    (cells,) = figure.data
    assert [list(row[:2]) for row in cells.text[:2]] == [["1", ""], ["", "1"]]
    assert cells.texttemplate == ("%{text}" if side == 2 else "")
    assert cells.x[:2] == ("0", "1")
    assert figure.layout.yaxis.ticktext[:2] == ("&lt;0&gt;", "&lt;1&gt;")
    assert figure.layout.yaxis.autorange == "reversed"
    assert figure.layout.height == 110 + 100 * 14
    # More labels than clusters, and more than fit: the matched pairs come first.
    counts = np.array(cells.customdata)
    assert counts.shape == (100, min(side, 100))
    assert counts[:2, :2].tolist() == [[1, 0], [0, 1]]
    words = page_of(make(labels % side, labels=labels)).text
    assert f"Not drawn: 50 labels and {max(side - 100, 0)} clusters." in words


def test_confusion_in_matched_order():
    # Labels 0 1 2 against clusters 0 (most of 2), 1 (most of 0), 2 (a part of 0), 3 (label 1).
    counts = [5, 2, 1, 4, 2, 6, 1]
    labels = np.repeat([0, 0, 0, 1, 1, 2, 2], counts)
    clusters = np.repeat([1, 2, 0, 3, 1, 0, 2], counts)
    figure = go.Figure(plots.confusion_figure(labels, ("a", "b", "c"), clusters, "image"))
    (cells,) = figure.data
    assert cells.x == ("1", "3", "0", "2")
    assert figure.layout.yaxis.ticktext == ("a", "b", "c")
    counts = [[5, 0, 1, 2], [2, 4, 0, 0], [0, 0, 6, 1]]
    assert np.array_equal(cells.customdata, counts)
    shares = [[5 / 8, 0, 1 / 8, 2 / 8], [2 / 6, 4 / 6, 0, 0], [0, 0, 6 / 7, 1 / 7]]
    np.testing.assert_allclose(cells.z, shares, atol=1e-4)
    assert list(cells.text[0]) == ["5", "", "1", "2"]


def test_bandwidth_figure():
    figure = go.Figure(plots.bandwidth_figure(CURVE))
    counts, scores = figure.data
    assert counts.x == scores.x == (0.1, 0.2, 0.4)
    assert (counts.y, scores.y) == ((90, 5, 1), (0.1, 0.9, None))
    assert (counts.yaxis, scores.yaxis) == (None, "y2")
    layout = figure.layout
    assert layout.xaxis.type == layout.yaxis.type == "log"
    assert layout.xaxis.dtick == "D2", "ticks at 1, 2, 5"
    assert layout.yaxis.dtick == 1, "1, 2, 5 only within a decade"
    assert layout.shapes[0].x0 == layout.shapes[0].x1 == 0.2
    assert layout.annotations[0].text == "selected: 0.2"
    assert layout.annotations[0].x == pytest.approx(np.log10(0.2))
    few = go.Figure(plots.bandwidth_figure(CURVE._replace(n_clusters=np.array([9, 5, 0]))))
    assert few.layout.yaxis.type is None
    assert few.layout.yaxis.rangemode == "tozero"


def test_bandwidth_section():
    page = page_of(make(CLUSTERS))
    assert "Selected: 0.2, which gives 5 clusters." in page.text
    assert "Clusters Bandwidth Score 1,090 0.1 0.123" in page.text, "the next best answer"
    for words in ("No clear answer", "One cluster.", "is uncertain"):
        assert words not in page.text


@pytest.mark.parametrize(
    ("verdict", "words"), [("no clear answer", "No clear answer."), ("one cluster", "One cluster.")]
)
def test_verdict_of_the_curve(verdict, words):
    page = page_of(make(CLUSTERS, curve=CURVE._replace(verdict=verdict, runners_up=())))
    assert words in page.text
    assert "Next best" not in page.text
    assert ("The number of clusters is uncertain. See Bandwidth." in page.text) == (
        verdict == "no clear answer"
    )


def test_map_shows_the_principal_components():
    data = make(np.random.default_rng(0).permutation(CLUSTERS))
    page = page_of(data)
    chart, points = page.record["map"], points_of(page)
    rows = points["index"]
    assert sorted(rows) == list(range(68))
    axes = np.stack([unpack(axis) for axis in chart["axes"]], 1)
    np.testing.assert_allclose(
        axes, report_map.principal_components(data.clustering.points[rows]), atol=1e-4
    )
    covariance = np.cov(axes.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-3)
    assert np.all(np.diff(np.diag(covariance)) < 0)
    np.testing.assert_array_equal(points["cluster"], data.clustering.cluster_labels[rows])
    np.testing.assert_allclose(points["distance"], data.clustering.distances[rows])
    for cluster in chart["clusters"]:
        of_one = points["cluster"] == cluster["id"]
        assert cluster["size"] == np.sum(of_one)
        assert np.all(np.diff(points["distance"][of_one]) >= 0), "typical ones first"
        low, high = np.min(axes[of_one], axis=0), np.max(axes[of_one], axis=0)
        assert np.all((low <= cluster["at"]) & (cluster["at"] <= high)), "the name is at its points"
    assert chart["column"] == "image"


def test_names_on_the_map_are_at_most_of_their_points():
    clusters = np.repeat([0, 1], 40)
    points = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    points[:, 0] += np.repeat([-20, 20], 40)  # the map's first axis
    points[[*range(4), *range(44, 80)], 1] += 10  # a tenth of 0 is up, a tenth of 1 is down
    chart = page_of(changed(make(clusters), points=points)).record["map"]
    axes = np.stack([unpack(axis) for axis in chart["axes"]], 1)
    for cluster, of_one in zip(chart["clusters"], np.split(axes, 2), strict=True):
        distances = np.linalg.norm(of_one - cluster["at"], axis=1)
        assert np.median(distances) < 5, "not at the few that are away"


def test_large_sets_are_sampled(monkeypatch):
    monkeypatch.setattr(report_map, "MAX_POINTS", 20_000)
    monkeypatch.setattr(report_map, "MAX_THUMBNAILS", 4_000)
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 80, 25_000)
    clusters[:24_000] %= 30
    batch_sizes = []

    def fetch(rows):
        batch_sizes.append(len(rows))
        return np.zeros((len(rows), 4, 4, 1), np.uint8)

    page = page_of(make(clusters, fetch_images=fetch))
    chart = page.record["map"]
    points = points_of(page)
    assert chart["n_points"] == 20_000 == len(set(points["index"].tolist()))
    places = points["sample"]
    assert np.array_equal(np.sort(places[places >= 0]), np.arange(4_000))
    assert max(batch_sizes) <= thumbnails.FETCH_BATCH_SIZE, "bounded memory"
    np.testing.assert_array_equal(points["cluster"], clusters[points["index"]])
    shares = np.bincount(points["cluster"])[:30] / np.bincount(clusters)[:30]
    np.testing.assert_allclose(shares, 0.8, atol=0.01, err_msg="evenly over the clusters")
    assert len(chart["clusters"]) == 80
    assert [cluster["at"] is None for cluster in chart["clusters"]] == [False] * 60 + [True] * 20
    assert len(list(page.root.iter("article"))) == 60 + 1, "and the template of the others"
    assert "20,000 images of 25,000 are drawn" in page.text
    assert "4,000 of them have a thumbnail" in page.text
    assert "20 smaller" in [text(button) for button in page.root.iter("button")]
    looks = {(cluster["color"], cluster["symbol"]) for cluster in chart["clusters"][:60]}
    assert len(looks) == 60, "each shown cluster has a look of its own"


def test_clusters_come_by_size_with_ties_by_number():
    clusters = groups_of([7, 1, 1, 5, 5, 5, 0], np.array([0, 2, 1, 3, 1, 2.0, 0]))
    assert [cluster.id for cluster in clusters] == [5, 1, 0, 7]
    assert clusters[0].members.tolist() == [4, 5, 3], "most typical first"


def test_rows_without_images():
    page = page_of(rows_only())
    assert "Found 3 clusters in 68 rows." in page.text
    assert not re.search(r"\b[Ii]mages?\b(?! per| trained)", page.text)
    assert not page.pictures()
    assert page.sections() == ["clusters", "map", "sizes", "bandwidth", "labels", "metrics"]
    check_links(page)
    chart = page.record["map"]
    assert chart["sprite"] is None
    assert chart["column"] == "row"
    assert sorted(points_of(page)["sample"]) == list(range(68))


def listed_rows(page):
    """Rows of the lists: cluster, title, cells."""
    for article in page.root.iter("article"):
        if article.get("id") is None:
            continue  # the template
        cluster = int(article.get("id").removeprefix("cluster-"))
        for sheet in article.iterfind(".//div[h4]"):
            for row in sheet.find(".//tbody"):
                yield cluster, text(sheet.find("h4")), list(row)


def test_lists_name_rows_labels_distances_and_neighbors():
    outliers = np.arange(68) % 9 == 1
    data = rows_only(sources=tuple(f"r<{i}>" for i in range(68)), outliers=outliers)
    common = {4: "dog", 0: "cat", 2: "owl"}
    seen = {}
    for cluster, title, cells in listed_rows(page_of(data)):
        row = int(re.match(r"r<(\d+)>", text(cells[0]))[1])
        assert CLUSTERS[row] == cluster
        assert text(cells[0]).endswith("outlier") == outliers[row]
        assert text(cells[1]) == NAMES[LABELS[row]]
        assert ("odd" in cells[1].get("class")) == (NAMES[LABELS[row]] != common[cluster])
        assert float(text(cells[2])) == pytest.approx(data.clustering.distances[row], rel=6e-3)
        assert (len(cells) == 4) == (title == "Borderline")
        if title == "Borderline":
            assert int(text(cells[3]).split()[1]) in set(CLUSTERS) - {cluster}
        seen.setdefault((cluster, title), []).append(row)
    assert {key: len(rows) for key, rows in seen.items()} == {
        **{(c, t): 6 for c in (4, 0) for t in ("Most typical", "Least typical", "Borderline")},
        (2, "All rows"): 3,
    }
    order = np.argsort(np.where(CLUSTERS == 4, data.clustering.distances, np.inf))[:40].tolist()
    assert seen[4, "Most typical"] == order[:6]
    assert seen[4, "Least typical"] == order[:-7:-1]


def test_rows_without_names_and_labels_are_numbered():
    lines = list(listed_rows(page_of(rows_only(true_labels=None, label_names=None))))
    assert {len(cells) for _, title, cells in lines if title != "Borderline"} == {2}
    assert all(re.fullmatch(r"row \d+", text(cells[0])) for *_, cells in lines)


def test_outliers_are_marked():
    outliers = np.arange(68) % 9 == 1
    mixed = np.random.default_rng(0).permutation(CLUSTERS)
    page = page_of(make(mixed, outliers=outliers))
    assert "8 images are outliers: isolated, or in a cluster that is too small" in page.text
    assert "Found 3 clusters in 68 images" in page.text
    assert "Hollow markers are outliers." in page.text
    points = points_of(page)
    np.testing.assert_array_equal(points["outlier"], outliers[points["index"]])
    alts = [image.get("alt") for image in page.pictures()]
    for alt in alts:
        assert ("outlier" in alt) == outliers[int(re.match(r"image (\d+)", alt)[1])]
    assert any("outlier" in alt for alt in alts)
    one = page_of(make(CLUSTERS, outliers=np.arange(68) == 5))
    assert "1 image is an outlier:" in one.text
    none = page_of(make(CLUSTERS, outliers=np.zeros(68, bool)))
    assert "outlier" not in none.text


def test_small_clusters_are_counted_apart():
    data = make(CLUSTERS, outliers=CLUSTERS == 2)
    data.results["metrics"]["gridshift"] |= {"n_clusters": 1_003, "n_large": 2}
    page = page_of(data)
    assert "Found 2 clusters and 1 small one in 68 images." in page.text
    assert "3 images are outliers: isolated, or in one of the 1 cluster" not in page.text
    assert "3 images are outliers: isolated, or in the cluster that is too small" in page.text
    names = [element.get("aria-label", "") for element in page.root.iter()]
    assert any("of the sizes of 2 clusters and 1 small one:" in name for name in names)
    assert any("68 images in 2 clusters and 1 small one;" in name for name in names)
    assert "GridShift 2 and 1,001 small found" in page.text
    assert "large" not in page.text.split("Other metrics")[1].split("Provenance")[0]
    many = page_of(make(CLUSTERS, outliers=CLUSTERS != 4))
    assert "Found 1 cluster and 2 small ones" in many.text
    assert "28 images are outliers: isolated, or in one of the 2 clusters that are" in many.text
    assert "Found 3 clusters in" in page_of(make(CLUSTERS, outliers=CLUSTERS >= 0)).text


def test_number_of_clusters_set_in_advance():
    results = {
        "provenance": {"number_of_clusters": {"kmeans": "given"}},
        "metrics": {"kmeans": {"n_clusters": 3, **SCORES, "cluster_purity": {"0": 0.123}}},
    }
    page = page_of(rows_only(results=results, curve=None))
    assert "Found 3 clusters in 68 rows." in page.text
    assert "The number of clusters was set in advance." in page.text
    assert "Accuracy 81.2%: the share of rows in the cluster" in page.text
    assert "0.123" not in page.text, "what there is one of per cluster is not listed"
    results["metrics"]["kmeans"]["k_given"] = 5
    said = page_of(rows_only(results=results, curve=None)).text
    assert "The number of clusters was set in advance; 2 of them stayed empty." in said


def test_the_head_of_a_sample_is_about_all_rows():
    used = {"all": 900, "in_report": 68}
    metrics = {"n_clusters": 7, "n_large": 5, "outliers": 4, **SCORES}
    results = {
        "provenance": {"number_of_clusters": {"tree": "found"}, "rows_used": used},
        "metrics": {"tree": metrics},
    }
    page = page_of(rows_only(results=results, curve=None))
    assert "Found 5 clusters and 2 small ones in 900 rows." in page.text
    assert "4 rows are outliers" in page.text
    assert "The page shows a random sample of 68 rows;" in page.text


def test_too_few_rows_for_a_number_of_clusters():
    clusters = np.zeros(6, int)
    data = changed(make(clusters, fetch_images=None), curve=None)
    del data.results["metrics"]["gridshift"]
    few = {"verdict": "one cluster", "gap": None, "rows_clustered": 5}
    data.results["metrics"]["tree"] = {"n_clusters": 1, **NO_SCORES, **few}
    page = page_of(data)
    assert "There are fewer than 6 different rows, too few to look for a number" in page.text
    assert "do not split into several" not in page.text


def test_values_in_words():
    words = {
        None: "–",
        float("nan"): "–",
        True: "yes",
        1234: "1,234",
        1234.5: "1,234",
        0.1234: "0.123",
        12.34: "12.3",
        0.00012345: "0.0001234",
        "text": "text",
    }
    assert {value: summary.format_value(value) for value in words} == words
    assert summary.format_value(0.1234567, decimals=False) == "0.1235"
    assert summary.format_value([]) == "nothing"
    assert summary.format_value({"kmeans": [1, 2], "x": None}) == "k-means 1, 2"
    assert summary.entry_name("knn", "5") == "k-NN accuracy, k = 5"


def test_many_dimensions():
    """In more dimensions than a search tree serves, borderline points are those of all pairs."""
    rng = np.random.default_rng(0)
    clusters = np.repeat([0, 1], 100)
    points = rng.normal(size=(200, 20)) + clusters[:, None]
    pairs = report.borderline(points, clusters, groups_of(clusters, np.arange(200.0))[0], 6)
    gaps = np.linalg.norm(points[:100, None] - points[None, 100:], axis=2).min(axis=1)
    assert pairs == [(i, 1) for i in np.argsort(gaps)[:6].tolist()]
    axes = report_map.principal_components(points)
    centered = points - points.mean(axis=0)
    _, sizes, vectors = np.linalg.svd(centered, full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(axes, axis=0), sizes[:2])
    np.testing.assert_allclose(np.abs(axes), np.abs(centered @ vectors[:2].T))
    signs = np.linalg.lstsq(centered, axes, rcond=None)[0]
    assert np.all(signs[np.abs(signs).argmax(axis=0), range(2)] > 0), "no sign is left to chance"


def test_same_data_give_the_same_bytes_in_a_small_file(tmp_path, monkeypatch):
    monkeypatch.undo()
    data = make(np.arange(1797) % 11, labels=np.arange(1797) % 10)
    for name in ("a", "b"):
        write_report(tmp_path / name, data)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_size < 8e6


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(rows):
        raise OSError("no such image")

    with pytest.raises(OSError, match="no such image"):
        write_report(path, make(CLUSTERS, fetch_images=refuse))

    def disk_full(self, content):
        pathlib.Path(self).write_bytes(content[:1000])
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(type(epath.Path(path)), "write_bytes", disk_full)
        with pytest.raises(OSError, match="disk full"):
            write_report(path, make(CLUSTERS))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"
    write_report(path, make(CLUSTERS))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text().startswith("<!doctype html>")


def test_duplicates_section():
    assert "duplicates" not in page_of(labeled()).sections()
    page = page_of(labeled(duplicates=repeated(PHOTOS)))
    words = text(page.by_id("duplicates"))
    assert "5 images in 2 sets are the same as another one" in words
    assert "Nothing is deleted" in words
    assert "too many" not in words
    first, second = page.record["duplicates"]
    assert first["kind"] == "near", "not all of them are the same"
    assert [image["name"] for image in first["images"]] == [PHOTOS[i] for i in (2, 40, 67)]
    assert [image["index"] for image in first["images"]] == [2, 40, 67]
    assert [image["keep"] for image in first["images"]] == [True, False, False]
    assert [image["keep"] for image in second["images"]] == [True, False]
    assert [first["images"][0][key] for key in ("width", "height", "bytes")] == [8, 8, 8]
    assert first["images"][0]["taken"] == "2020-01-02T03:04:05"
    many = repeated()._replace(duplicates=repeated().duplicates._replace(threshold=None))
    page = page_of(labeled(duplicates=many))
    assert "too many images" in text(page.by_id("duplicates"))


def test_tree_of_the_clusters():
    clusters = groups_of(CLUSTERS)  # 4, 0, 2, by size
    tree, figure = plots.tree_figure(TREE, clusters, "cosine distance")
    numbers = [leaf["id"] for leaf in tree["leaves"]]
    assert sorted(numbers) == [0, 2, 4]
    assert abs(numbers.index(0) - numbers.index(4)) == 1
    assert {numbers[i] for i in tree["merges"][0]} == {0, 4}
    assert set(tree["merges"][1]) == {numbers.index(2), 3}
    assert tree["heights"] == [0.25, 0.75]
    colors = {cluster.id: (cluster.color, cluster.symbol) for cluster in clusters}
    branches, joints, leaves = go.Figure(figure).data
    shown = zip(leaves.customdata, leaves.marker.color, leaves.marker.symbol, strict=True)
    assert {int(t.split()[1]): (color, symbol) for (t, _), color, symbol in shown} == colors
    assert [title for title, _ in leaves.customdata] == [f"Cluster {i}" for i in numbers]
    drawn = dict(zip(joints.y, joints.x, strict=True))
    middle = (numbers.index(0) + numbers.index(4)) / 2
    assert drawn == {0.25: middle, 0.75: (middle + numbers.index(2)) / 2}
    ends = {(x, y) for x, y in zip(branches.x, branches.y, strict=True) if y == 0}
    assert ends == set(zip(leaves.x, leaves.y, strict=True))
    page = page_of(labeled(linkage=TREE))
    assert page.sections()[3] == "tree"
    assert page.record["tree"] == tree
    assert page.by_id("tree-cut").get("max") == "3"


def test_what_is_in_no_cluster_is_last_and_in_no_tree():
    labels = np.where(np.arange(68) < 30, -1, CLUSTERS)  # most of cluster 4
    data = labeled(cluster_labels=labels, linkage=TREE)
    data.results["provenance"]["number_of_clusters"] = {"gridshift": "corrected"}
    page = page_of(data)
    assert [cluster["id"] for cluster in page.record["map"]["clusters"]] == [0, 4, 2, -1]
    assert "the smallest 3;" in page.text, "not the size of what is in none"
    assert sorted(leaf["id"] for leaf in page.record["tree"]["leaves"]) == [0, 2, 4]
    assert "average linkage of the cosine distance" in page.text
    assert "largest clusters are drawn" not in page.text
    assert text(page.root.find(".//h1")) == "Found 3 clusters in 68 images."


def test_trees_of_few_and_of_many_clusters(monkeypatch):
    one = make([0] * 9, linkage=np.empty((0, 4)))
    page = page_of(one)
    assert "tree" not in page.sections()
    assert page.record["tree"] is None
    two = page_of(make([0] * 9 + [1] * 5, linkage=np.array([[0, 1, 0.5, 2]])))
    assert two.record["tree"]["merges"] == [[0, 1]]
    # Without cluster 2, the smallest, its branch is gone and the others stay.
    monkeypatch.setattr(plots, "STYLED_CLUSTERS", 2)
    tree, _ = plots.tree_figure(TREE, groups_of(CLUSTERS), "distance")
    assert {leaf["id"] for leaf in tree["leaves"]} == {0, 4}
    assert (tree["merges"], tree["heights"]) == ([[0, 1]], [0.25])
    hidden_first = np.array([[0, 1, 0.1, 2], [2, 3, 0.6, 3]])
    tree, _ = plots.tree_figure(hidden_first, groups_of(CLUSTERS), "distance")
    assert (tree["merges"], tree["heights"]) == ([[0, 1]], [0.6])
    assert "The 2 largest clusters are drawn." in page_of(labeled(linkage=TREE)).text


def test_a_large_tree_without_its_small_clusters():
    """Drawn clusters meet at the heights at which they meet in the whole tree."""
    rng = np.random.default_rng(0)
    linkage = hierarchy.linkage(rng.normal(size=(90, 4)), "average")
    clusters = groups_of(np.repeat(np.arange(90), rng.permutation(90) + 1))
    tree, _ = plots.tree_figure(linkage, clusters, "distance")
    ids = [leaf["id"] for leaf in tree["leaves"]]
    assert sorted(ids) == sorted(cluster.id for cluster in clusters[:60])
    whole = squareform(hierarchy.cophenet(linkage))
    below = [[i] for i in ids]
    for (left, right), height in zip(tree["merges"], tree["heights"], strict=True):
        assert (whole[np.ix_(below[left], below[right])] == height).all()
        below.append(below[left] + below[right])
    assert sorted(below[-1]) == sorted(ids)


def test_a_point_is_none_of_its_nearest():
    """Not even among more copies of it than there are neighbors, or alone."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 4)).astype(np.float32)
    features[:20] = features[0]
    sample = np.array([0, 13, 19, 30])
    near = report_map.nearest_points(features, sample)
    assert near.shape == (4, report_map.N_NEAREST)
    assert not (near == sample[:, None]).any()
    assert (near[:3] < 20).all()
    gaps = np.linalg.norm(features - features[30], axis=1)
    gaps[30] = np.inf
    np.testing.assert_allclose(gaps[near[3]], np.sort(gaps)[: report_map.N_NEAREST])
    assert report_map.nearest_points(features[:1], np.array([0])).shape == (1, 0)
    assert report_map.nearest_points(features[30:33], np.array([1])).tolist() in (
        [[0, 2]],
        [[2, 0]],
    )
