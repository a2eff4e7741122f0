"""The report: complete, safe, reproducible, written whole or not at all, right in its choices."""

import base64
import gzip
import html.parser
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from scipy.cluster import hierarchy
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.core import io as files
from cluster_jax.data.images import FACTS
from cluster_jax.nets import pretrained
from cluster_jax.nets.config import LITE2
from cluster_jax.report import (
    duplicates,
    report,
    report_data,
    report_map,
    thumbnails,
)
from cluster_jax.report.report import ReportData, render
from cluster_jax.report.report_data import Changes, Gone
from tests.rows import every_row

NO_SCORES = dict.fromkeys(("acc", "nmi", "ari", "ami"))
SCORES = {"acc": 0.8125, "nmi": 0.7654321, "ari": 0.6, "ami": 0.55}
PHOTOS = tuple(f"2024/{i:02d}.jpg" for i in range(68))
CLUSTERS = np.repeat([4, 0, 2], [40, 25, 3])
LABELS = np.concatenate([np.repeat([1, 0], [30, 10]), np.zeros(25, int), [2, 2, 2]])
NAMES = ("cat", "dog", "owl")
# Of the clusters 0, 2, 4: the first and the last are near each other.
TREE = np.array([[0, 2, 0.25, 2], [1, 3, 0.75, 3]])


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
        points=points,
        cluster_labels=clusters,
        distances=np.linalg.norm(points - centers[clusters], axis=1).astype(np.float32),
        outliers=np.zeros(n, bool),
        is_decided=np.zeros(n, bool),
        true_labels=None if labels is None else np.asarray(labels, np.int32),
        label_names=names,
        fetch_images=lambda rows: images[rows],
    )._replace(**changes)
    if "words" in changes or data.fetch_images is None:
        return data
    return data._replace(words=("image", "cluster") if data.sources is None else ("photo", "group"))


def labeled(**changes):
    """Images with labels."""
    return make(CLUSTERS, labels=LABELS, names=NAMES, **changes)


def repeated():
    """Two groups of duplicates among 68 images: one exact and near, one near."""
    found = duplicates.Duplicates(
        images=np.array([2, 40, 67, 5, 9]),
        groups=np.array([0, 0, 0, 1, 1]),
        is_exact=np.array([True, False, True, False, False]),
        similarities=np.array([1, 0.98765432, 1, 1, 0.97]),
        threshold=0.9625,
        facts=np.full(5, np.array((8, 8, 8, b"2020-01-02T03:04:05", 0, 0), FACTS)),
        keep=np.array([True, False, False, True, False]),
    )
    return found


def rows_only(**changes):
    """Features without images and training."""
    return labeled(**{"fetch_images": None, **changes})


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
    Event("split", 4, 13, (0, 2)),
    Event("emerged", 2, 3),
    Event("merged", 8, 2, (4,)),
    Event("disappeared", 9, 0),
    Event("shrank", 0, 2),
)


@pytest.mark.parametrize("make_page", [labeled, rows_only])
def test_what_changed(make_page):
    """New points of a cluster that grew, births, and what a cluster has lost; by their names."""
    names = {"2": "cats", "9": "old dogs"}
    data = make_page(distances=np.arange(68, dtype=float))._replace(names=names)
    members = {c: np.flatnonzero(data.cluster_labels == c).tolist() for c in (0, 2, 4)}
    new = [members[0][3], members[0][7]]
    is_new = np.isin(np.arange(68), new)
    left = np.full(68, -1)
    left[members[0][10:]] = left[members[2][1]] = 4
    left[members[4][5:7]] = 8
    gone = [
        Gone(0, "a <b>.jpg", np.full((6, 9, 3), 70, np.uint8)),
        Gone(9, "z.jpg", np.full((6, 9, 1), 90, np.uint8)),
        Gone(0, "17", None),
    ]
    changes = Changes(3, is_new, left, EVENTS, {"new": 2, "gone": 1}, tuple(gone))
    page = page_of(data._replace(changes=changes))
    section = page.by_id("changed")
    assert "What changed" in text(section)
    said = f"Update 3: 2 {data.noun}s are new; 1 {data.noun} is gone; 1 {data.group} stayed as it "
    assert said in text(section)
    entries = section.findall(".//h3/..")
    group = data.group.capitalize()
    assert [text(entry.find("h3")) for entry in entries] == [
        f"cats is new (3 {data.noun}s)",
        f"{group} 4 split: 13 {data.noun}s of it now in {group} 0 and cats",
        f"{group} 8 merged into {group} 4 (2 {data.noun}s)",
        f"old dogs disappeared: none of its {data.noun}s is left",
        f"{group} 0 has 2 new {data.noun}s",
        f"{group} 0 lost 2 {data.noun}s",
    ]
    lists = [[e.get("data-points") for e in entry.iter("ul")] for entry in entries]
    shown = [[list(map(int, points.split(","))) for points in each if points] for each in lists]
    assert shown == [
        [members[2]],
        [members[4][:8], members[0][10:18], [members[2][1]]],
        [members[4][5:7]],
        [],
        [new],
        [],
    ]
    words = [[text(p) for p in entry.findall("p")] for entry in entries]
    there = f"Lost, now in {group}"
    assert words[1] == ["Now in it", f"{there} 0", "Lost, now in cats"]
    assert words[2] == [f"{there} 4"]
    images = [image.get("title") for entry in entries for image in entry.iter("img")]
    assert images == ["z.jpg", "a <b>.jpg"]
    for image, pixel in zip(section.iter("img"), (90, 70), strict=True):
        pixels = decode(image.get("src"))
        assert pixels.shape[:2] == (6, 9)
        assert abs(int(pixels.mean()) - pixel) < 4
    assert text(entries[-1].find(".//span[@class='name']")) == "17"
    assert "changed" not in page_of(data).sections()


def test_overview_metrics_and_sections():
    page = page_of(labeled())
    assert text(page.root.find(".//h1")) == "Found 3 clusters in 68 images."
    for words in (
        "The number of clusters was estimated from the data.",
        "GridShift 3 found 0.812 0.765 0.600 0.550",  # three decimals
        "k-means 7 – – – –",
        '"seed": 2025',
    ):
        assert words in page.text, words
    assert page.sections() == ["clusters", "map", "metrics"]
    assert page.by_id("details").get("open") is not None, "where there are labels"
    levels = [int(e.tag[1]) for e in page.root.iter() if re.fullmatch(r"h\d", e.tag)]
    assert levels.count(1) == 1
    check_links(page)
    bare = page_of(make(CLUSTERS, dimensions=2))
    assert bare.sections() == ["clusters", "map", "metrics"]
    assert bare.by_id("details").get("open") is None, "statistics are behind one line"
    assert "Nobody has checked whether the clusters are right" in bare.text
    assert "–" not in bare.text, "no scores"
    assert "ACC" not in bare.text


def check_links(page):
    """Every link has a target, every ID is unique."""
    ids = [element.get("id") for element in page.root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    links = [link.get("href") for link in page.root.iter("a")]
    assert links
    assert {link[1:] for link in links} <= set(ids)


@pytest.mark.parametrize("undecided", [True, False])
def test_novel_classes_of_a_head_that_may_be_undecided(undecided):
    data = make(CLUSTERS)
    novel = {"n_clusters": 5, "purity": 0.625, **NO_SCORES}
    data.results["metrics"]["discovery"] = {
        "undecided": undecided,
        "confidence": 0.2104,
        "novel": novel,
        "novel_classes": 5,
        "labeled_acc": 0.75,
    }
    data.results["provenance"]["images_scored"] = 40
    page = page_of(data._replace(n_known=1))
    ids = [cluster["id"] for cluster in page.record["map"]["clusters"]]
    assert ids == [4, 2, 0], "the known class comes last, although it is not the smallest"
    assert text(page.root.find(".//h1")) == "Found 5 novel classes in 40 unlabeled images."
    assert "the number of novel classes was set in advance" in page.text
    doubt = "highest probability is 0.210 on average: the clusters that assignments.csv lists"
    assert (doubt in page.text) == undecided
    assert "Novel head 5 given GridShift" in page.text


def smooth_tree(metrics, **changes):
    """Clusters 0, 1, 2 by the tree of smoothed features, with probabilities."""
    clusters = np.repeat([0, 1, 2], [40, 25, 3])
    sure = np.linspace(0.4, 1, 68)
    member = Membership(clusters, sure, (clusters + 1) % 3, 1 - sure)
    tree = {"linkage": np.array([[0, 2, 1.5, 2], [1, 3, 4.5, 3]]), "membership": member}
    data = make(clusters, **{**tree, **changes})
    del data.results["metrics"]["gridshift"]
    data.results["metrics"]["tree"] = {"n_clusters": 3, **NO_SCORES, **metrics}
    return data


def test_what_is_said_of_clear_and_unclear_clusters():
    unclear = {"verdict": "unclear", "gap": 0.171}
    page = page_of(smooth_tree(unclear))
    assert "the 3 clusters are a best guess. Their silhouette is 0.17 higher" in page.text
    assert "but some clusters may belong together, or have parts" in page.text
    check_links(page)
    photos = page_of(smooth_tree({"verdict": "clear", "gap": 0.4}, sources=PHOTOS)).text
    said, found, _ = photos.partition("Details: how this was found")
    assert found
    assert "The groups are clearly apart." in said
    assert "of the photos most like this one, 80 % are in this group" in said
    assert "Nobody has said how many groups there are" in said
    for word in ("script ", "terminal", "dimensions", "cluster ", "silhouette", "linkage"):
        assert word not in said, word
    guess = page_of(smooth_tree(unclear, sources=PHOTOS)).text.partition("Details: how")[0]
    assert "The groups are a best guess: they are not clearly apart." in guess
    assert "silhouette" not in guess
    trained = smooth_tree({"verdict": None, "gap": 0.4})
    trained.results["provenance"]["steps"] = 4
    assert trained.words == ("image", "cluster")
    assert "The computer compares" not in page_of(trained).text
    assert "A training drives its own images apart" in page_of(trained).text
    given = smooth_tree(unclear)
    given.results["provenance"]["number_of_clusters"] = {"tree": "given"}
    assert "best guess" not in page_of(given).text
    few = {"verdict": "one_cluster", "gap": None, "rows_clustered": 5, "n_clusters": 1}
    page = page_of(smooth_tree(few)._replace(cluster_labels=np.zeros(68, int), linkage=None))
    assert "There are fewer than 6 different images, too few to look for a number" in page.text
    assert "do not split into several" not in page.text


def test_nothing_comes_from_outside():
    own = render(labeled(linkage=TREE))
    page = Page(own)
    for element in page.root.iter():
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert (element.get(name) or "#").startswith("#"), element.attrib
    for word in ("http:", "https:", "@import"):
        assert word not in own
    assert re.findall(r"url\(.{0,15}", own) == ['url("${image.src}")'], "a blob of the page's own"
    policy = page.root.find(".//meta[@http-equiv='Content-Security-Policy']").get("content")
    assert policy.startswith("default-src 'none'")


def test_script_finds_what_it_asks_for():
    page = page_of(labeled(linkage=TREE))
    script = next(s.text for s in page.root.iter("script") if "use strict" in s.text)
    ids = {element.get("id") for element in page.root.iter()}
    requested = set(re.findall(r'(?:element|copyOf|on)\("([\w-]+)"', script))
    assert {"plot-map", "card", "tree-line", "view", "selection", "step-template"} < requested
    # No duplicates and no doubts.
    assert requested - ids == {"duplicate-groups", "doubts", "kinds", "kinds-asked"}
    assert set(page.record) == {"state", "applied", "words", "map", "tree", "duplicates"}
    assert set(re.findall(r"report\.(\w+)", script)) == {"state", "applied", "duplicates"}
    assert set(re.findall(r"\btree\.(\w+)", script)) == set(page.record["tree"])
    chart = page.record["map"]
    assert set(re.findall(r"\bmap\.(\w+)", script)) == set(chart)
    asked = set(re.findall(r"\babout\.(\w+)", script))
    optional = {
        "part",
        "probability",
        "second_cluster",
        "second_probability",
        "width",
        "height",
        "bytes",
        "digest",
    }
    assert asked - set(chart["columns"]) == optional
    assert set(chart["columns"]) <= asked
    variables = set(re.findall(r"var\((--\w+)\)", script + json.dumps(page.record)))
    style = page.root.find(".//style").text
    assert variables - {"--name"} <= set(re.findall(r"(--\w+):", style))


def results_of(**metrics):
    """Results of one method; `origin` says where its number is from, `rows` how many there were."""
    origin, rows = metrics.pop("origin", "found"), metrics.pop("rows", None)
    used = {} if rows is None else {"rows_used": {"all": rows, "in_report": 68}}
    provenance = {"number_of_clusters": {"gridshift": origin}, **used}
    return {"provenance": provenance, "metrics": {"gridshift": {**SCORES, **metrics}}}


def test_the_page_says_whose_labels_the_network_has_seen():
    """Those of ImageNet, of Lite2; of another network the page claims nothing."""
    for weights, sources, said in [
        (
            LITE2,
            {"sources": PHOTOS},
            "what the photos show. It has learned to see from photos of 1,000 kinds",
        ),
        (LITE2, {}, "what the images show by EfficientNet-Lite2, trained on ImageNet-1k with"),
        (
            "hf:a/b",
            {"sources": PHOTOS},
            "by hf:a/b, whose training data and labels are not known here. Nobody",
        ),
    ]:
        data = smooth_tree({"verdict": "clear", "gap": 0.4}, **sources)
        data.results["provenance"]["pretrained"] = pretrained.describe(weights)
        text = page_of(data).text
        assert said in text
        assert ("each of which a person had labeled" in text) == (weights == LITE2)


@every_row(
    ("data", "words", "absent"),
    [
        (make([0] * 20), ["Found 1 cluster in 20 images.", "do not split into several"], []),
        (make(range(5), dimensions=5), ["Found 5 clusters in 5 images."], ["do not split"]),
        (make([0], labels=[0]), ["Found 1 cluster in 1 image."], []),
        (rows_only(), ["Found 3 clusters in 68 rows."], [" images", "Image"]),
        (
            labeled(outliers=CLUSTERS == 2, results=results_of(n_clusters=1_003, n_large=2)),
            [
                "Found 2 clusters and 1 small one in 68 images.",
                "3 images are outliers: unlike all others, alone or in a cluster that is",
                "Hollow markers are outliers",
                "GridShift 2 and 1,001 small found",
            ],
            [],
        ),
        (labeled(results=results_of(n_clusters=3, verdict="unclear")), ["is uncertain."], []),
        (labeled(results=results_of(n_clusters=3, verdict="clear")), [], ["is uncertain."]),
        (make(CLUSTERS, outliers=CLUSTERS >= 0), ["Found 3 clusters in"], ["small one"]),
        (
            rows_only(results=results_of(n_clusters=3, k_given=5, origin="given")),
            ["The number of clusters was set in advance; 2 of them stayed empty."],
            [],
        ),
        (
            rows_only(results=results_of(n_clusters=7, n_large=5, outliers=4, rows=900)),
            [
                "Found 5 clusters and 2 small ones in 900 rows.",
                "4 rows are outliers",
                "The page shows a random sample of 68 rows;",
            ],
            [],
        ),
    ],
)
def test_numbers_in_words(data, words, absent):
    page = page_of(data)
    assert [each for each in words if each not in page.text] == []
    assert [each for each in absent if each in page.text] == []
    check_links(page)


@every_row(("channels", "side", "kind"), [(1, 8, "png"), (1, 90, "webp"), (3, 64, "webp")])
def test_pictures_are_those_of_their_images(channels, side, kind, monkeypatch):
    # Smooth images, so that a WebP stays near: the color tells the index.
    shade = np.arange(30, dtype=np.uint8) * 8
    images = np.broadcast_to(shade[:, None, None, None], (30, side, side, channels)).copy()
    images[..., 0] //= 2
    data = make(np.arange(30) % 2, fetch_images=lambda rows: images[rows])
    data = data._replace(distances=np.arange(30))  # like ones are neighbors in the sheet
    assert [sheet["column"] for sheet in page_of(data).record["map"]["sheets"]] == ["sample"]
    with monkeypatch.context() as patch:
        patch.setattr(report_map, "SHEET_PIXELS", 30 * (side // 2) ** 2)
        page = page_of(data)
    points, (small, large) = points_of(page), page.record["map"]["sheets"]
    assert (small["column"], large["column"]) == ("sample", "best")
    assert sorted(points["index"][points["best"] >= 0]) == list(range(16)), "8 of each cluster"
    for sheet, size in ((small, side // 2), (large, side)):
        assert sheet["uri"].startswith(f"data:image/{kind};")
        assert (sheet["width"], sheet["height"]) == (size, size)
        pixels = decode(sheet["uri"])
        for row, place in zip(points["index"], points[sheet["column"]], strict=True):
            if place >= 0:
                y, x = divmod(place, sheet["columns"])
                tile = pixels[y * size : (y + 1) * size, x * size : (x + 1) * size]
                assert np.abs(tile.mean(axis=(0, 1)) - images[row].mean(axis=(0, 1))).max() < 3


def test_doubtful_images_are_the_improbable_ones_until_a_person_decides():
    data = smooth_tree({"verdict": "clear", "gap": 0.4}, sources=PHOTOS)
    member = data.membership
    doubts = report.doubtful(data)
    expected = np.flatnonzero(member.probabilities < report.DOUBTFUL).tolist()
    assert [i for i, _ in doubts] == expected, "the least probable first"
    assert [other for _, other in doubts] == member.second_labels[expected].tolist()
    page = page_of(data)
    title = text(page.root.find(".//h1"))
    assert title == f"68 photos, 3 groups; {len(expected)} photos are doubtful."
    points = points_of(page)
    assert points["index"][unpack(page.record["map"]["doubtful"])].tolist() == expected
    np.testing.assert_allclose(points["probability"], member.probabilities[points["index"]], 1e-6)
    labels = data.cluster_labels.copy()
    labels[7] = -1
    sure = {"cluster_labels": labels, "membership": member._replace(labels=labels)}
    decided = data._replace(is_decided=np.arange(68) == 3, **sure)
    assert [i for i, _ in report.doubtful(decided)] == [i for i in expected if i not in (3, 7)]
    points = points_of(page_of(decided))
    assert points["decided"][points["index"] == 3] == 1
    assert report.doubtful(data._replace(fetch_images=None)) == []
    assert report.doubtful(labeled()) == []
    improbable = member._replace(probabilities=np.full(68, 0.3))
    copied = data._replace(membership=improbable, duplicates=repeated())
    asked = {i for i, _ in report.doubtful(copied)}
    assert set(range(68)) - asked == {40, 67, 9}, "what holds for a photo holds for its copies"
    drawn = points_of(page_of(copied))["index"].tolist()
    group = [i for i in drawn if labels[i] == labels[40]]
    assert set(group[-len({40, 67, 9} & set(group)) :]) <= {40, 67, 9}, "copies come last"


def test_one_moment_and_near_copies_are_one_question():
    """Photos within three seconds of each other, one after the other, of the same two groups."""
    facts = np.full(68, np.array((8, 8, 1500, b"", 0, 0), FACTS))
    for point, second in {1: 4, 2: 1, 3: 58, 8: 7, 9: 11, 44: 2}.items():
        facts["taken"][point] = f"2024-05-01T10:00:{second:02d}".encode()
    data = smooth_tree({"verdict": "clear"}, sources=PHOTOS, facts=facts)
    labels = data.cluster_labels
    assert set(labels[[1, 2, 3, 8, 9]]) == {labels[1]} != {labels[44]}
    doubts = [(8, 2), (44, 2), (2, 2), (1, 2), (3, 2), (9, 2), (5, 2), (6, 2), (12, 0)]
    asked = report.questions(data, doubts)
    assert asked == [[8, 2, 1], [44], [3], [9], [5], [6], [12]]
    assert report.questions(data, [(8, 2), (2, 2), (1, 0)]) == [[8], [2], [1]], "other groups"
    # Copies of 2 and 40, and of 5 and 9, of which those in another group are not asked about.
    assert labels[40] != labels[2]
    copied = data._replace(duplicates=repeated())
    assert report.questions(copied, doubts[:6]) == [[8, 2, 1], [44], [3], [9, 5]]
    decided = copied._replace(is_decided=np.arange(68) == 5)
    assert report.questions(decided, [(9, 2)]) == [[9]]
    page = page_of(data._replace(duplicates=None))
    numbers = {i: n for n, i in enumerate(points_of(page)["index"].tolist())}
    doubted = [i for i, _ in report.doubtful(data)]
    questions = report.questions(data, report.doubtful(data))
    assert sorted(i for points in questions for i in points) == sorted(doubted)
    said = [[numbers[i] for i in points] for points in questions]
    assert page.record["map"]["questions"] == said


def test_names_that_are_given_and_suggested():
    data = labeled(linkage=TREE)._replace(names={"2": "owls"})
    data.results["suggested_names"] = {"4": ["goldfish", "tench"], "2": ["owl"]}
    drawn = page_of(data).record["map"]["clusters"]
    assert {c["id"]: (c["name"], c["guess"]) for c in drawn} == {
        4: ("goldfish", "goldfish, tench"),
        0: ("", ""),
        2: ("owls", ""),
    }


def test_hostile_names_stay_text():
    evil = '</script><img src=x onerror="alert(1)">&<b>{{ data }} ${name}\''
    data = labeled(
        sources=(evil,) * 68,
        skipped=((evil, evil), ("lone \udcff.jpg", "no image")),
        duplicates=repeated(),
        title=evil,
        label_names=("cat", evil, "owl"),
    )
    data.results["config"] = {"note": evil}
    for variant in (data, data._replace(fetch_images=None)):
        whole = render(variant)
        assert evil not in whole
        assert "<img src=x" not in whole
        page = Page(whole)
        spaced = " ".join(evil.split())
        assert page.text.count(spaced) >= 4, "kicker, note, skipped file, reason"
        assert page.record["map"]["names"] == [evil] * 68
        assert evil in page.record["map"]["label_names"]


def write_report(path, data):
    """As the outputs of a run are written."""
    files.write(path, render(data).encode("utf-8", "backslashreplace"))


def test_skipped_files(tmp_path):
    data = make(CLUSTERS, skipped=(("a/", "denied"), ("lone \udcff.jpg", "no image")))
    write_report(tmp_path / "r.html", data)
    page = Page((tmp_path / "r.html").read_text("utf-8"))
    assert "1 file and 1 folder could not be read: see Skipped." in page.text
    rows = [[text(cell) for cell in row] for row in page.by_id("skipped").iter("tr")]
    assert rows[1:] == [["a/", "denied"], ["lone \\udcff.jpg", "no image"]], (
        "bytes that are not text are spelled out"
    )


def test_map_shows_the_principal_components():
    data = make(np.random.default_rng(0).permutation(CLUSTERS), dimensions=20)
    page = page_of(data)
    chart, points = page.record["map"], points_of(page)
    rows = points["index"]
    assert sorted(rows) == list(range(68))
    axes = np.stack([unpack(axis) for axis in chart["axes"]], 1)
    centered = data.points - data.points.mean(axis=0)
    _, sizes, vectors = np.linalg.svd(centered, full_matrices=False)
    np.testing.assert_allclose(np.abs(axes), np.abs(centered @ vectors[:2].T)[rows], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(axes, axis=0), sizes[:2], rtol=1e-4)
    signs = np.linalg.lstsq(centered[rows], axes, rcond=None)[0]
    assert np.all(signs[np.abs(signs).argmax(axis=0), range(2)] > 0), "no sign is left to chance"
    np.testing.assert_array_equal(points["cluster"], data.cluster_labels[rows])
    np.testing.assert_allclose(points["distance"], data.distances[rows])
    for cluster in chart["clusters"]:
        of_one = points["cluster"] == cluster["id"]
        assert cluster["size"] == np.sum(of_one)
        assert np.all(np.diff(points["distance"][of_one]) >= 0), "typical ones first"


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
    chart, points = page.record["map"], points_of(page)
    assert chart["n_points"] == 20_000 == len(set(points["index"].tolist()))
    places = points["sample"]
    assert np.array_equal(np.sort(places[places >= 0]), np.arange(4_000))
    assert max(batch_sizes) <= thumbnails.FETCH_BATCH_SIZE, "bounded memory"
    np.testing.assert_array_equal(points["cluster"], clusters[points["index"]])
    shares = np.bincount(points["cluster"])[:30] / np.bincount(clusters)[:30]
    np.testing.assert_allclose(shares, 0.8, atol=0.01, err_msg="evenly over the clusters")
    assert "20,000 images of 25,000 are drawn" in page.text
    has_best = points["best"] >= 0
    assert points["best"].max() + 1 == has_best.sum(), "no larger picture without a point"
    assert (np.bincount(points["cluster"][has_best])[:30] == 8).all()


def test_clusters_come_by_size_with_ties_by_number_and_none_last():
    distances = np.array([0, 2, 1, 3, 1, 2.0, 0, 0, 0, 0])
    labels = np.array([7, 1, 1, 5, 5, 5, 0, -1, -1, -1])
    clusters = report_data.clusters_by_size(labels, distances)
    assert [cluster.id for cluster in clusters] == [5, 1, 0, 7, -1]
    colors = [report_data.COLORS[i] for i in (5, 1, 0, 7)]
    assert [cluster.color for cluster in clusters] == [*colors, "var(--faint)"], "by ID, not size"
    assert clusters[0].members.tolist() == [4, 5, 3], "most typical first"
    page = page_of(labeled(cluster_labels=np.where(np.arange(68) < 30, -1, CLUSTERS), linkage=TREE))
    assert [cluster["id"] for cluster in page.record["map"]["clusters"]] == [0, 4, 2, -1]
    assert sorted(page.record["tree"]["leaves"]) == [0, 2, 4]
    assert text(page.root.find(".//h1")) == "Found 3 clusters in 68 images."


def test_the_file_is_small_and_always_the_same(tmp_path):
    data = make(np.arange(1797) % 11, labels=np.arange(1797) % 10)
    path = tmp_path / "report.html"
    write_report(path, data)
    before = path.read_bytes()
    assert before.startswith(b"<!doctype html>")
    assert len(before) < 2e6
    write_report(path, data)
    assert path.read_bytes() == before


def test_duplicates_section():
    assert "duplicates" not in page_of(labeled()).sections()
    page = page_of(labeled(duplicates=repeated(), sources=PHOTOS))
    words = text(page.by_id("duplicates"))
    assert "5 photos in 2 sets are the same as another one" in words
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
    page = page_of(labeled(duplicates=repeated()._replace(threshold=None)))
    assert "too many images" in text(page.by_id("duplicates"))


def test_tree_of_the_clusters():
    tree = report.tree_record(TREE, groups_of(CLUSTERS))
    leaves = tree["leaves"]
    assert sorted(leaves) == [0, 2, 4]
    assert {leaves[i] for i in tree["merges"][0]} == {0, 4}
    assert set(tree["merges"][1]) == {leaves.index(2), 3}
    assert tree["heights"] == [0.25, 0.75]
    page = page_of(labeled(linkage=TREE))
    assert page.record["tree"] == tree
    assert page.by_id("tree-cut").get("max") == "3"
    assert page_of(make([0] * 9, linkage=np.empty((0, 4)))).record["tree"] is None


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
    assert sorted(report_map.nearest_points(features[30:33], np.array([1]))[0]) == [0, 2]


def test_parts_of_clusters_are_those_of_the_cut_of_wards_tree(monkeypatch):
    """Also where the tree has some of the points alone, and for points in no cluster."""
    rng = np.random.default_rng(4)
    labels = np.repeat([-1, 3, 5, 9], [4, 60, 30, 1])
    features = rng.normal(size=(95, 6)) + 20 * rng.integers(0, 3, (95, 1))
    clusters = report_data.clusters_by_size(labels, rng.uniform(size=95))
    parts, merges, asked = report_data.parts_of_clusters(features, clusters)
    assert set(merges) == {3, 5}
    assert sorted(asked) == [3, 5]
    for known in asked:  # What a person has named or merged is asked about last.
        assert report_data.parts_of_clusters(features, clusters, {known})[2][-1] == known
    assert not parts[np.isin(labels, [-1, 9])].any()
    for cluster in (3, 5):
        ours = parts[labels == cluster]
        linkage = hierarchy.linkage(features[labels == cluster], "ward")
        for n in range(8, 0, -1):
            theirs = hierarchy.fcluster(linkage, n, "maxclust")
            assert adjusted_rand_score(ours, theirs) == 1
            if n > 1:
                ours = np.where(np.isin(ours, merges[cluster][8 - n]), 16 - n, ours)
    monkeypatch.setattr(report_data, "MAX_IN_TREE", 20)
    sampled, merges, _ = report_data.parts_of_clusters(features, clusters)
    kinds = np.where(labels == 3, sampled, -1)
    for pair in merges[3][:5]:
        kinds[np.isin(kinds, pair)] = 8 + merges[3].index(pair)
    third = np.digitize(features.mean(axis=1), [10, 30])
    assert adjusted_rand_score(kinds[labels == 3], third[labels == 3]) == 1
