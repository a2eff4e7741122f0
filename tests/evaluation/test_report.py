"""The report: complete, safe, the same twice, written whole or not at all, right in its choices."""

import base64
import html.parser
import io
import itertools
import json
import pathlib
import re
from typing import NamedTuple

import numpy as np
import pytest
from etils import epath
from PIL import Image
from plotly.offline import get_plotlyjs

from cluster_jax.evaluation import exemplars, plots, thumbnails
from cluster_jax.evaluation.content import ReportData
from cluster_jax.evaluation.report import render, write_report

NONE = dict.fromkeys(("acc", "nmi", "ari", "ami"))
LABELED = {"acc": 0.8125, "nmi": 0.7654321, "ari": 0.6, "ami": 0.55}


def make(clusters, *, seed=3, side=8, channels=1, dimensions=3, labels=None, names=None, **changes):
    """A made run: clusters are Gaussian blobs, images noise with their number in the corner."""
    rng = np.random.default_rng(seed)
    clusters = np.asarray(clusters, np.int32)
    n = len(clusters)
    centers = rng.normal(size=(clusters.max() + 1, dimensions)) * 10
    points = (centers[clusters] + rng.normal(size=(n, dimensions))).astype(np.float32)
    images = rng.integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    metrics = {
        "gridshift": {"n_clusters": len(np.unique(clusters)), "bandwidth": 0.4125}
        | (NONE if labels is None else LABELED),
        "kmeans": {"n_clusters": 7, "k_given": 7, **NONE},
        "knn": {"5": None if labels is None else 0.98765},
        "collapse": {"backbone": {"std": 0.0625, "effective_rank": 17.3}},
    }
    protocol = {"images_trained": 1234, "seed": 2025, "number_of_clusters": {"gridshift": "found"}}
    data = ReportData(
        title="a run",
        results={"provenance": protocol, "metrics": metrics, "images_per_second": 5217.4},
        history=[{"step": s, "loss": 4 / s, "rank": s / 2} for s in range(1, 9)],
        points=points,
        clusters=clusters,
        distances=np.linalg.norm(points - centers[clusters], axis=1).astype(np.float32),
        outliers=None,
        labels=None if labels is None else np.asarray(labels, np.int32),
        label_names=names,
        thumbnails=lambda rows: images[rows],
        sources=None,
        curve={
            "bandwidths": [0.1, 0.2, 0.4],
            "n_clusters": [90, 5, 1],
            "scores": [0.1, 0.9, float("nan")],
            "best_index": 1,
            "verdict": "clear",
            "runners_up": ({"bandwidth": 0.1, "n_clusters": 1_090, "score": 0.12345},),
        },
        skipped=(),
    )
    return data._replace(**changes)


BLOCKS = {"h1", "h2", "h3", "h4", "p", "li", "th", "td", "caption", "option", "title", "label"}


class Page(html.parser.HTMLParser):
    """Tags with attributes, the text outside scripts, and the scripts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.raw, self._inside = [], [], [], None
        self.feed(page)
        self.close()
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None
        self.words.append(" " if tag in BLOCKS else "")

    def handle_data(self, data):
        (self.raw if self._inside in ("script", "style") else self.words).append(data)

    def record(self):
        return json.loads(next(text for text in self.raw if text.startswith("{")))

    def all(self, tag, name, value):
        return [attrs for t, attrs in self.tags if t == tag and attrs.get(name) == value]


def decode(uri):
    """A picture from its data URI."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), "<f4")


CLUSTERS = np.repeat([4, 0, 2], [40, 25, 3])
LABELS = np.concatenate([np.repeat([1, 0], [30, 10]), np.zeros(25, int), [2, 2, 2]])
NAMES = ("cat", "dog", "owl")


def test_says_what_was_found():
    page = Page(render(make(CLUSTERS, labels=LABELS, names=NAMES)))
    assert "68 images fell into 3 groups; the number was not given." in page.text
    assert "Compared with the 3 labels, 81.2% of the images are in the group" in page.text
    assert "0.765" in page.text, "three decimals"
    assert "0.7654" not in page.text
    assert "GridShift 3 found 0.812 0.765 0.600 0.550" in page.text
    assert "k-means 7 – – – –" in page.text
    assert "Embedding backbone effective rank 17.3" in page.text
    assert "Images per second in training 5,217" in page.text
    assert "Images trained 1,234" in page.text
    assert "Seed 2025" in page.text, "not 2,025"
    assert "Cluster 4" in page.text
    assert "40 images, 58.8% of all; 75.0% labeled dog" in page.text
    assert "3 images, 4.4% of all; 100.0% labeled owl" in page.text
    order = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert order == ["metrics", "training", "map", "clusters", "sizes", "bandwidth", "labels"]
    links = {attrs["href"][1:] for tag, attrs in page.tags if tag == "a"}
    assert links <= {attrs.get("id") for _, attrs in page.tags}, "every link has a target"


@pytest.mark.parametrize("undecided", [True, False])
def test_novel_classes_of_a_head_that_may_be_undecided(undecided):
    data = make(CLUSTERS, curve=None)
    found = {"undecided": undecided, "confidence": 0.2104, "novel": {"n_clusters": 5, **NONE}}
    found["novel_classes"] = 5
    data.results["metrics"]["discovery"] = found
    text = Page(render(data)).text
    alert = "The novel head is undecided, its highest probability is 0.210 on average"
    assert (alert in text) == undecided
    assert "Novel head 5 given" in text
    assert "68 images fell into 3 groups; the number was given." in text
    assert "images without a known class, the groups the novel classes" in text
    assert "which is not told their number, finds 3 clusters: see bandwidth" in text


def test_nothing_comes_from_outside():
    text = render(make(CLUSTERS, labels=LABELS, names=NAMES))
    assert get_plotlyjs() in text
    own = text.replace(get_plotlyjs(), "")
    page = Page(own)
    for tag, attrs in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            if name in attrs:
                assert attrs[name].startswith(("data:image/", "#")), (tag, attrs)
    assert "http:" not in own
    assert "https:" not in own
    assert "@import" not in own
    assert not re.search(r"url\(\s*['\"]?(?!#)", own)
    # plotly.js offers to upload a plot unless it is told not to.
    assert "showSendToCloud: false" in own
    assert "modeBarButtons:" in own
    policy = page.all("meta", "http-equiv", "Content-Security-Policy")[0]["content"]
    assert policy.startswith("default-src 'none'")


def test_script_finds_what_it_asks_for():
    page = Page(render(make(CLUSTERS, labels=LABELS, names=NAMES)).replace(get_plotlyjs(), ""))
    script = next(text for text in page.raw if "use strict" in text)
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    asked = set(re.findall(r'element\("([\w-]+)"\)', script))
    assert {"plot-map", "plot-curve", "scalar", "legend"} <= asked <= ids
    assert set(re.findall(r"report\.(\w+)", script)) == set(page.record())
    colors = set(re.findall(r"var\((--\w+)\)", script + json.dumps(page.record())))
    style = next(text for text in page.raw if ":root" in text)
    assert colors - {"--name"} <= set(re.findall(r"(--\w+):", style))


def test_every_picture_has_an_alternative_text_and_every_plot_a_name():
    data = make(CLUSTERS, labels=LABELS, names=NAMES)
    page = Page(render(data._replace(sources=tuple(f"f{i}.png" for i in range(68)))))
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert all("alt" in attrs for attrs in pictures)
    described = [attrs["alt"] for attrs in pictures if attrs["alt"]]
    assert len(described) == 12 + 6 + 6 + 12 + 6 + 6 + 3
    assert all(re.match(r"f\d+\.png, label (cat|dog|owl), distance ", alt) for alt in described)
    assert all(attrs["aria-label"] for attrs in page.all("div", "role", "img"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "no level of headings is skipped"


def test_without_labels_curve_and_history():
    page = Page(render(make(CLUSTERS, curve=None, history=[], dimensions=2)))
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"] == [
        *("metrics", "map", "clusters", "sizes")
    ]
    assert "There are no labels to compare with" in page.text
    assert page.text.count("–") == 8, "a dash for each score of two methods"
    assert not page.all("div", "id", "plot-confusion")
    assert not page.all("div", "id", "plot-curve")
    assert not page.all("div", "id", "plot-history")
    assert not page.all("input", "name", "view"), "points in a plane have no view in space"


def test_one_cluster():
    page = Page(render(make(np.zeros(20), labels=np.zeros(20, int))))
    assert "20 images fell into 1 group; the number was not given." in page.text
    assert "No division into several groups was found" in page.text
    assert "Borderline" not in page.text


def test_one_image_per_cluster():
    page = Page(render(make(np.arange(5))))
    assert "5 images fell into 5 groups" in page.text
    assert page.text.count("All images") == 5
    assert len(page.record()["map"]["traces"]) == 5


def test_a_single_image():
    page = Page(render(make([0], dimensions=5)))
    assert "1 image fell into 1 group; " in page.text


@pytest.mark.parametrize(
    ("channels", "side", "kind"), [(1, 8, "png"), (1, 90, "jpeg"), (3, 32, "jpeg")]
)
def test_pictures_are_those_of_their_images(channels, side, kind):
    # Smooth pictures, so that a JPEG stays near: the color counts the image.
    shade = np.arange(30, dtype=np.uint8) * 8
    images = np.broadcast_to(shade[:, None, None, None], (30, side, side, channels)).copy()
    images[..., 0] //= 2
    data = make(np.arange(30) % 2, thumbnails=lambda rows: images[rows])
    page = Page(render(data))
    seen = 0
    for attrs in (a for tag, a in page.tags if tag == "img" and a["alt"]):
        assert attrs["src"].startswith(f"data:image/{kind};")
        picture = decode(attrs["src"])
        row = int(re.match(r"image (\d+)", attrs["alt"])[1])
        assert picture.shape == (min(side, 80), min(side, 80), 3)[: 2 + (channels == 3)]
        assert np.abs(picture.mean(axis=(0, 1)) - images[row].mean(axis=(0, 1))).max() < 3
        seen += 1
    assert seen == 2 * (12 + 3 + 6)
    sprite = page.record()["map"]["sprite"]
    sheet = decode(sprite["uri"])
    for trace in page.record()["map"]["traces"]:
        for row, thumb in zip(trace["point"], trace["thumb"], strict=True):
            y, x = divmod(thumb, sprite["columns"])
            tile = sheet[y * sprite["height"] :, x * sprite["width"] :]
            tile = tile[: sprite["height"], : sprite["width"]]
            assert tile.shape[0] == tile.shape[1] == min(side, 48)
            assert np.abs(tile.mean(axis=(0, 1)) - images[row].mean(axis=(0, 1))).max() < 3


def test_typical_least_typical_and_borderline():
    # On a line: cluster 0 at 0 to 39 with its center at 0, cluster 1 at 50 to 59.
    x = np.concatenate([np.arange(40), 50 + np.arange(10)])
    order = np.random.default_rng(0).permutation(50)
    points = np.stack([x, 0 * x], 1)[order].astype(np.float32)
    clusters = (x >= 50).astype(np.int32)[order]
    distances = np.where(clusters, points[:, 0] - 50, points[:, 0]).astype(np.float32)
    data = make(clusters)._replace(points=points, distances=distances)
    text = render(data)
    article = text[
        text.index('id="cluster-0"') : text.index('id="cluster-1"', text.index("<article"))
    ]
    parts = dict(zip(*[iter(re.split(r"<h4>(.*?)</h4>", article)[1:])] * 2, strict=True))
    shown = {
        title: x[order[[int(row) for row in re.findall(r'alt="image (\d+),', part)]]].tolist()
        for title, part in parts.items()
    }
    assert shown["Most typical"] == list(range(12))
    assert shown["Least typical"] == [39, 38, 37, 36, 35, 34]
    assert shown["Borderline"] == [39, 38, 37, 36, 35, 34]
    assert article.count("next to cluster 1") == 2 * 6
    assert "All images" in text, "ten images are shown without a division"


def test_frames_and_captions_belong_to_their_images():
    data = make(CLUSTERS, labels=LABELS, names=NAMES)
    tiles = re.findall(r"<li( class=\"odd\")?><img [^>]*alt=\"(.*?)\"", render(data))
    assert len(tiles) == 2 * (12 + 6 + 6) + 3
    common = {4: "dog", 0: "cat", 2: "owl"}
    for odd, alt in tiles:
        row, label, distance = re.match(
            r"image (\d+), label (\w+), distance ([\d.]+)", alt
        ).groups()
        assert label == NAMES[LABELS[int(row)]]
        assert float(distance) == pytest.approx(data.distances[int(row)], rel=6e-3)
        assert bool(odd) == (label != common[CLUSTERS[int(row)]])
    assert any(odd for odd, _ in tiles)


def test_names_are_escaped():
    evil = '</script><img src=x onerror="alert(1)">&<b>$data ${plotly}'
    data = make(
        CLUSTERS,
        labels=LABELS,
        names=("cat", evil, "owl"),
        sources=(evil,) * 68,
        skipped=((evil, evil), ("lone \udcff.jpg", "no image")),
        title=evil,
    )
    text = render(data)
    assert evil not in text
    assert "<img src=x" not in text
    page = Page(text)
    assert evil in page.text, "it is there as text"
    assert all(attrs.get("src", "data:").startswith("data:") for _, attrs in page.tags)
    record = page.record()
    assert record["map"]["traces"][0]["source"][0] == evil
    assert evil in record["confusion"]["labels"]


def test_skipped_files(tmp_path):
    data = make(CLUSTERS, skipped=(("a.jpg", "cut off"), ("lone \udcff.jpg", "no image")))
    write_report(tmp_path / "r.html", data)
    page = Page((tmp_path / "r.html").read_text("utf-8"))
    assert "2 files could not be read" in page.text
    assert "a.jpg" in page.text
    assert "cut off" in page.text
    assert "lone \\udcff.jpg" in page.text, "bytes that are no text are spelled out"
    assert page.all("section", "id", "skipped")
    assert len(page.all("a", "href", "#skipped")) == 2, (
        "from the head and from the list of sections"
    )


def test_losses_that_are_not_finite_are_gaps():
    history = [
        {"step": 5, "rank": 2.0},
        {"step": 10, "loss": 3.0},
        {"step": 20, "rank": float("inf"), "loss": float("nan")},
        {"step": 30, "loss": None, "rank": 7.0, "note": "text"},
        {"step": 40, "loss": 1.0},
        {"step": 40, "loss": 2.0},
    ]
    page = Page(render(make(CLUSTERS, history=history)))
    assert "The loss was not finite at 2 logged steps, first at step 20" in page.text
    assert page.record()["history"] == {
        "loss": {"step": [10, 20, 30, 40], "value": [3.0, None, None, 2.0], "title": "Loss"},
        "rank": {"step": [5, 20, 30], "value": [2.0, None, 7.0], "title": "Rank"},
    }
    assert list(page.record()["history"]) == ["loss", "rank"], "the loss is shown first"


def test_long_histories_are_thinned():
    history = [{"step": s, "loss": float(s)} for s in range(1, 9001)]
    series = plots.history_series(history)["loss"]
    assert len(series["step"]) == plots.HISTORY_STEPS
    assert series["step"][0] == 1
    assert series["step"][-1] == 9000
    assert series["value"] == [float(step) for step in series["step"]]


def test_map_shows_the_principal_axes():
    data = make(np.random.default_rng(0).permutation(CLUSTERS))
    traces = Page(render(data)).record()["map"]["traces"]
    rows = np.concatenate([trace["point"] for trace in traces])
    assert sorted(rows) == list(range(68))
    axes = np.concatenate([np.stack([unpack(t[a]) for a in "xyz"], 1) for t in traces])
    axes = axes[np.argsort(rows)]
    gaps = np.linalg.norm(data.points[:, None] - data.points[None], axis=2)
    np.testing.assert_allclose(np.linalg.norm(axes[:, None] - axes[None], axis=2), gaps, atol=1e-4)
    covariance = np.cov(axes.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-3)
    assert np.all(np.diff(np.diag(covariance)) < 0)
    for trace in traces:
        assert set(trace["cluster"]) == {int(trace["tag"])}
        np.testing.assert_allclose(trace["distance"], data.distances[trace["point"]], rtol=1e-3)


def test_large_sets_are_sampled():
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 80, 25_000)
    clusters[:24_000] %= 30
    calls = []

    def read(rows):
        calls.append(len(rows))
        return np.zeros((len(rows), 4, 4, 1), np.uint8)

    data = make(clusters, thumbnails=read)
    page = Page(render(data))
    chart = page.record()["map"]
    assert chart["count"] == 20_000 == sum(len(trace["point"]) for trace in chart["traces"])
    assert chart["webgl"]
    thumbs = np.concatenate([trace["thumb"] for trace in chart["traces"]])
    assert np.array_equal(np.sort(thumbs[thumbs >= 0]), np.arange(4_000))
    assert max(calls) <= thumbnails.READ_AT_ONCE, "bounded memory"
    shares = [len(t["point"]) / np.sum(clusters == t["cluster"][0]) for t in chart["traces"][:30]]
    np.testing.assert_allclose(shares, 0.8, atol=0.01, err_msg="evenly over the clusters")
    assert len(chart["traces"]) == 61
    assert chart["traces"][60]["tag"] == ""
    assert len([tag for tag, _ in page.tags if tag == "article"]) == 60
    assert "The 60 largest clusters are shown, 20 smaller ones not." in page.text
    assert "20,000 images of 25,000 are drawn" in page.text
    looks = {(trace["color"], trace["symbol"]) for trace in chart["traces"][:60]}
    assert len(looks) == 60, "each shown cluster has a look of its own"


def test_small_sets_are_drawn_without_webgl():
    assert not Page(render(make(np.arange(5_000) % 3))).record()["map"]["webgl"]


def test_clusters_come_by_size_with_ties_by_number():
    groups = plots.by_size(np.array([7, 1, 1, 5, 5, 5, 0]), np.array([0, 2, 1, 3, 1, 2.0, 0]))
    assert [group.id for group in groups] == [5, 1, 0, 7]
    assert groups[0].members.tolist() == [4, 5, 3], "most typical first"


def test_confusion_in_matched_order():
    # Labels 0 1 2 against clusters 0 (most of 2), 1 (most of 0), 2 (a part of 0), 3 (label 1).
    labels = np.repeat([0, 0, 0, 1, 1, 2, 2], [5, 2, 1, 4, 2, 6, 1])
    clusters = np.repeat([1, 2, 0, 3, 1, 0, 2], [5, 2, 1, 4, 2, 6, 1])
    groups = plots.by_size(clusters, np.zeros(21))
    record, hidden = plots.confusion(labels, ("a", "b", "c"), groups)
    assert record["clusters"] == [1, 3, 0, 2]
    assert record["labels"] == ["a", "b", "c"]
    assert record["counts"] == [[5, 0, 1, 2], [2, 4, 0, 0], [0, 0, 6, 1]]
    shares = [[5 / 8, 0, 1 / 8, 2 / 8], [2 / 6, 4 / 6, 0, 0], [0, 0, 6 / 7, 1 / 7]]
    np.testing.assert_allclose(record["shares"], shares, atol=1e-4)
    assert hidden == (0, 0)


def test_confusion_with_more_labels_than_clusters_and_than_fit():
    labels = np.arange(150)
    groups = plots.by_size(labels % 2, np.zeros(150))
    record, hidden = plots.confusion(labels, [str(i) for i in labels], groups)
    assert hidden == (50, 0)
    assert len(record["counts"]) == len(record["labels"]) == 100
    assert record["clusters"] == [0, 1]
    assert record["counts"][:2] == [[1, 0], [0, 1]], "the matched pairs come first"


def test_bandwidth_curve_marks_the_chosen_one():
    page = Page(render(make(CLUSTERS)))
    assert "Chosen: 0.2, which gives 5 clusters." in page.text
    assert page.record()["curve"] == {
        "bandwidths": [0.1, 0.2, 0.4],
        "n_clusters": [90, 5, 1],
        "scores": [0.1, 0.9, None],
        "chosen": 1,
    }
    assert "No clear answer" not in page.text
    assert "One cluster." not in page.text
    assert "1,090 0.1 0.123" in page.text, "the next best answer"
    assert "no clear answer to how many" not in page.text


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("no clear answer", "No clear answer."), ("one cluster", "One cluster.")],
)
def test_verdict_of_the_curve(verdict, words):
    curve = {**make(CLUSTERS).curve, "verdict": verdict, "runners_up": ()}
    page = Page(render(make(CLUSTERS, curve=curve)))
    assert words in page.text
    assert "The next best" not in page.text
    assert ("There is no clear answer to how many groups" in page.text) == ("clear" in verdict)
    del curve["verdict"], curve["runners_up"]
    page = Page(render(make(CLUSTERS, curve={**curve, "clear": False})))
    assert "No clear answer." in page.text


class Answer(NamedTuple):
    bandwidth: float
    n_clusters: int
    score: float


def test_answers_may_be_records():
    curve = {**make(CLUSTERS).curve, "runners_up": [Answer(0.75, 4, 0.5), Answer(0.5, 6, 0.25)]}
    page = Page(render(make(CLUSTERS, curve=curve)))
    assert "Clusters Bandwidth Score 4 0.75 0.500 6 0.5 0.250" in page.text


def test_logged_without_a_finite_value():
    page = Page(render(make(CLUSTERS, history=[{"step": 1, "loss": float("nan")}])))
    assert "Nothing was logged" not in page.text
    assert "Nothing finite was logged" in page.text
    assert "The loss was not finite at 1 logged step" in page.text


def rows_only(**changes):
    """A report on features: no pictures, no training."""
    data = make(CLUSTERS, labels=LABELS, names=NAMES, thumbnails=None, history=[])
    return data._replace(**changes)


def test_rows_without_pictures():
    text = render(rows_only())
    page = Page(text)
    assert "68 rows fell into 3 groups; the number was not given." in page.text
    own = Page(text.replace(get_plotlyjs(), ""))
    assert not re.search(r"\b[Ii]mages?\b(?! per| trained)", own.text)
    assert not [attrs for tag, attrs in page.tags if tag == "img"]
    order = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert order == ["metrics", "map", "clusters", "sizes", "bandwidth", "labels"]
    links = {attrs["href"][1:] for tag, attrs in page.tags if tag == "a"}
    assert links <= {attrs.get("id") for _, attrs in page.tags}
    record = page.record()
    assert record["map"]["sprite"] is None
    assert record["nouns"] == {"thing": "row", "things": "rows"}
    assert {i for trace in record["map"]["traces"] for i in trace["thumb"]} == {-1}
    assert Page(render(make(CLUSTERS))).record()["nouns"]["thing"] == "image"


def _lines(text):
    """Rows of the lists: (cluster, title, cells)."""
    for article in re.findall(r"<article.*?</article>", text, re.S):
        cluster = int(re.search(r'id="cluster-(\d+)"', article)[1])
        for title, table in re.findall(r"<h4>(.*?)</h4>(.*?</tbody>)", article, re.S):
            for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", table, re.S):
                cells = re.findall(r"<t[hd][^>]*?(?:class=\"(.*?)\")?>(.*?)</t[hd]>", row, re.S)
                yield cluster, title, [(kind, Page(cell).text) for kind, cell in cells]


def test_lists_name_rows_labels_distances_and_neighbors():
    sources = tuple(f"r<{i}>" for i in range(68))
    outliers = np.arange(68) % 9 == 1
    data = rows_only(sources=sources, outliers=outliers)
    common = {4: "dog", 0: "cat", 2: "owl"}
    seen = {}
    for cluster, title, cells in _lines(render(data)):
        row = int(re.match(r"r<(\d+)>", cells[0][1])[1])
        assert CLUSTERS[row] == cluster
        assert cells[0][1].endswith("outlier") == outliers[row]
        assert cells[1][1] == NAMES[LABELS[row]]
        assert cells[1][0].endswith("odd") == (NAMES[LABELS[row]] != common[cluster])
        assert float(cells[2][1]) == pytest.approx(data.distances[row], rel=6e-3)
        assert (len(cells) == 4) == (title == "Borderline")
        if title == "Borderline":
            assert int(cells[3][1]) in set(CLUSTERS) - {cluster}
        seen.setdefault((cluster, title), []).append(row)
    assert {key: len(rows) for key, rows in seen.items()} == {
        **{(c, t): 6 for c in (4, 0) for t in ("Most typical", "Least typical", "Borderline")},
        (2, "All rows"): 3,
    }
    order = np.argsort(np.where(CLUSTERS == 4, data.distances, np.inf))[:40].tolist()
    assert seen[4, "Most typical"] == order[:6]
    assert seen[4, "Least typical"] == order[:-7:-1]


def test_rows_without_names_and_labels_are_numbered():
    lines = list(_lines(render(rows_only(labels=None, label_names=None))))
    assert {len(cells) for _, title, cells in lines if title != "Borderline"} == {2}
    assert all(re.fullmatch(r"row \d+", cells[0][1]) for *_, cells in lines)


def test_outliers_are_marked():
    outliers = np.arange(68) % 9 == 1
    mixed = np.random.default_rng(0).permutation(CLUSTERS)
    page = Page(render(make(mixed, outliers=outliers)))
    assert f"{outliers.sum()} images are unlike all others: in 0 further groups" in page.text
    assert "68 images fell into 3 groups" in page.text
    assert "Rings are outliers." in page.text
    for trace in page.record()["map"]["traces"]:
        assert trace["outlier"] == outliers[trace["point"]].astype(int).tolist()
    alts = [attrs["alt"] for tag, attrs in page.tags if tag == "img" and attrs["alt"]]
    for alt in alts:
        assert ("outlier" in alt) == outliers[int(re.match(r"image (\d+)", alt)[1])]
    assert any("outlier" in alt for alt in alts)
    one = Page(render(make(CLUSTERS, outliers=np.arange(68) == 5)))
    assert "1 image is unlike all others" in one.text
    small = Page(render(make(CLUSTERS, outliers=CLUSTERS == 2)))
    assert "68 images fell into 2 groups and 1 small one; the number" in small.text
    bars = [attrs.get("aria-label", "") for _, attrs in small.tags]
    assert any("of the sizes of 2 clusters and 1 small one:" in text for text in bars)
    assert any("68 images in 2 clusters and 1 small one;" in text for text in bars)
    assert "3 images are unlike all others: in 1 further group too small" in small.text
    one = Page(render(make(CLUSTERS, outliers=CLUSTERS != 4)))
    assert "1 group and 2 small ones;" in one.text
    assert "3 groups;" in Page(render(make(CLUSTERS, outliers=CLUSTERS >= 0))).text
    none = Page(render(make(CLUSTERS, outliers=np.zeros(68, bool))))
    assert "unlike all others" not in none.text
    assert "Rings" not in none.text


def test_the_table_counts_small_clusters_apart():
    data = make(CLUSTERS, outliers=CLUSTERS == 2)
    data.results["metrics"]["gridshift"] |= {"n_clusters": 1_003, "n_large": 2}
    page = Page(render(data))
    assert "2 and 1,001 small" in page.text
    assert "large" not in page.text.split("Other measurements")[1].split("Protocol")[0]


def test_a_number_that_was_given():
    results = {
        "provenance": {"number_of_clusters": {"kmeans": "given"}},
        "metrics": {"kmeans": {"n_clusters": 3, **LABELED, "cluster_purity": {"0": 0.123}}},
    }
    page = Page(render(rows_only(results=results, curve=None)))
    assert "68 rows fell into 3 groups; the number was given." in page.text
    assert "Compared with the 3 labels, 81.2% of the rows are in the group" in page.text
    assert "0.123" not in page.text, "what there is one of for each cluster is not listed"


def test_wide_points_stay_quick_and_right():
    """In 200 dimensions the neighbors on the border are those of all pairs."""
    rng = np.random.default_rng(0)
    clusters = np.repeat([0, 1], 300)
    points = rng.normal(size=(600, 200)) + clusters[:, None]
    group = plots.by_size(clusters, np.arange(600.0))[0]
    found = exemplars.borderline(points, clusters, group, 6)
    gaps = np.linalg.norm(points[:300, None] - points[None, 300:], axis=2).min(axis=1)
    assert [i for i, _ in found] == np.argsort(gaps)[:6].tolist()
    assert {other for _, other in found} == {1}
    axes = plots.principal(points)
    _, sizes, vectors = np.linalg.svd(points - points.mean(axis=0))
    np.testing.assert_allclose(np.linalg.norm(axes, axis=0), sizes[:3])
    np.testing.assert_allclose(np.abs(axes), np.abs((points - points.mean(0)) @ vectors[:3].T))


def test_the_same_data_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_report(tmp_path / name, make(CLUSTERS, labels=LABELS, names=NAMES, channels=3))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_stays_small():
    data = make(np.arange(1797) % 11, labels=np.arange(1797) % 10)
    assert len(render(data).encode()) < 8e6


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(rows):
        raise OSError("no such image")

    with pytest.raises(OSError, match="no such image"):
        write_report(path, make(CLUSTERS, thumbnails=refuse))

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
    assert path.stat().st_size > 1e6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": np.zeros((0, 3))}, r"points must be \[n > 0, d > 1\], got \[0, 3\]"),
        ({"points": np.zeros((68, 1))}, r"got \[68, 1\]"),
        (
            {"distances": np.zeros(67)},
            "distances must have 68 entries, as points, got 67",
        ),
        ({"outliers": np.zeros(3, bool)}, "outliers must have 68 entries, as points, got 3"),
        ({"points": np.full((68, 2), np.nan)}, "points must be finite"),
        (
            {"labels": np.full(68, 3), "label_names": NAMES},
            "labels must be numbers from 0 to 2, got 3",
        ),
        ({"labels": np.full(68, -1)}, "labels must be numbers from 0, got -1"),
        ({"thumbnails": lambda rows: np.zeros((len(rows), 8, 8, 1))}, "thumbnails must be uint8"),
        ({"thumbnails": lambda rows: np.zeros((len(rows), 8, 8, 4), np.uint8)}, "1 or 3"),
    ],
)
def test_arrays_that_do_not_belong_together(changes, message):
    with pytest.raises(ValueError, match=message):
        render(make(CLUSTERS)._replace(**changes))
