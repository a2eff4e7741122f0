"""The report in a browser: pictures, large view, keyboard, selection, decisions, no request."""

import json
import os
import re
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.cluster import hierarchy

from cluster_jax.clustering import cut_tree
from cluster_jax.data.images import FACTS
from cluster_jax.report import report_map
from cluster_jax.report.report import render
from cluster_jax.runs.corrections import checked_name
from tests.report.browser import CHROMIUM, STEPS, WATCH, start, visit
from tests.report.test_report import CLUSTERS, NAMES, TREE, labeled, make, repeated, smooth_tree

# Of the photos beside a page, with a byte that is no UTF-8 where a system takes it.
FOLDER = "images caf\udce9 é" if sys.platform == "linux" else "images"
FEATURES = np.random.default_rng(1).normal(size=(68, 5)).astype(np.float32)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def run(tmp_path, data, steps, size=None):
    """What the steps found, in JavaScript, on the page of the data; its photos lie beside it."""
    if data.fetch_images is not None and data.sources is not None and data.folder is None:
        data = beside(tmp_path, data)
    page = page_with(data, steps)
    file = tmp_path / "report.html"
    file.write_bytes(page.encode("utf-8", "backslashreplace"))
    return visit(tmp_path, file, size)


def page_with(data, steps):
    """The page of the data, with the steps of a test in it."""
    head, _, rest = render(data).partition("<title>")
    rest = rest.rpartition("</body>")[0]
    return f"{head}{WATCH}<title>{rest}{STEPS % steps}"


def beside(tmp_path, data):
    """The data with a folder of their photos, each larger than its thumbnail."""
    for i, name in enumerate(data.sources):
        path = tmp_path / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.fsencode(name).isascii() or sys.platform == "linux":
            Image.new("RGB", (300 + i, 200), (i, 0, 0)).save(path, "PNG")
    return data._replace(folder=(tmp_path / FOLDER).as_uri() + "/")


def sources(n=68):
    return tuple(f"folder/{i:03d}, a <b>.png" for i in range(n))


def in_order(data, cluster):
    """Indices of a cluster's points, the most typical first."""
    members = np.flatnonzero(data.cluster_labels == cluster)
    return members[np.argsort(data.distances[members], kind="stable")].tolist()


def test_hover_and_large_view(tmp_path):
    steps = """
      const place = placeOf("folder/007, a <b>.png");
      found.card = $("card").innerText;
      found.picture = Boolean($("card").querySelector(".part, img").clientWidth);
      mouse("pointerdown", place); mouse("pointerup", place);
      found.first = $("view-name").textContent;
      found.facts = $("view-facts").innerText;
      found.nearest = all("button", $("view-nearest")).length;
      found.members = all("button", $("view-members")).map((button) => button.title);
      key("ArrowRight");
      found.second = $("view-name").textContent;
      key("ArrowLeft"); key("ArrowLeft");
      found.before = $("view-name").textContent;
      found.clusters = ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"].map((name) => {
        key(name);
        return $("view-name").textContent;
      });
    """
    data = labeled(sources=sources(), features=FEATURES)
    found = run(tmp_path, data, steps)
    names = {cluster: [sources()[i] for i in in_order(data, cluster)] for cluster in (4, 0, 2)}
    assert found["card"].startswith("Group 4")
    assert found["picture"]
    at = names[4].index(sources()[7])  # the arrow keys go from the most to the least typical
    around = [names[4][(at + i) % 40].removeprefix("folder/") for i in (-1, 0, 1)]
    assert [found["before"], found["first"], found["second"]] == around
    assert f"Label: {NAMES[data.true_labels[7]]}" in found["facts"]
    assert found["nearest"] == 8
    assert found["members"] == names[4][:8]
    firsts = [names[cluster][0].removeprefix("folder/") for cluster in (0, 2, 4, 2)]
    assert found["clusters"] == firsts


def test_every_photo_is_enlarged_however_often_and_by_whatever_means(tmp_path):
    steps = """
      const shown = async () => {
        await until(() => !$("view-file").hidden);
        const [image, other] = $("view-large").children;
        return [$("view-name").textContent, image.naturalWidth, other === undefined];
      };
      found.shown = [];
      for (const tile of [...all(".best .tile"), ...all("#doubts .tile")].slice(0, 12)) {
        tile.click();
        found.shown.push(await shown());
        $("view").close();
      }
      all(".best .tile")[3].click();
      for (const name of ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"]) {
        key(name);
        await pause();
        found.shown.push(await shown());
      }
      $("view-nearest").querySelector("button").click();
      found.shown.push(await shown());
      $("view").close();
      const place = placeOf("folder/0");
      mouse("pointerdown", place); mouse("pointerup", place);
      found.shown.push(await shown());
      found.file = $("view-file").href === $("view-large").querySelector("img").src;
    """
    found = run(tmp_path, labeled(sources=sources(), features=FEATURES), steps)
    assert len(found["shown"]) == 19
    for name, width, is_alone in found["shown"]:
        assert width == 300 + int(name[:3]), "the file of that photo"
        assert is_alone
    assert len({name for name, *_ in found["shown"]}) > 12
    assert found["file"]


def test_without_the_files_the_thumbnails_are_shown(tmp_path):
    steps = """
      found.shown = all(".best .tile").slice(0, 3).map((tile) => {
        tile.click();
        return [$("view-file").hidden, $("view-large").querySelector(".part").clientWidth > 100];
      });
    """
    data = labeled(sources=sources(), folder="file:///nowhere/")
    assert run(tmp_path, data, steps)["shown"] == [[True, True]] * 3


def test_belonging_and_names_are_shown(tmp_path):
    steps = """
      found.facts = ["0", "67"].map((point) => {
        document.querySelector(`[data-point="${point}"]`).click();
        return $("view-facts").innerText;
      });
      found.title = $("view-cluster-title").textContent;
      found.groups = $("tree-groups").innerText;
    """
    data = smooth_tree({"verdict": "clear", "gap": 0.4}, sources=sources())
    data.results["suggested_names"] = {"2": ["goldfish", "tench"]}
    found = run(tmp_path, data, steps)
    doubted, sure = found["facts"]
    assert "Belongs here: 40 %; Group 1 60 %" in doubted
    assert "goldfish" in sure
    assert found["title"] == "goldfish: 3 photos"
    assert "goldfish" in found["groups"]


def test_a_doubt_that_is_settled_is_asked_no_more(tmp_path):
    steps = """
      const seen = (item) => all("p, p ~ button", item).filter((part) => part.offsetParent);
      const asked = (item) => seen(item).map((part) => part.innerText);
      const left = () => texts(all("h1 a, #doubts-left"));
      const [first, second, third, fourth] = all("#doubts li");
      const number = () => $("number").textContent;
      [found.asked, found.first] = [[asked(first)], number()];
      button(first, "No, Group 1").click();
      button(second, "Yes, it stays").click();
      choose(third.querySelector("select"), "-1");
      found.asked.push(...[first, second, third].map(asked));
      second.querySelector(".tile").click();
      found.isRight = button($("view"), "Right here").disabled;
      for (const name of ["y", "ArrowLeft", "y"]) key(name);
      $("view").close();
      button(second, "No, Group 1").click();
      for (const [id, name] of [[1, "cats"], [2, "dogs"], [2, "owls"]]) type(id, name);
      $("history").open = true;
      await until(() => $("steps").children.length === 5);
      found.steps = [...texts(all("#steps span")).slice(-3), $("decided-count").textContent];
      merge(1, "0");
      found.merged = [all("#doubts li:not([hidden])").length, fourth.hidden, number(), ...left()];
      key("u");
      found.parted = [fourth.hidden, number(), ...left()];
    """
    data = smooth_tree({"verdict": "clear"}, sources=sources(), outliers=np.arange(68) > 64)
    found = run(tmp_path, data, steps)
    assert found["first"] == "2 groups and 1 small one"
    assert found["asked"] == [
        ["In Group 0?", "Yes, it stays", "No, Group 1"],
        ["In Group 1"],
        ["In Group 0", "No, Group 1"],
        ["In no group", "No, Group 1"],
    ]
    assert found["isRight"]
    moved = [f"1 photo moved to {to}." for to in ("Group 1", "no group", "Group 1")]
    assert found["steps"] == [*moved, "5 corrections, not yet applied."], "the last answers alone"
    assert found["merged"] == [8, True, "2 groups", *["5 photos are doubtful"] * 2]
    assert found["parted"] == [False, "3 groups", *["42 photos are doubtful"] * 2]


def test_one_answer_holds_for_a_burst_and_its_near_copies(tmp_path):
    steps = """
      const item = document.querySelector("#doubts > li");
      found.shown = all(".tile", item).map((one) => one.title);
      found.large = item.querySelector(".tile").offsetWidth > 2 * all(".tile", item)[1].offsetWidth;
      button(item, "Yes, all 3 stay").click();
      found.count = $("doubts-left").textContent;
      found.said = [$("said").textContent];
      choose(item.querySelector("select"), "2");
      found.said.push($("said").textContent);
      key("u");
      key("u");
      // One of them is decided before: the answer about the others leaves it.
      all(".tile", item)[1].click();
      choose($("view-move"), "-1");
      $("view").close();
      button(item, "No, Group 1").click();
      $("save-corrections").click();
    """
    facts = np.full(68, np.array((8, 8, 1500, b"", 0, 0), FACTS))
    facts["taken"][[0, 2]] = b"2024-05-01T10:00:00", b"2024-05-01T10:00:02"
    copies = repeated()._replace(images=np.array([2, 6, 67, 60, 61]))
    data = smooth_tree({"verdict": "clear"}, sources=sources(), facts=facts, state="0123456789ab")
    labels, member = data.cluster_labels, data.membership
    assert labels[0] == labels[2] == labels[6] != labels[67]
    assert (member.probabilities[[0, 2]] < 0.8).all()
    assert member.second_labels[0] == member.second_labels[2] == 1
    found = run(tmp_path, data._replace(duplicates=copies), steps)
    assert found["shown"] == [sources()[i] for i in (0, 2, 6)]
    assert found["large"]
    n = int((member.probabilities < 0.8).sum()) - 1  # without a copy
    assert found["count"] == f"{n - 2} photos are doubtful"
    assert found["said"] == ["3 photos confirmed in Group 0.", "3 photos moved to Group 2."]
    said = corrections(found["downloads"][0])
    assert said == {"labels": {"0": 1, "6": 1}, "wrong": [2]}


def test_the_thumbnail_of_a_small_photo_is_no_larger_than_the_photo(tmp_path):
    """Without its file it is drawn up to the size that the photo has."""
    steps = """
      const width = (point) => {
        document.querySelector(`[data-point="${point}"]`).click();
        const box = $("view-large").querySelector(".part").getBoundingClientRect();
        $("view").close();
        return [Math.round(box.width), Math.round(box.height)];
      };
      found.widths = [width(0), width(67)];
    """
    facts = np.full(68, np.array((90, 60, 1500, b"", 0, 0), FACTS))
    facts["width"][67], facts["height"][67] = 3000, 2000
    data = make(CLUSTERS, side=66, channels=3, sources=sources(), facts=facts, folder="file:///no/")
    found = run(tmp_path, data, steps, (1400, 700))
    assert found["widths"] == [[90, 90], [480, 480]]


def test_most_alike_images_are_nearest_in_the_features(tmp_path, monkeypatch):
    features = FEATURES.copy()
    features[10], features[20] = features[30], features[30] + 1e-3
    # The order of the map is not that of the images.
    data = labeled(sources=sources(), features=features, distances=np.arange(68.0)[::-1].copy())
    steps = """
      card(4).querySelector("[data-all]").click();
      found.shown = {};
      for (const point of ["39", "30", "1"]) {
        all(`[data-point="${point}"]`).at(-1).click();
        const titles = all("button", $("view-nearest")).map((button) => button.title);
        found.shown[point] = [$("view-nearest-title").hidden, titles];
      }
    """

    def nearest(rows, point):
        order = np.argsort(np.linalg.norm(rows - rows[point], axis=1), kind="stable")
        return [sources()[i] for i in order if i != point][:8]

    found = run(tmp_path, data, steps)
    for point in (39, 30, 1):
        assert found["shown"][str(point)] == [False, nearest(features, point)]
    monkeypatch.setattr(report_map, "MAX_THUMBNAILS", 2)  # the first and the last on the map
    shown = run(tmp_path, data, steps)["shown"]
    assert shown["39"] == found["shown"]["39"]
    assert shown["1"] == [True, []]


def test_all_photos_of_a_group_are_drawn_as_they_are_scrolled_to(tmp_path):
    clusters = np.repeat([0, 1], [700, 20])
    steps = """
      const list = card(0).querySelector(".photos");
      found.closed = all(".tile", list).length;
      card(0).querySelector("[data-all]").click();
      found.first = all(".tile", list).length;
      for (let i = 0; i < 9 && list.querySelector(".end"); i++) {
        list.querySelector(".end").scrollIntoView({ behavior: "instant" });
        dispatchEvent(new Event("scroll"));  // a browser without a screen sends few
      }
      found.all = all(".tile", list).length;
      found.pictures = all(".tile .part", list).length;
      card(0).querySelector("[data-all]").click();
      found.again = all(".tile", list).length;
    """
    found = run(tmp_path, make(clusters, side=48, channels=3), steps)
    assert found["closed"] == found["again"] == 8
    assert found["first"] == 120
    assert found["all"] == 700
    assert found["pictures"] == 700


def test_of_duplicates_one_is_kept(tmp_path):
    steps = """
      const sets = all("#duplicate-groups > li");
      found.titles = sets.map((set) => set.querySelector("h3").textContent);
      found.facts = all("p", sets[0]).map((facts) => facts.innerText.trim().split("\\n"));
      const choices = (set) => all("li > button:not(.tile)", set);
      const kept = () => sets.map((set) => choices(set).map((choice) => choice.innerText));
      found.kept = kept();
      sets[0].querySelector(".tile").click();
      found.opened = $("view-name").textContent;
      $("view").close();
      choices(sets[0])[0].click();
      found.picked = kept();
      choices(sets[1])[1].click();
      choices(sets[1])[0].click();
      found.count = $("decided-count").textContent;
      $("save-corrections").click();
      for (let i = 0; i < 3; i++) key("u");
      found.undone = kept();
    """
    names = (*sources(2), "a/it's 2.png", *sources(68)[3:])
    facts = np.full(5, np.array((8, 0, 1500, b"2024-05-01T10:00:00", 0, 0), FACTS))
    facts["height"] = np.arange(5) + 2
    keep = np.array([False, True, False, True, False])
    shown = repeated()._replace(facts=facts, keep=keep)
    found = run(tmp_path, decided(duplicates=shown)._replace(sources=names), steps)
    assert found["titles"] == ["Nearly the same: 3 photos", "Nearly the same: 2 photos"]
    about = ["Taken 2024-05-01 10:00", "In a", "8 × 2, 2 kB"]
    assert found["facts"][0] == ["it's 2.png", *about], "which of equal names is which"
    best = [["Keep this one", "Kept", "Keep this one"], ["Kept", "Keep this one"]]
    assert found["kept"] == found["undone"] == best
    assert found["opened"] == "it's 2.png"
    assert found["picked"] == [["Kept", "Keep this one", "Keep this one"], best[1]]
    assert found["count"] == "1 correction, not yet applied.", "the second one is as before"
    assert corrections(found["downloads"][0]) == {"keep": [2]}


def corrections(text):
    """What a saved file of corrections says, without its state, browser and what is empty."""
    said = json.loads(text)
    assert said.pop("state") == "0123456789ab"
    assert len(said.pop("browser")) > 5
    assert said.pop("saved") > 0
    return {key: value for key, value in said.items() if value}


def decided(**changes):
    return labeled(sources=sources(), state="0123456789ab", **changes)


def test_equal_copies_follow(tmp_path):
    steps = """
      document.querySelector("[data-point='2']").click();
      choose($("view-move"), "0");
      found.said = $("said").textContent;
      key("u");
      document.querySelector("[data-point='5']").click();
      choose($("view-move"), "0");
      found.near = $("said").textContent;
      $("save-corrections").click();
    """
    equal = np.array([True, True, True, False, False])
    same = repeated()._replace(is_exact=equal, similarities=np.where(equal, 1, 0.97))
    # The points that are clicked are the most typical ones, and so on their cards.
    distances = np.where(np.isin(np.arange(68), [2, 5]), 0, 1.0)
    data = decided(duplicates=same, distances=distances)
    found = run(tmp_path, data, steps)
    assert found["said"] == "3 photos moved to Group 0, 2 of them as an equal copy."
    assert found["near"] == "1 photo moved to Group 0."
    assert corrections(found["downloads"][0]) == {"labels": {"5": 0}}


def test_selection_and_corrections(tmp_path):
    steps = """
      const [w, h] = [$("plot-map").clientWidth, $("plot-map").clientHeight];
      drag([[1, 1], [w / 2, 1], [w / 2, h - 1], [1, h - 1]]);
      found.count = $("selection-count").textContent;
      $("wrong").click();
      found.unselected = $("selection").hidden;
      found.members = card(4).querySelector("[data-size]").textContent;
      found.said = [$("said").textContent, $("decided-count").textContent];
      $("save-corrections").click();
      $("undo").click();
      found.undone = $("decided-count").textContent;
      key("Escape");
      found.cleared = $("selection").hidden;
      document.querySelector(".tile[data-point]").click();
      choose($("view-move"), "2");
      $("view").close();
      card(2).querySelector("[data-choose]").click();
      choose($("move"), "2");
      $("history").open = true;
      await until(() => $("steps").childElementCount);
      found.confirmed = [$("said").textContent, $("steps").childElementCount];
      $("save-corrections").click();
    """
    points = np.ones((68, 2), np.float32)
    points[:3] = -1  # the left half of the map
    data = decided(points=points)
    found = run(tmp_path, data, steps)
    rows = [i for i in in_order(data, 4) if i < 3]
    assert found["count"] == "3 photos selected"
    assert found["said"] == ["3 photos moved to no group.", "3 corrections, not yet applied."]
    assert found["members"].startswith("37 photos")
    assert corrections(found["downloads"][0]) == {"wrong": rows}
    first, later = map(json.loads, found["downloads"])
    assert first["browser"] == later["browser"], "by it the later file replaces the first one"
    assert found["confirmed"] == ["3 photos confirmed in Group 2.", 2], "but not the moved one"
    assert found["undone"] == ""
    assert found["unselected"], "what was moved is not moved again by the next choice"
    assert found["cleared"]


def test_groups_are_made_merged_named_and_undone(tmp_path):
    steps = """
      select(4, 1);
      select(4, 2);
      found.selected = $("selection-count").textContent;
      choose($("move"), "new");
      found.made = [size(4), size(-2)];
      type(-2, ' cats / "small" ');
      tile(0, 0).click();
      choose($("view-move"), "-2");
      key("y");  // It is right where it is now.
      found.facts = $("view-facts").innerText;
      key("ArrowRight");
      button($("view"), "Right here").click();
      key("ArrowRight");
      key("w");
      $("view").close();
      merge(2, "0");
      found.merged = [card(2).hidden, size(0), size(-2)];
      merge(0, "2");  // is in it already
      type(0, "dogs");
      found.titles = titles();
      found.map = $("decided-count").textContent;
      $("save-corrections").click();
      found.how = $("how").innerText;
      for (let i = 0; i < 8; i++) key("u");
      found.undone = [size(4), size(0), size(2), card(-2)];
      found.empty = [$("decided-count").textContent, $("undo").disabled];
    """
    command = "cluster-jax report run --corrections=FILE"
    data = decided(command=command)
    found = run(tmp_path, data, steps)
    first, second = (in_order(data, cluster) for cluster in (4, 0))
    assert found["selected"] == "2 photos selected"
    assert found["made"] == ["38 photos", "2 photos"]
    assert 'cats / "small"' in found["facts"]
    assert "Before: Group 0" in found["facts"]
    assert found["merged"] == [True, "26 photos", "3 photos"]
    assert found["titles"] == ["Group 4", 'cats / "small"', "dogs", "In no group"], (
        "a new group is where its photos were"
    )
    assert re.search(
        r"cluster-jax report run --corrections=corrections-\d{14}\.json$", found["how"]
    )
    assert corrections(found["downloads"][0]) == {
        "new": {"n1": 'cats / "small"'},
        "merges": [[2, 0]],
        "names": {"0": "dogs"},
        "labels": {str(row): "n1" for row in (first[1], first[2], second[0])},
        "right": [second[1]],
        "wrong": [second[2]],
    }
    assert found["undone"] == ["40 photos", "25 photos", "3 photos", None]
    assert found["empty"] == ["", True]


def test_on_a_phone_most_of_the_page_is_seen_beside_the_bar(tmp_path):
    steps = """
      select(4, 0);
      choose($("move"), "-1");
      select(4, 1);
      found.share = $("bar").offsetHeight / innerHeight;
      $("save-corrections").click();
      found.saved = [$("how").hidden, $("bar").offsetHeight / innerHeight];
      key("u");
      found.changed = $("how").hidden;
    """
    found = run(tmp_path, decided(command="x"), steps, (390, 844))
    assert found["share"] < 0.2
    assert not found["saved"][0]
    assert found["saved"][1] < 0.3
    assert found["changed"], "the saved file is not what the page has now"


def test_the_large_view_names_and_merges_its_group(tmp_path):
    steps = """
      tile(4, 2).click();
      const field = $("view-group").querySelector("input");
      field.value = "dogs";
      field.dispatchEvent(new Event("change", { bubbles: true }));
      key("ArrowDown");
      found.field = field.value;
      const into = $("view-group").querySelector("[data-choice=merge]");
      found.choices = listed(into).map((option) => option.text);
      choose(into, "4");
      found.name = [field.value, card(0).hidden];
      found.facts = $("view-facts").innerText;
      key("w");
      const buttons = ["Right here", "Wrong here"].map((text) => button($("view"), text));
      found.none = [field, ...buttons].map((one) => one.disabled);
      for (const name of ["y", "w", "u"]) key(name);
      found.back = [field, ...buttons].map((one) => one.disabled);
      key("w");
      $("view").close();
      tile(-1, 1).click();  // was there before
      for (const name of ["y", "w"]) key(name);
      found.titles = titles();
      $("save-corrections").click();
    """
    data = decided(cluster_labels=np.where(np.arange(68) < 67, CLUSTERS, -1))
    found = run(tmp_path, data, steps)
    assert found["field"] == ""
    assert found["choices"] == ["Merge into …", "dogs", "Group 2"]
    assert found["name"] == ["dogs", True]
    assert found["facts"].startswith("dogs")
    assert found["none"] == [True] * 3
    assert found["back"] == [False] * 3, "its keys did nothing there"
    assert found["titles"] == ["dogs", "Group 2", "In no group"]
    assert corrections(found["downloads"][0]) == {
        "merges": [[0, 4]],
        "names": {"4": "dogs"},
        "wrong": [in_order(data, 0)[0]],
    }


def test_decisions_survive_that_the_page_is_closed_and_are_taken_back_then(tmp_path):
    """Undo, each of the list, and the keeper of a set."""
    steps = """
      const sizes = () => [4, 0, 2].map((id) => (card(id)?.hidden === false ? size(id) : ""));
      const kept = () => all(".copies").map((set) => all("li.kept", set).length);
      if (sizes()[0] === "40 photos") {
        tile(4, 0).click();
        choose($("view-move"), "0");
        $("view").close();
        type(0, "dogs");
        merge(2, "0");
        document.querySelector("#duplicate-groups .both:enabled").click();
        found.done = sizes();
      } else {
        found.said = $("said").textContent;
        found.count = $("decided-count").textContent;
        found.sizes = sizes();
        found.kept = [kept(), document.querySelector(".copies .kept b").textContent];
        $("history").open = true;
        await pause();
        found.steps = all("#steps span").map((step) => step.textContent);
        all("#steps button").at(-1).click();  // the first one
        found.back = [sizes(), $("said").textContent];
        found.rest = all("#steps span").length;
        key("u");
        found.undone = kept();
        $("undo").click();
        found.parted = [sizes(), card(0).querySelector("[data-title]").textContent];
        $("save-corrections").click();
      }
    """
    first = run(tmp_path, decided(duplicates=repeated()), steps)
    again = visit(tmp_path, tmp_path / "report.html")
    assert first["done"] == again["sizes"] == ["39 photos", "29 photos", ""]
    assert again["count"] == "4 corrections, not yet applied."
    assert again["said"] == "The corrections of your last visit are here again."
    assert again["kept"] == [[1, 1], "040, a <b>.png"], "one of each set, whatever is clicked"
    assert again["steps"] == [
        "folder/040, a <b>.png is kept of its copies.",
        "Group 2 is now part of dogs.",
        "The group is called dogs.",
        "1 photo moved to Group 0.",
    ]
    taken_back = "Taken back: 1 photo moved to Group 0."
    assert again["back"] == [["40 photos", "28 photos", ""], taken_back]
    assert again["rest"] == 3
    assert again["undone"] == [1, 1]
    assert again["parted"] == [["40 photos", "25 photos", "3 photos"], "dogs"]
    assert corrections(again["downloads"][0]) == {"names": {"0": "dogs"}}
    other = decided(duplicates=repeated())._replace(state="ba9876543210")
    assert "done" in run(tmp_path, other, steps), "not on the page of another state"


def test_what_was_not_saved_is_offered_again_when_the_run_has_moved_on(tmp_path):
    """Photos and groups are known again by what they are: their numbers are others by then."""
    steps = """
      type(4, "saved");
      $("save-corrections").click();
      type(0, "not saved");
      tile(4, 0).click();
      choose($("view-move"), "new");
      $("view").close();
      tile(4, 0).click();
      choose($("view-move"), "2");
    """
    data = decided()
    typical = in_order(data, 4)[:2]
    browser = json.loads(run(tmp_path, data, steps)["downloads"][0])["browser"]
    # The order is turned around, group 0 is group 7 now, and the two others are one.
    labels = np.where(CLUSTERS == 0, 7, 3)
    later = make(labels[::-1], sources=sources()[::-1], state="ba9876543210")
    applied = [f"{data.state} {browser}"]
    later = later._replace(names={"3": "saved"}, applied=applied)
    steps = """
      found.said = $("said").textContent;
      found.titles = titles();
      found.count = $("decided-count").textContent;
      $("history").open = true;
      await pause();
      found.steps = texts(all("#steps span"));
      $("save-corrections").click();
    """
    found = run(tmp_path, later, steps)
    again, _, lost = found["said"].partition(" Not saved, and ")
    assert again == "What you had not saved when the run changed is here again."
    assert lost == "not to be had again as the run has changed: 1 photo moved to Group 2."
    assert found["titles"] == ["saved", "New group 1", "not saved"]
    assert found["count"] == "2 corrections, not yet applied."
    assert found["steps"] == ["1 photo moved to a new group.", "The group is called not saved."]
    said = json.loads(found["downloads"][0])
    assert said["names"] == {"7": "not saved"}, "the name that was saved is no step any more"
    assert said["labels"] == {str(67 - typical[0]): "n1"}
    applied.append(f"{later.state} {browser}")
    found = run(tmp_path, later._replace(state="cccccccccccc"), steps.replace('$("save', "0; //"))
    assert found["said"] == "", "what is saved is not offered again"


def test_what_was_saved_and_refused_is_offered_again(tmp_path):
    """Or was never applied: with what was decided after it was saved, as the run has neither."""
    steps = """
      type(2, "two");
      tile(4, 0).click();
      choose($("view-move"), "0");
      $("view").close();
      $("save-corrections").click();
      type(4, "four");
    """
    facts = np.zeros(68, FACTS)
    facts["digest"] = np.arange(68)[:, None] + 5
    data = decided()._replace(facts=facts)
    first = in_order(data, 4)[0]
    browser = json.loads(run(tmp_path, data, steps)["downloads"][0])["browser"]
    steps = """
      found.said = $("said").textContent;
      found.titles = titles();
      $("save-corrections").click();
    """
    # Another one's file was applied, by which group 2 has another number, and files have moved.
    moved = tuple(f"photos/{name}" for name in sources())
    later = make(np.where(CLUSTERS == 2, 7, CLUSTERS), sources=moved, state="ba9876543210")
    later = later._replace(applied=(f"{data.state} another",), facts=facts)
    found = run(tmp_path, later, steps)
    assert found["said"] == "What you had saved, and the run does not have, is here again."
    assert sorted(found["titles"]) == ["Group 0", "four", "two"]
    said = json.loads(found["downloads"][0])
    assert said["names"] == {"4": "four", "7": "two"}
    assert said["labels"] == {str(first): 0}
    later = later._replace(state="cccccccccccc", applied=(f"{later.state} {browser}",))
    assert run(tmp_path, later, steps.replace('$("save', "0; //"))["said"] == ""


def test_what_was_undone_by_a_command_is_said_to_be_and_taken_back_at_once(tmp_path):
    steps = 'type(0, "mine"); type(2, "mine as well"); $("save-corrections").click();'
    run(tmp_path, decided(), steps)
    steps = """
      found.said = $("said").textContent;
      window.confirm = (text) => { found.asked = text; return true; };
      $("history").open = true;
      button($("history"), "Take all back").click();
      found.left = [$("decided-count").textContent, $("save-corrections").disabled];
    """
    found = run(tmp_path, decided(), steps)
    assert found["said"].startswith("The corrections that you had saved are here again. The run")
    assert found["said"].endswith("they were not applied, or they were undone.")
    assert found["asked"] == "Take back all corrections?"
    assert found["left"] == ["", True]
    assert run(tmp_path, decided(), 'found.said = $("said").textContent;')["said"] == ""


def test_two_windows_with_one_page_have_the_same_corrections(tmp_path):
    steps = """
      await until(() => titles().includes("of one window"));
      type(2, "of the other one");
    """
    other = tmp_path / "other.html"
    other.write_text(page_with(decided(), steps))
    start().call(
        "Target.createTarget", url=other.as_uri(), browserContextId=start().profile(tmp_path)
    )
    steps = """
      type(0, "of one window");
      await until(() => titles().includes("of the other one"));
      $("save-corrections").click();
    """
    said = corrections(run(tmp_path, decided(), steps)["downloads"][0])
    assert said == {"names": {"0": "of one window", "2": "of the other one"}}


def test_a_page_without_decisions_stores_none(tmp_path):
    """A window that opens would replace what is decided in another one meanwhile."""
    steps = """
      const stored = () => Object.values(localStorage).filter((x) => x[0] === "{").map(JSON.parse);
      found.opened = stored();
      type(0, "named");
      found.named = stored()[0].steps.length;
      $("undo").click();
      found.undone = stored()[0].steps;
    """
    found = run(tmp_path, decided(), steps)
    assert (found["opened"], found["named"], found["undone"]) == ([], 1, [])


def test_names_and_pictures_are_whole_at_the_edge_of_the_map(tmp_path):
    """And they are not drawn where the middle of their group is not in view."""
    steps = """
      const drawn = [];
      const { drawImage, fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.drawImage = function (...args) {
        drawn.push([...args.slice(5)]);
        drawImage.apply(this, args);
      };
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        found.texts.push([text, y]);
        fillText.call(this, text, x, y);
      };
      const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      found.texts = [];
      key("+"); key("-");
      await frame();
      found.sides = [$("plot-map").clientWidth, $("plot-map").clientHeight];
      found.pictures = drawn.slice(0, 3);
      found.rows = found.texts.slice(0, 3).map(([, y]) => y);
      for (let i = 0; i < 5; i += 1) key("+");
      await frame();
      found.texts = [];
      key("+");
      await frame();
      found.zoomed = found.texts.length;
    """
    points = np.array([(0, 9), (-9, -9), (9, -9)], float)[
        np.unique(CLUSTERS, return_inverse=True)[1]
    ]
    points += np.random.default_rng(0).normal(scale=0.01, size=points.shape)
    data = labeled(sources=sources(), points=points.astype(np.float32))
    found = run(tmp_path, data, steps)
    width, height = found["sides"]
    assert len(found["pictures"]) == 3
    for left, top, side, _ in found["pictures"]:
        assert 0 <= left <= width - side
        assert 0 <= top <= height - side
    assert max(found["rows"]) < height
    assert found["zoomed"] == 0, "all groups are outside of what is seen"


def test_a_pasted_name_has_no_characters_that_the_command_refuses(tmp_path):
    steps = """
      type(0, "\\ufeff cats\\u200b and\\u00ad\\tdogs \\u202e");
      type(2, "\\u{1f468}\\u200d\\u{1f469} \\ud83d");
      type(4, "\\u200b\\uf8ff");
      $("save-corrections").click();
    """
    names = json.loads(run(tmp_path, decided(), steps)["downloads"][0])["names"]
    assert names == {"0": "cats and dogs", "2": "\U0001f468\u200d\U0001f469", "4": "\uf8ff"}
    assert all(checked_name(name) == name for name in names.values())


def test_a_name_that_another_group_has_is_asked_about(tmp_path):
    steps = """
      type(0, "it's <b>Åsa & 犬</b>");
      found.named = titles();
      type(2, " it's  <b>Åsa & 犬</b> ");
      found.asked = [$("same").open, $("same-name").textContent];
      $("same-keep").click();
      await pause();
      found.both = [titles(), $("same").open];
      key("u");
      type(2, "it's <b>Åsa & 犬</b>");
      $("same-merge").click();
      found.merged = titles();
      const field = card(4).querySelector("input");
      field.focus();
      const enter = { key: "Enter", bubbles: true, cancelable: true };
      found.stopped = !field.dispatchEvent(new KeyboardEvent("keydown", enter));
      found.left = document.activeElement === document.body;
      $("save-corrections").click();
    """
    found = run(tmp_path, decided(), steps)
    name = "it's <b>Åsa & 犬</b>"
    assert found["named"] == ["Group 4", name, "Group 2"]
    assert found["asked"] == [True, name]
    assert found["both"] == [["Group 4", name, name], False]
    assert found["merged"] == ["Group 4", name]
    assert found["left"]
    assert found["stopped"], "Enter answers no question"
    assert corrections(found["downloads"][0]) == {"names": {"0": name}, "merges": [[2, 0]]}


def test_a_group_that_is_merged_into_a_new_one_has_its_name(tmp_path):
    """The file knows numbers of the run: the new group goes into the old one, with its name."""
    steps = """
      select(0, 1);
      choose($("move"), "new");
      found.focused = document.activeElement === card(-2).querySelector("input");
      found.order = all("article").map((one) => one.dataset.group);
      type(-2, "dogs");
      merge(2, "-2");
      found.titles = titles();
      $("save-corrections").click();
    """
    data = decided()
    found = run(tmp_path, data, steps)
    assert found["focused"], "its name is typed next"
    assert found["order"] == ["4", "0", "-2", "2"], "beside the group from which it comes"
    assert found["titles"] == ["Group 4", "Group 0", "dogs"]
    moved = str(in_order(data, 0)[1])
    assert corrections(found["downloads"][0]) == {"names": {"2": "dogs"}, "labels": {moved: 2}}


def test_the_large_view_uses_the_window(tmp_path):
    steps = """
      all(".best .tile")[0].click();
      await until(() => !$("view-file").hidden);
      const box = $("view-large").querySelector("img").getBoundingClientRect();
      found.shares = [box.width / innerWidth, box.height / innerHeight];
      found.size = innerWidth;
    """
    data = labeled(sources=sources())
    wide, high = run(tmp_path, data, steps, (1400, 900))["shares"]
    assert wide > 0.7
    assert high > 0.9
    phone = run(tmp_path, data, steps, (390, 844))
    assert phone["size"] == 390
    assert phone["shares"] == pytest.approx([1, 0.6], abs=0.05)


def test_the_slider_gives_the_groups_of_a_cut(tmp_path):
    clusters = np.repeat(np.arange(9), np.arange(9) + 2)
    linkage = hierarchy.linkage(np.random.default_rng(3).normal(size=(9, 2)), "average")
    steps = """
      found.cuts = [];
      for (let n = 1; n <= 9; n++) {
        $("tree-cut").value = n;
        $("tree-cut").dispatchEvent(new Event("input"));
        const entries = all("#tree-groups > li").map((item) => item.querySelector("p").innerText);
        found.cuts.push(entries.map((text) => text.match(/\\d+/g).map(Number).sort()).sort());
      }
      found.leaves = all("#tree-leaves li").map((leaf) => leaf.innerText.trim());
      found.branches = $("tree-branches").getAttribute("d").split("M").length - 1;
    """
    found = run(tmp_path, make(clusters, linkage=linkage), steps)
    for n, cut in enumerate(found["cuts"], 1):
        groups = cut_tree(linkage, n)
        assert cut == sorted(np.flatnonzero(groups == group).tolist() for group in range(n))
    assert sorted(found["leaves"]) == [f"Cluster {i}" for i in range(9)]
    assert found["branches"] == 8


def test_a_group_is_split_by_its_parts_and_the_cut_of_the_tree_is_applied(tmp_path):
    """Cluster 0 has two kinds, each of two near ones; a merged group parts into its clusters."""
    kind = np.arange(68) % 4
    features = np.stack([kind // 2 * 10.0 + kind % 2, np.zeros(68)], axis=1).astype(np.float32)
    steps = """
      const split = (id) => card(id).querySelector("[data-split]").click();
      const parts = (id) => texts(all(".parts > .groups > li > p", card(id)));
      split(4);
      found.two = parts(4);
      card(4).querySelector("[data-finer]").click();
      card(4).querySelector("[data-finer]").click();
      found.four = [parts(4), card(4).querySelector("[data-finer]").hidden];
      split(4);
      found.closed = card(4).querySelector(".parts").hidden;
      split(4);
      button(card(4).querySelector(".parts"), "Make it a new group").click();
      found.made = [size(4), size(-2), all(".parts .tile", card(4)).length];
      $("tree-cut").value = 1;
      $("tree-apply").click();
      found.one = titles();
      split(0);
      found.merged = parts(0);
      $("save-corrections").click();
      for (let i = 0; i < 2; i++) key("u");
      found.undone = titles();
    """
    data = decided(features=features, linkage=TREE)
    found = run(tmp_path, data, steps)
    assert found["two"] == ["20 photos", "20 photos"]
    assert found["four"] == [["10 photos"] * 4, False]
    assert found["closed"]
    assert found["made"] == ["20 photos", "20 photos", 16], "the rest has parts of its own"
    assert found["one"] == ["New group 1", "Group 0"], "the largest receives the others"
    assert found["merged"] == ["25 photos", "20 photos", "3 photos"]
    assert found["undone"] == ["Group 4", "New group 1", "Group 0", "Group 2"]
    said = corrections(found["downloads"][0])
    assert sorted(said["merges"]) == [[2, 0], [4, 0]]
    rows = np.flatnonzero(CLUSTERS == 4)
    first = kind[rows][[str(row) in said["labels"] for row in rows]]
    assert len(first) == 20
    assert len(set(first // 2)) == 1, "one kind as a whole"


def test_find_ignores_accents_and_has_dates_and_escape_leaves_a_name_as_it_was(tmp_path):
    """A finger that goes to the side turns to the next photo, and a small one is not enlarged."""
    steps = """
      const find = (text) => {
        $("find").value = text;
        $("find").dispatchEvent(new Event("input"));
        return all("button", $("hits-points")).map((one) => one.title);
      };
      found.hits = [find("sao"), find("2023-07-0"), find("")];
      scrollTo({ top: 1e6, behavior: "instant" });
      find("sao");
      found.top = $("hits").getBoundingClientRect().top;
      const field = card(4).querySelector("input");
      field.focus();
      field.value = "typed";
      key("Escape", field);
      found.name = [field.value, titles()[0], $("decided-count").textContent];
      tile(4, 0).click();
      await until(() => !$("view-file").hidden);
      const image = $("view-large").querySelector("img");
      const box = image.getBoundingClientRect();
      found.fit = [getComputedStyle(image).objectFit, box.top >= 0, box.bottom <= innerHeight];
      const touch = (kind, clientX) => $("view-large").dispatchEvent(
        new PointerEvent(kind, { bubbles: true, pointerType: "touch", clientX, clientY: 300 }));
      const swipe = (from, to) => {
        touch("pointerdown", from); touch("pointerup", to);
        return $("view-name").textContent;
      };
      found.swiped = [swipe(300, 200), swipe(200, 300), swipe(200, 210)];
    """
    names = ("S\u00e3o.png", *sources()[1:])
    facts = np.full(68, np.array((8, 8, 1500, b"2024-05-01T10:00:00", 0, 0), FACTS))
    facts["taken"][3] = b"2023-07-04T10:00:00"
    data = decided(facts=facts)._replace(sources=names)
    found = run(tmp_path, data, steps, (1400, 700))
    assert found["hits"] == [[names[0]], [names[3]], []]
    assert 0 <= found["top"] < 350
    assert found["name"] == ["", "Group 4", ""]
    assert found["fit"] == ["scale-down", True, True]
    first, second = (names[i].split("/")[-1] for i in in_order(data, 4)[:2])
    assert found["swiped"] == [second, first, first]


def test_groups_that_may_be_two_kinds_are_asked_before_single_photos(tmp_path):
    kind = np.arange(68) % 2 * (np.arange(68) < 40)
    features = FEATURES + 20 * kind[:, None].astype(np.float32)
    steps = """
      const asked = () => texts(all("#kinds h3"));
      found.asked = asked();
      found.before = $("kinds").compareDocumentPosition($("doubts")) === 4;
      const first = $("kinds").querySelector("li");
      found.parts = texts(all("p", first));
      button($("kinds"), "Make it a new group").click();
      found.made = [size(0), size(-2)];
      button($("kinds"), "One kind").click();
      found.left = asked();
      $("undo").click();
      found.again = asked();
      button($("kinds"), "One kind").click();
      $("save-corrections").click();
    """
    data = smooth_tree({"verdict": "clear"}, sources=sources(), features=features)
    found = run(tmp_path, data, steps)
    assert found["again"] == ["Group 1: one kind or two?"]
    assert json.loads(found["downloads"][0])["whole"] == [1], "the answer is in the file"
    assert found["asked"] == [f"Group {i}: one kind or two?" for i in (0, 1)]
    assert found["before"]
    assert found["parts"] == ["20 photos", "20 photos"]
    assert found["made"] == ["20 photos", "20 photos"]
    assert found["left"] == []
    later = data._replace(state="ba9876543210", whole={1})
    (tmp_path / "later").mkdir()
    found = run(tmp_path / "later", later, 'found.asked = texts(all("#kinds h3"));')
    assert found["asked"] == ["Group 0: one kind or two?"], "what is known is not asked"


def test_a_phone(tmp_path):
    """One doubtful photo at a time, any answer, nothing wider than the page, an index."""
    steps = """
      const shown = () => all("#doubts li").filter((item) => item.offsetParent);
      found.left = [$("doubts-left").textContent];
      found.shown = [shown().length];
      found.wide = [shown()[0].querySelector(".tile").offsetWidth / innerWidth];
      const first = shown()[0].dataset.doubt;
      choose(shown()[0].querySelector("select"), "2");
      found.said = $("said").textContent;
      found.shown.push(shown().length);
      found.left.push($("doubts-left").textContent);
      found.next = shown()[0].dataset.doubt !== first;
      button(shown()[0], "Yes, it stays").click();
      found.left.push($("doubts-left").textContent);
      found.width = document.documentElement.scrollWidth;
      const index = document.querySelector("[data-choice=index]");
      found.index = listed(index).map((option) => option.value);
      choose(index, "2");
      found.top = Math.round(card(2).getBoundingClientRect().top);
      found.finder = Math.round($("finder").getBoundingClientRect().top);
      $("save-corrections").click();
    """
    data = smooth_tree({"verdict": "clear"}, sources=sources(), state="0123456789ab")
    found = run(tmp_path, data._replace(names={"1": "one long name " * 7}), steps, (390, 844))
    n = int((data.membership.probabilities < 0.8).sum())
    assert found["left"] == [f"{n - i} photos are doubtful" for i in range(3)]
    assert found["shown"] == [1, 1]
    assert found["wide"][0] > 0.8
    assert found["said"] == "1 photo moved to Group 2."
    assert found["next"]
    assert found["width"] <= 390
    assert found["index"] == ["", "0", "2", "1"]
    assert 0 <= found["top"] < 100
    assert found["finder"] == 0
    assert corrections(found["downloads"][0]) == {"labels": {"0": 2}, "right": [1]}


def test_keyboard(tmp_path):
    steps = """
      const stops = all("a[href], button, input, select, summary")
        .filter((one) => one.tabIndex === 0 && !one.disabled && one.offsetParent);
      found.before = stops.indexOf($("find"));
      const stopsIn = (list) => all(".tile", list).filter((one) => one.tabIndex === 0).length;
      found.lists = all("#clusters ul.best").map(stopsIn);
      key("?");
      found.keys = [$("keys").open, all("#keys tr").length > 8];
      $("keys").close();
      tile(4, 0).focus();
      key("ArrowRight", document.activeElement);
      found.right = document.activeElement === tile(4, 1);
      key("x", document.activeElement);
      found.selected = $("selection-count").textContent;
      key("ArrowDown", document.activeElement);
      found.down = document.activeElement === tile(0, 0);
      document.activeElement.click();  // as Enter does
      found.open = $("view").open;
      key("y");
      key("x");
      found.both = [$("selection-count").textContent, $("decided-count").textContent];
    """
    found = run(tmp_path, decided(), steps)
    assert found["before"] < 15, "few stops before the search"
    assert found["lists"] == [1, 1, 1]
    assert found["keys"] == [True, True]
    assert found["right"]
    assert found["down"]
    assert found["selected"] == "1 photo selected"
    assert found["open"]
    assert found["both"] == ["2 photos selected", "1 correction, not yet applied."]


def test_names_of_clusters(tmp_path):
    steps = """
      found.before = titles();
      type(0, " cats ");
      type(4, "dogs, small");
      found.after = titles();
      found.choices = texts(listed($("move"))).slice(1);
      found.groups = $("tree-groups").innerText;
      found.numbers = texts(all("[data-number]"));
      found.count = $("decided-count").textContent;
      $("save-corrections").click();
      type(0, "");
      found.cleared = [titles(), $("decided-count").textContent];
      for (let i = 0; i < 3; i++) $("undo").click();
      found.undone = [titles(), card(4).querySelector("input").value];
    """
    data = decided(linkage=TREE)._replace(names={"4": "animals"})
    data = data._replace(results={**data.results, "suggested_names": {"0": ["tabby", "lynx"]}})
    found = run(tmp_path, data, steps)
    assert found["before"] == ["animals", "tabby", "Group 2"]
    assert found["after"] == ["dogs, small", "cats", "Group 2"]
    more = ["New group", "No group: wrong here"]
    assert found["choices"] == ["cats", "dogs, small", "Group 2", *more]
    assert "cats" in found["groups"]
    assert found["numbers"] == ["group 4", "group 0", ""], "of those with a name"
    assert found["count"] == "2 corrections, not yet applied."
    assert corrections(found["downloads"][0]) == {"names": {"0": "cats", "4": "dogs, small"}}
    assert found["cleared"] == [
        ["dogs, small", "tabby", "Group 2"],
        "1 correction, not yet applied.",
    ]
    assert found["undone"] == [["animals", "tabby", "Group 2"], "animals"]


def test_more_groups_than_cards(tmp_path):
    steps = """
      found.shown = [titles().length];
      for (; !$("more-cards").hidden; found.shown.push(titles().length)) $("more-cards").click();
      all("article").at(-1).querySelector(".tile").click();
      found.open = $("view").open;
    """
    found = run(tmp_path, make(np.repeat(np.arange(100), 2), channels=3), steps)
    assert found["shown"] == [60, 60 + 30, 100]
    assert found["open"]


def test_lasso_zoom_and_pan(tmp_path):
    # Lassos see the map as it is now, whether or not a frame has been drawn since it changed.
    steps = """
      const lasso = (corners, more) => {
        drag(corners, more);
        return $("selection").hidden ? 0 : Number($("selection-count").textContent.split(" ")[0]);
      };
      const [w, h] = [$("plot-map").clientWidth, $("plot-map").clientHeight];
      const whole = [[1, 1], [w - 1, 1], [w - 1, h - 1], [1, h - 1]];
      const left = [[1, 1], [w / 2, 1], [w / 2, h - 1], [1, h - 1]];
      found.all = lasso(whole);
      found.left = lasso(left);
      found.right = lasso([[w / 2, 1], [w - 1, 1], [w - 1, h - 1], [w / 2, h - 1]]);
      lasso(left);
      found.both = lasso([[1, 1], [w - 1, 1], [w - 1, h / 2], [1, h / 2]], { shiftKey: true });
      key("+");
      const [seenW, seenH] = [$("plot-map").clientWidth, $("plot-map").clientHeight];
      found.seen = [seenW, seenH];
      found.zoomed = lasso([[1, 1], [seenW - 1, 1], [seenW - 1, seenH - 1], [1, seenH - 1]]);
      $("plot").scrollBy(40, 0);
      const edge = seenW / 2 - 40;
      found.panned = lasso([[-2000, -2000], [edge, -2000], [edge, 3000], [-2000, 3000]]);
      key("0");
      found.reset = lasso(whole);
    """
    rng = np.random.default_rng(0)
    data = labeled(sources=sources(), points=rng.uniform(size=(68, 2)).astype(np.float32))
    found = run(tmp_path, data, steps)
    low, high = data.points.min(axis=0), data.points.max(axis=0)
    x, y = (data.points - (low + high) / 2).T
    assert found["all"] == found["reset"] == 68
    assert found["left"] == found["panned"] == np.sum(x < 0)
    assert found["right"] == np.sum(x > 0)
    assert found["both"] == np.sum((x < 0) | (y > 0)), "up is up"
    sides = np.array(found["seen"])
    room = sides / 2 - 1  # in pixels around the middle
    scale = 1.5 * 0.92 * np.min(sides / (high - low))
    inside = (np.abs(x) * scale < room[0]) & (np.abs(y) * scale < room[1])
    assert found["zoomed"] == np.sum(inside) < 68


def test_points_at_one_place_are_drawn_side_by_side(tmp_path):
    said = "found.said = $('map').querySelector('p').textContent;"
    steps = """
      found.places = ["003", "005", "009", "020"].map((name) => placeOf(`folder/${name},`));
    """
    points = np.random.default_rng(2).uniform(size=(68, 2)).astype(np.float32)
    found = run(tmp_path, labeled(sources=sources(), points=points), said)
    assert "side by side" not in found["said"]
    points[[5, 9]] = points[3]
    found = run(tmp_path, labeled(sources=sources(), points=points), said + steps)
    assert "Several photos at one place are drawn side by side." in found["said"]
    *same, other = np.array(found["places"])
    apart = [np.linalg.norm(one - two) for i, one in enumerate(same) for two in same[:i]]
    assert 2 < min(apart) <= max(apart) < 40, "each is found under the mouse"
    assert np.linalg.norm(same - other, axis=1).min() > 40


def test_find_lists_its_hits_and_names_of_groups(tmp_path):
    steps = """
      const find = (text) => {
        $("find").value = text;
        $("find").dispatchEvent(new Event("input"));
      };
      const hits = (list) => all("button", $(list)).map((one) => one.title || one.textContent);
      key("/");
      found.focus = document.activeElement.id;
      find("03");
      found.photos = [hits("hits-groups"), hits("hits-points").sort(), $("hits-none").hidden];
      key("Enter", $("find"));
      found.name = $("view-name").textContent;
      $("view").close();
      $("hits-select").click();
      found.count = $("selection-count").textContent;
      find("CATS &");
      found.groups = [hits("hits-groups"), hits("hits-points"), $("hits-none").hidden];
      key("Enter", $("find"));
      found.top = Math.abs(card(0).getBoundingClientRect().top) < innerHeight / 2;
      find("zebra");
      found.none = [hits("hits-groups"), hits("hits-points"), $("hits-none").innerText];
      key("Escape", $("find"));
      found.left = [$("hits").hidden, $("find").value];
    """
    found = run(tmp_path, labeled(sources=sources())._replace(names={"0": "cats & dogs"}), steps)
    hits = [name for name in sources() if "03" in name]
    assert found["focus"] == "find"
    assert found["photos"] == [[], hits, True]
    assert "03" in found["name"]
    assert found["count"] == f"{len(hits)} photos selected"
    assert found["groups"] == [["cats & dogs"], [], True]
    assert found["top"]
    assert found["none"] == [[], [], "No photo and no group has this in its name."]
    assert found["left"] == [True, ""]


@pytest.mark.parametrize("changes", [{"fetch_images": None}, {"sources": None}])
def test_rows_and_images_without_names(tmp_path, changes):
    steps = """
      const place = placeOf("4");
      found.card = $("card").innerText;
      mouse("pointerdown", place); mouse("pointerup", place);
      found.name = $("view-name").textContent;
      found.large = $("view-large").hidden;
    """
    data = labeled(**{"sources": sources(), **changes})
    found = run(tmp_path, data, steps)
    names = [f"Image {i}" for i in range(68)] if data.sources is None else sources()
    shown = [name.removeprefix("folder/") for name in names]
    assert found["name"] in shown
    assert found["name"] in found["card"]
    assert found["large"] == (data.fetch_images is None)
