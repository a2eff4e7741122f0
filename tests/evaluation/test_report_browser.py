"""The report in a browser: hover, large view, keyboard, selection, corrections, no request."""

import csv
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from cluster_jax.evaluation import assignments, report_map
from cluster_jax.evaluation.report import render
from tests.evaluation.test_report import (
    CLUSTERS,
    NAMES,
    TREE,
    changed,
    labeled,
    repeated,
    smooth_tree,
)

NAMES_OF_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES_OF_BROWSERS)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# Before the page's own scripts: what goes wrong, and what is downloaded or copied.
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
window.downloads = [];
URL.createObjectURL = (blob) => { downloads.push(blob.text()); return "#"; };
</script>"""
# After them: the steps of a test, whose result becomes the text of an element.
STEPS = """<script>
addEventListener("load", async () => {
  const $ = (id) => document.getElementById(id);
  const key = (key, target = document.body) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const found = {};
  // A mouse at a place of the map, in pixels from its corner.
  const mouse = (kind, [x, y], more = {}) => {
    const box = $("plot-map").getBoundingClientRect();
    const at = { clientX: box.left + x, clientY: box.top + y, pointerId: 1, pointerType: "mouse" };
    $("plot-map").dispatchEvent(new PointerEvent(kind, { bubbles: true, ...at, ...more }));
  };
  const drag = (corners, more) => {
    mouse("pointerdown", corners[0], more);
    for (const corner of corners) mouse("pointermove", corner, more);
    mouse("pointerup", corners.at(-1), more);
  };
  // Where the card shows a text: tried point by point.
  const placeOf = (text, step = 3) => {
    for (let y = 0; y < $("plot-map").clientHeight; y += step) {
      for (let x = 0; x < $("plot-map").clientWidth; x += step) {
        mouse("pointermove", [x, y]);
        if (!$("card").hidden && $("card").innerText.includes(text)) return [x, y];
      }
    }
    throw Error(`${text} is not on the map`);
  };
  while (!document.body.dataset.ready) await new Promise((resolve) => setTimeout(resolve, 20));
  try { %s } catch (error) { problems.push(String(error.stack)); }
  found.downloads = await Promise.all(downloads);
  found.problems = problems;
  found.requests = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("data:") && !name.startsWith("blob:"));
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});
</script></body>"""


def run(tmp_path, data, steps):
    """What the steps found, in JavaScript, on the page of the data."""
    head, _, rest = render(data).partition("<title>")
    rest = rest.rpartition("</body>")[0]  # plotly.js has the word too
    page = f"{head}{WATCH}<title>{rest}{STEPS % steps}"
    file = tmp_path / "report.html"
    file.write_bytes(page.encode("utf-8", "backslashreplace"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    ended = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="result">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert found, ended.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    result = json.loads(text)
    assert result.pop("problems") == []
    assert result.pop("requests") == []
    return result


def sources(n=68):
    return tuple(f"folder/{i:03d}, a <b>.png" for i in range(n))


def in_order(data, cluster):
    """Indices of a cluster's points, the most typical first."""
    members = np.flatnonzero(data.clustering.cluster_labels == cluster)
    return members[np.argsort(data.clustering.distances[members], kind="stable")].tolist()


def test_hover_and_large_view(tmp_path):
    steps = """
      const place = placeOf("folder/007, a <b>.png");
      found.card = $("card").innerText;
      const pen = $("card").querySelector("canvas").getContext("2d");
      found.picture = pen.getImageData(0, 0, 112, 112).data.some((value) => value > 0);
      mouse("pointerdown", place); mouse("pointerup", place);
      found.first = $("view-name").textContent;
      found.facts = $("view-facts").innerText;
      found.nearest = $("view-nearest").children.length;
      const buttons = $("view-members").querySelectorAll("button");
      found.members = [...buttons].map((button) => button.title);
      key("ArrowRight");
      found.second = $("view-name").textContent;
      key("ArrowLeft"); key("ArrowLeft");
      found.before = $("view-name").textContent;
      found.clusters = ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"].map((name) => {
        key(name);
        return $("view-name").textContent;
      });
      $("view-cluster").click();
      found.closed = !$("view").open;
      found.selected = $("selection-count").textContent;
      document.querySelector("[data-point]").click();
      const { point } = document.querySelector("[data-point]").dataset;
      found.point = [point, $("view-name").textContent];
      found.open = $("view").open;
    """
    data = labeled(sources=sources())
    found = run(tmp_path, data, steps)
    names = {cluster: [sources()[i] for i in in_order(data, cluster)] for cluster in (4, 0, 2)}
    assert found["card"].startswith("Cluster 4")
    assert found["picture"]
    at = names[4].index(sources()[7])  # the arrow keys go from the most to the least typical
    around = [names[4][(at + i) % 40] for i in (-1, 0, 1)]
    assert [found["before"], found["first"], found["second"]] == around
    assert f"Label: {NAMES[data.true_labels[7]]}" in found["facts"]
    assert found["nearest"] == 8
    assert found["members"] == [f"{name}, cluster 4" for name in names[4][:8]]
    assert found["clusters"] == [names[cluster][0] for cluster in (0, 2, 4, 2)]
    assert found["closed"]
    assert found["selected"] == "3 images selected"
    assert found["point"] == [str(in_order(data, 4)[0]), names[4][0]]
    assert found["open"]


def test_a_likelier_runner_up_is_explained_and_names_are_shown(tmp_path):
    steps = """
      found.facts = ["0", "67"].map((point) => {
        document.querySelector(`[data-point="${point}"]`).click();
        return $("view-facts").innerText;
      });
      found.title = $("view-cluster-title").textContent;
      found.choices = [...$("move").options].map((option) => [option.value, option.text]);
      found.groups = $("tree-groups").innerText;
    """
    data = smooth_tree({"verdict": "clear", "gap": 0.4})
    data.results["suggested_names"] = {"2": ["goldfish", "tench"]}
    found = run(tmp_path, data, steps)
    doubted, sure = found["facts"]
    why = "most of its neighbors are there, but it is nearer to the center of its own cluster"
    assert "Probability 0.400, of cluster 1 0.600" in doubted
    assert why in doubted
    assert why not in sure
    assert "Cluster 2 (goldfish)" in sure
    assert found["title"].startswith("Cluster 2 (goldfish), 3 images")
    assert found["choices"][1:] == [["0", "0"], ["1", "1"], ["2", "2 (goldfish)"]]
    assert "2 (goldfish)" in found["groups"]


def test_long_names_do_not_run_into_the_next_ones(tmp_path):
    steps = """
      const names = [...document.querySelectorAll(".strip small:last-child")];
      found.names = names.map((name) => [name.textContent, name.scrollWidth <= name.clientWidth]);
      const boxes = names.map((name) => name.getBoundingClientRect());
      found.apart = boxes[0].right < boxes[1].left && boxes[1].right < boxes[2].left;
      found.lines = Math.round(boxes[0].height / 15.6);  // 12 px x 1.3
    """
    data = smooth_tree({"verdict": "clear", "gap": 0.4})
    names = {"0": ["honeycomb"], "1": ["Staffordshire bullterrier"], "2": ["spider web"]}
    data.results["suggested_names"] = names
    found = run(tmp_path, data, steps)
    assert found["names"] == [[names[key][0], True] for key in "012"]
    assert found["apart"]
    assert found["lines"] == 1, "the gap takes the last letter of honeycomb"


def test_nearest_images_are_nearest_on_the_map(tmp_path):
    data = labeled(sources=sources(), dimensions=2)
    steps = """
      document.querySelector("[data-point='0']").click();
      const buttons = $("view-nearest").querySelectorAll("button");
      found.nearest = [...buttons].map((button) => button.title);
    """
    data = changed(data, distances=np.zeros(68, np.float32))  # so that image 0 is typical
    found = run(tmp_path, data, steps)
    gaps = np.linalg.norm(data.clustering.points - data.clustering.points[0], axis=1)
    nearest = np.argsort(gaps, kind="stable")[1:9]
    assert found["nearest"] == [f"{sources()[i]}, cluster {CLUSTERS[i]}" for i in nearest]


def test_most_alike_images_are_nearest_in_the_features(tmp_path, monkeypatch):
    features = np.random.default_rng(1).normal(size=(68, 5)).astype(np.float32)
    features[10], features[20] = features[30], features[30] + 1e-3
    # The order of the map is not that of the images.
    data = labeled(sources=sources(), features=features, distances=np.arange(68.0)[::-1].copy())
    steps = """
      found.shown = {};
      for (const point of ["39", "30", "1"]) {
        document.querySelector(`[data-point="${point}"]`).click();
        const buttons = $("view-nearest").querySelectorAll("button");
        const titles = [...buttons].map((button) => button.title);
        found.shown[point] = [$("view-nearest-title").textContent, titles];
      }
    """

    def nearest(rows, point):
        order = np.argsort(np.linalg.norm(rows - rows[point], axis=1), kind="stable")
        return [f"{sources()[i]}, cluster {CLUSTERS[i]}" for i in order if i != point][:8]

    found = run(tmp_path, data, steps)
    for point in (39, 30, 1):
        assert found["shown"][str(point)] == ["Most alike", nearest(features, point)]
    monkeypatch.setattr(report_map, "MAX_THUMBNAILS", 2)  # the first and the last on the map
    shown = run(tmp_path, data, steps)["shown"]
    assert shown["39"] == found["shown"]["39"]
    axes = report_map.principal_components(data.clustering.points)
    assert shown["1"] == ["Nearest on the map", nearest(axes, 1)]


def test_duplicates_open_the_large_view(tmp_path, monkeypatch):
    monkeypatch.setattr(report_map, "MAX_THUMBNAILS", 1)  # so that the tile is the only picture
    steps = """
      const tiles = document.querySelectorAll("#duplicates [data-point]");
      found.opened = [...tiles].map((tile) => {
        tile.click();
        return [tile.disabled, $("view").open && $("view-name").textContent];
      });
      const pen = $("view-canvas").getContext("2d");
      found.picture = [3, 5].map((row) => pen.getImageData(224, 28 + 56 * row, 1, 1).data[0]);
      found.shown = $("view-large").contains($("view-canvas"));
    """
    shown = repeated(sources())
    found = run(tmp_path, labeled(sources=sources(), duplicates=shown), steps)
    images = shown.found.images
    assert found["opened"] == [[False, sources()[i]] for i in images]
    assert found["shown"]
    pixels = shown.fetch_images(images[-1:])[0, :, 4, 0]
    assert np.abs(np.array(found["picture"]) - pixels[[3, 5]]).max() < 40, "the pixels of the tile"
    rows = np.arange(100, 168)  # of which none is a duplicate
    found = run(tmp_path, labeled(duplicates=shown._replace(rows=rows)), steps)
    assert found["opened"] == [[True, False]] * 5


def test_the_file_of_an_image_is_shown(tmp_path):
    for name in sources():
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (321, 123)).save(path)
    steps = """
      document.querySelector("[data-point]").click();
      while (!$("view-large").querySelector("img")) {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      const image = $("view-large").querySelector("img");
      found.size = [image.naturalWidth, image.naturalHeight];
      performance.clearResourceTimings();
    """
    folder = (tmp_path / "images").as_uri() + "/"
    assert run(tmp_path, labeled(sources=sources(), folder=folder), steps)["size"] == [321, 123]


def test_selection_and_corrections(tmp_path):
    steps = """
      const [w, h] = [$("plot-map").clientWidth, $("plot-map").clientHeight];
      drag([[1, 1], [w / 2, 1], [w / 2, h - 1], [1, h - 1]]);
      found.count = $("selection-count").textContent;
      found.tiles = $("selection-tiles").children.length;
      $("save").click();
      $("wrong").click();
      $("selection-tiles").querySelector("button").click();
      $("view-move").value = "0";
      $("view-move").dispatchEvent(new Event("change"));
      found.facts = $("view-facts").innerText;
      $("view").close();
      found.corrected = $("corrections-count").textContent;
      const leave = new Event("beforeunload", { cancelable: true });
      dispatchEvent(leave);
      found.asked = leave.defaultPrevented;
      $("save-corrections").click();
      $("undo").click();
      found.undone = $("corrections").hidden;
      key("Escape");
      found.cleared = $("selection").hidden;
    """
    points = np.ones((68, 2), np.float32)
    points[:3] = -1  # the left half of the map
    data = labeled(sources=sources(), points=points)
    found = run(tmp_path, data, steps)
    names = [f'"{sources()[i]}"' for i in in_order(data, 4) if i < 3]
    assert found["count"] == "3 images selected"
    assert found["tiles"] == 3
    selected, corrected = found["downloads"]
    assert selected.splitlines() == ["image,cluster", *(f"{name},4" for name in names)]
    assert corrected.splitlines() == [
        "image,cluster,correction,to",
        f"{names[0]},4,move,0",
        f"{names[1]},4,wrong,",
        f"{names[2]},4,wrong,",
    ]
    assert "move to cluster 0" in found["facts"]
    assert found["corrected"] == "3 images corrected"
    assert found["asked"], "unsaved corrections are not lost without a question"
    assert found["undone"]
    assert found["cleared"]


def test_names_of_clusters(tmp_path):
    steps = """
      const field = (id) => document.querySelector(`[data-cluster="${id}"]`);
      const type = (id, text) => {
        field(id).value = text;
        field(id).dispatchEvent(new Event("change"));
      };
      const texts = (list) => [...list].map((one) => one.textContent);
      const shown = (id) => texts(document.querySelectorAll(`[data-name="${id}"]`));
      const choices = () => texts($("move").options);
      found.before = [shown(0), shown(4)];
      type(0, " cats ");
      type(4, "dogs, small");
      found.after = [shown(0), shown(4)];
      found.choices = choices();
      found.groups = $("tree-groups").innerText;
      found.count = $("corrections-count").textContent;
      $("save-corrections").click();
      type(0, "");
      found.cleared = [shown(0), $("corrections-count").textContent];
      $("undo").click();
      found.undone = [$("corrections").hidden, shown(4), choices(), field(4).value];
    """
    data = labeled(sources=sources(), linkage=TREE)._replace(names={"4": "animals"})
    data = data._replace(results={**data.results, "suggested_names": {"0": ["tabby", "lynx"]}})
    found = run(tmp_path, data, steps)
    assert found["before"] == [["tabby"] * 2, ["animals"] * 2]
    assert found["after"] == [["cats"] * 2, ["dogs, small"] * 2]
    assert found["choices"] == ["cluster …", "0 (cats)", "2", "4 (dogs, small)"]
    assert "0 (cats)" in found["groups"]
    assert found["count"] == "0 images corrected, 2 clusters named"
    assert found["downloads"][0].splitlines() == [
        "image,cluster,correction,to",
        ",0,name,cats",
        ',4,name,"dogs, small"',
    ]
    assert found["cleared"] == [["tabby"] * 2, "0 images corrected, 1 cluster named"]
    choices = ["cluster …", "0 (tabby)", "2", "4 (animals)"]
    assert found["undone"] == [True, ["animals"] * 2, choices, "animals"]


# Lassos, which see the map as it is now, whether or not a frame has been drawn since it changed.
LASSOS = """
  const [w, h] = [$("plot-map").clientWidth, $("plot-map").clientHeight];
  found.size = [w, h];
  const whole = [[1, 1], [w - 1, 1], [w - 1, h - 1], [1, h - 1]];
  const lasso = (corners, more) => {
    drag(corners, more);
    return $("selection").hidden ? 0 : Number($("selection-count").textContent.split(" ")[0]);
  };
  const left = (shift = 0) => [[1, 1], [w / 2 + shift, 1], [w / 2 + shift, h - 1], [1, h - 1]];
  const choose = (name, value) => {
    const radio = document.querySelector(`input[name=${name}][value="${value}"]`);
    radio.checked = true;
    radio.dispatchEvent(new Event("change"));
  };
"""


def test_lasso_zoom_and_pan(tmp_path):
    steps = (
        LASSOS
        + """
      found.all = lasso(whole);
      found.left = lasso(left());
      found.right = lasso([[w / 2, 1], [w - 1, 1], [w - 1, h - 1], [w / 2, h - 1]]);
      lasso(left());
      found.both = lasso([[1, 1], [w - 1, 1], [w - 1, h / 2], [1, h / 2]], { shiftKey: true });
      choose("drag", "move");
      drag([[200, 100], [240, 100]]);
      choose("drag", "select");
      found.panned = lasso(left(40));
      key("0");
      key("+");
      found.zoomed = lasso(whole);
      $("zoom-out").click();
      $("hide-all").click();
      found.hidden = lasso(whole);
      document.querySelector("[data-ranks='1 2']").click();
      found.shown = lasso(whole);
    """
    )
    rng = np.random.default_rng(0)
    data = labeled(sources=sources(), points=rng.uniform(size=(68, 2)).astype(np.float32))
    found = run(tmp_path, data, steps)
    low, high = data.clustering.points.min(axis=0), data.clustering.points.max(axis=0)
    x, y = (data.clustering.points - (low + high) / 2).T
    assert found["all"] == 68
    assert found["left"] == found["panned"] == np.sum(x < 0)
    assert found["right"] == np.sum(x > 0)
    assert found["both"] == np.sum((x < 0) | (y > 0)), "up is up"
    sides = np.array(found["size"])
    room = sides / 2 - 1  # in pixels around the middle
    scale = 1.5 * 0.92 * np.min(sides / (high - low))
    inside = (np.abs(x) * scale < room[0]) & (np.abs(y) * scale < room[1])
    assert found["zoomed"] == np.sum(inside) < 68
    assert found["hidden"] == 0
    assert found["shown"] == np.sum(CLUSTERS == 0)


def test_turned_map(tmp_path):
    steps = (
        LASSOS
        + """
      choose("view", "3");
      found.left = lasso(left());
      choose("drag", "move");
      drag([[10, 100], [10 + 75 * Math.PI, 100]]);
      choose("drag", "select");
      found.quarter = lasso(left());
      choose("drag", "move");
      drag([[100, 10], [100, 10 + 75 * Math.PI]]);
      choose("drag", "select");
      found.above = lasso([[1, 1], [w - 1, 1], [w - 1, h / 2], [1, h / 2]]);
      choose("view", "2");
      found.flat = lasso(left());
    """
    )
    # No point lies near a middle, which moves by pixels with the layout.
    rng = np.random.default_rng(108)
    points = rng.uniform(0.3, 1, size=(68, 3)) * rng.choice([-1, 1], size=(68, 3))
    points = points.astype(np.float32) * [3, 2, 1]
    data = labeled(sources=sources(), points=points)
    found = run(tmp_path, data, steps)
    axes = report_map.principal_components(points)
    axes -= (axes.min(axis=0) + axes.max(axis=0)) / 2
    assert found["left"] == found["flat"] == np.sum(axes[:, 0] < 0)
    assert found["quarter"] == np.sum(axes[:, 2] > 0)
    assert found["above"] == np.sum(axes[:, 0] < 0)


def test_names_in_tables_are_those_of_the_assignments(tmp_path):
    names = (*sources(66), "caf\udce9\\x41.png", 'a "b"\n.png')
    steps = """
      $("find").value = ".png";
      $("find").dispatchEvent(new Event("input"));
      $("save").click();
    """
    found = run(tmp_path, labeled(sources=names), steps)
    saved = [row[0] for row in csv.reader(io.StringIO(found["downloads"][0]))][1:]
    assert sorted(map(assignments.unescaped, saved)) == sorted(names)


def test_find_by_name(tmp_path):
    steps = """
      key("/");
      found.focus = document.activeElement.id;
      $("find").value = "03";
      $("find").dispatchEvent(new Event("input"));
      found.count = $("selection-count").textContent;
      key("Enter", $("find"));
      found.name = $("view-name").textContent;
    """
    found = run(tmp_path, labeled(sources=sources()), steps)
    assert found["focus"] == "find"
    assert found["count"] == f"{sum('03' in name for name in sources())} images selected"
    assert "03" in found["name"]


@pytest.mark.parametrize("changes", [{"fetch_images": None}, {"sources": None}])
def test_rows_and_images_without_names(tmp_path, changes):
    steps = """
      const place = placeOf("Cluster 4");
      found.card = $("card").innerText;
      mouse("pointerdown", place); mouse("pointerup", place);
      found.name = $("view-name").textContent;
      found.large = $("view-large").hidden;
    """
    data = labeled(**{"sources": sources(), **changes})
    found = run(tmp_path, data, steps)
    names = [f"Image {i}" for i in range(68)] if data.sources is None else sources()
    assert found["name"] in names[:40]
    assert found["name"] in found["card"]
    assert found["large"] == (data.fetch_images is None)
