"""A whole evening with photos: what is decided in the browser carries through all commands."""

import re
import shutil

import pytest
from PIL import Image

from cluster_jax.cli import images, predict, report
from tests import toy
from tests.cli.test_images import QUICK
from tests.report.browser import CHROMIUM, STEPS, WATCH, visit

pytestmark = [
    pytest.mark.usefixtures("one_device"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

LOOK = """
  const shown = async () => {
    for (let i = 0; i < 50 && $("view-file").hidden; i++) await pause();
    if (!$("view-file").hidden) found.files++;
    return $("view-name").textContent;
  };
  const count = (id) => Number(size(id).split(" ")[0]);
  const ids = all("article:not([hidden])").map((one) => one.dataset.group).filter((id) => id >= 0);
  found.files = 0;
  found.ids = ids;
  found.sizes = ids.map(count);
  found.seen = [];
  for (const tile of all(".best .tile").slice(0, 5)) {
    tile.click();
    found.seen.push(await shown());
    $("view").close();
  }
  all(".best .tile")[0].click();
  for (const name of ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp"]) {
    key(name);
    found.seen.push(await shown());
  }
  $("view").close();
"""
DECIDE = """
  const [first, second, third, fourth] = ids;
  type(first, 'Omas "Garten" / 猫');
  merge(second, first);
  found.made = [tile(third, 0).title, tile(third, 1).title];
  select(third, 0);
  select(third, 1);
  choose($("move"), "new");
  $("clear").click();
  const made = all("article").map((one) => one.dataset.group).find((id) => !ids.includes(id));
  type(made, "best");
  found.moved = tile(third, 0).title;
  tile(third, 0).click();
  choose($("view-move"), first);
  $("view").close();
  found.wrong = tile(third, 0).title;
  tile(third, 0).click();
  key("w");
  key("u");
  key("w");
  $("view").close();
  found.now = [first, third, made].map(count);
  $("save-corrections").click();
  found.how = $("how").innerText;
"""


def open_page(tmp_path, page, steps):
    """What the steps found on a page that lies where its command has written it."""
    head, _, rest = page.read_text("utf-8").partition("<title>")
    rest = rest.rpartition("</body>")[0]
    copy = page.with_name("visited.html")
    copy.write_text(f"{head}{WATCH}<title>{rest}{STEPS % steps}", "utf-8")
    found = visit(tmp_path, copy)
    copy.unlink()
    return found


def test_a_whole_evening(tmp_path, capsys):
    photos, out, new = tmp_path / "photos", tmp_path / "out", tmp_path / "new"
    pixels, _ = toy.images(90, channels=3)
    for i, image in enumerate(pixels[:60]):
        name = f"{2023 + i % 2}/0{i % 3 + 1} Juli/IMG {i:02}.png"
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((40, 40), 0).save(photos / name)
    (photos / "whatsapp").mkdir()
    for i in (3, 4, 5):
        original = next(photos.rglob(f"IMG {i:02}.png"))
        shutil.copy(original, photos / "whatsapp" / f"z{i}.png")
    new.mkdir()
    for i, image in enumerate(pixels[60:]):
        Image.fromarray(image).resize((40, 40), 0).save(new / f"{i:02}.png")
    images.main([str(photos), f"--workdir={out}", "--n-clusters=4", *QUICK])
    found = open_page(tmp_path, out / "report.html", LOOK + DECIDE)
    assert found["files"] == len(found["seen"]) == 10
    assert len(set(found["seen"])) > 5
    (corrections,) = found["downloads"]
    first, second, third, _ = found["ids"]
    # An equal copy goes where a photo goes.
    assert found["now"][0] == sum(found["sizes"][:2]) + 1
    assert found["now"][1] + 3 <= found["sizes"][2]
    assert found["now"][2] >= 2
    command = rf"cluster-jax report {out} --corrections=corrections[-_0-9]*\.json"
    assert re.search(command, found["how"])
    # The command takes it; the duplicates come into a folder of their own.
    (tmp_path / "corrections.json").write_text(corrections)
    exported = tmp_path / "sorted"
    report.main(
        [str(out), f"--corrections={tmp_path / 'corrections.json'}", f"--export={exported}"]
    )
    copies = sorted(file.name for file in (exported / "copies").iterdir())
    assert copies == ["z3.png", "z4.png", "z5.png"]
    rows = {row["image"]: row for row in toy.table(out)}
    sizes = [sum(row["cluster"] == c for row in rows.values()) for c in (first, second, third)]
    assert sizes == [found["now"][0], 0, found["now"][1]]
    # A new group has a number of its own once its corrections are used.
    assert [rows[name]["cluster"] for name in found["made"]] == ["4"] * 2
    assert rows[found["moved"]]["cluster"] == first
    assert rows[found["wrong"]]["cluster"] == "-1"
    assert {row["name"] for row in rows.values() if row["cluster"] == first} == {
        'Omas "Garten" / 猫'
    }
    folders = sorted(path.name for path in exported.iterdir())
    assert {"Omas _Garten_ _ 猫", "best", "no_group"} < set(folders)
    assert len([*(exported / "best").iterdir()]) == 2
    # Thirty new photos come into the groups as they are now.
    predict.main([f"--workdir={out}", f"--images={new}"])
    placed = toy.table(out, "predictions.csv")
    assert len(placed) == 30
    assert all(0 <= float(row["probability"]) <= 1 for row in placed)
    assert second not in {row["cluster"] for row in placed}
    assert sum(row["name"] == 'Omas "Garten" / 猫' for row in placed) >= 10
    # All of it again, on the corrected page.
    second_round = LOOK + DECIDE.replace('Omas "Garten" / 猫', "Garten").replace('"best"', '"rest"')
    # Photos are moved out of the largest group.
    second_round = second_round.replace("[first, second, third, fourth]", "[third, first, second]")
    found = open_page(tmp_path, out / "report.html", second_round)
    (tmp_path / "second.json").write_text(found["downloads"][-1])
    report.main([str(out), f"--corrections={tmp_path / 'second.json'}"])
    rows = {row["image"]: row for row in toy.table(out)}
    assert {"Garten", "rest", 'Omas "Garten" / 猫'} <= {row["name"] for row in rows.values()}
    assert rows[found["moved"]]["cluster"] == found["ids"][1]
    assert [rows[name]["cluster"] for name in found["made"]] == ["5"] * 2
