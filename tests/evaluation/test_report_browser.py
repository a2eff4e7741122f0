"""The report in a browser: hover, large view, keyboard, selection, corrections, no request."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from cluster_jax.evaluation.report import render
from tests.evaluation.test_report import CLUSTERS, NAMES, labeled

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


def test_hover_and_large_view(tmp_path):
    steps = """
      const event = { points: [{ curveNumber: 0, pointNumber: 2 }] };
      $("plot-map").emit("plotly_hover", event);
      found.card = $("card").innerText;
      $("plot-map").emit("plotly_click", event);
      found.first = $("view-name").textContent;
      found.facts = $("view-facts").innerText;
      found.nearest = $("view-nearest").children.length;
      key("ArrowRight");
      found.second = $("view-name").textContent;
      key("ArrowLeft"); key("ArrowLeft");
      found.before = $("view-name").textContent;
      $("view").close();
      document.querySelector("[data-point]").click();
      const { point } = document.querySelector("[data-point]").dataset;
      found.point = [point, $("view-name").textContent];
      found.open = $("view").open;
    """
    data = labeled(sources=sources())
    found = run(tmp_path, data, steps)
    point = np.flatnonzero(CLUSTERS == 4)[2]  # of the largest cluster
    members = sorted(np.flatnonzero(CLUSTERS == 4), key=lambda i: data.distances[i])
    names = [sources()[i] for i in members]
    assert found["card"].startswith("Cluster 4")
    assert sources()[point] in found["card"]
    at = members.index(point)  # the arrow keys go from the most to the least typical
    around = [names[(at + i) % 40] for i in (-1, 0, 1)]
    assert [found["before"], found["first"], found["second"]] == around
    assert f"Label: {NAMES[data.true_labels[point]]}" in found["facts"]
    assert found["nearest"] == 8
    assert found["point"] == [str(members[0]), names[0]]
    assert found["open"]


def test_nearest_images_are_nearest_on_the_map(tmp_path):
    data = labeled(sources=sources(), dimensions=2)
    steps = """
      document.querySelector("[data-point='0']").click();
      const buttons = $("view-nearest").querySelectorAll("button");
      found.nearest = [...buttons].map((button) => button.title);
    """
    data = data._replace(distances=np.zeros(68, np.float32))  # so that image 0 is typical
    found = run(tmp_path, data, steps)
    gaps = np.linalg.norm(data.points - data.points[0], axis=1)
    nearest = np.argsort(gaps, kind="stable")[1:9]
    assert found["nearest"] == [f"{sources()[i]}, cluster {CLUSTERS[i]}" for i in nearest]


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
      const points = [0, 1, 3].map((pointNumber) => ({ curveNumber: 1, pointNumber }));
      $("plot-map").emit("plotly_selected", { points });
      found.count = $("selection-count").textContent;
      found.tiles = $("selection-tiles").children.length;
      $("save").click();
      $("wrong").click();
      $("selection-tiles").querySelector("button").click();
      $("view-move").value = "4";
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
    data = labeled(sources=sources())
    found = run(tmp_path, data, steps)
    names = [f'"{sources()[np.flatnonzero(CLUSTERS == 0)[i]]}"' for i in (0, 1, 3)]
    assert found["count"] == "3 images selected"
    assert found["tiles"] == 3
    selected, corrected = found["downloads"]
    assert selected.splitlines() == ["image,cluster", *(f"{name},0" for name in names)]
    assert corrected.splitlines() == [
        "image,cluster,correction,to",
        f"{names[0]},0,move,4",
        f"{names[1]},0,wrong,",
        f"{names[2]},0,wrong,",
    ]
    assert "move to cluster 4" in found["facts"]
    assert found["corrected"] == "3 images corrected"
    assert found["asked"], "unsaved corrections are not lost without a question"
    assert found["undone"]
    assert found["cleared"]


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
      $("plot-map").emit("plotly_click", { points: [{ curveNumber: 0, pointNumber: 0 }] });
      found.name = $("view-name").textContent;
      found.large = $("view-large").hidden;
    """
    data = labeled(**{"sources": sources(), **changes})
    found = run(tmp_path, data, steps)
    first = np.flatnonzero(CLUSTERS == 4)[0]
    assert found["name"] == (f"Image {first}" if data.sources is None else sources()[first])
    assert found["large"] == (data.fetch_images is None)
