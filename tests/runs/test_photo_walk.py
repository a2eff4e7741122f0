"""Random walks over the commands of a run of photos, and what must hold after each step.

A photo is followed by its content, so that it may be renamed, moved, copied, and come back. What
must hold does not depend on which groups are found.
"""

import collections
import contextlib
import hashlib
import io as streams
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import images, predict, report, update
from cluster_jax.core import io
from cluster_jax.report import duplicates
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from tests import toy
from tests.runs.test_states import Killed, kill_before
from tests.runs.walks import check_decided, walk

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning"),
    pytest.mark.usefixtures("one_device", "shallow_lite"),
]

SIDE, KINDS = 24, 5
QUICK = ("--config.data.image_size=32", "--config.eval.batch_size=2", "--config.eval.reduce=pca")
STEPS = (
    *("come", "come", "leave", "back", "rename", "copies", "sizes", "replace", "folder", "move"),
    *("away", "gone", "exclude", "refit", "number", "command", "correct", "correct", "old_page"),
    *("two_files", "mind", "again", "keep", "name", "divide", "undo", "undo", "nothing", "place"),
    *("export", "killed", "killed", "locked"),
)


def drawn(rng, kind):
    """A photo of a kind as the bytes of a file: stripes across spots that no other photo has."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    color = np.array([[200, 40, 40], [40, 160, 60], [40, 60, 200], [210, 200, 60], [150, 60, 170]])
    stripes = np.sin((rows * (kind % 3) + columns * (kind % 2 + 1)) / (1 + kind / 2))
    spots = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize((SIDE, SIDE), 3)
    pixels = 0.6 * color[kind] + 60 * stripes[..., None] + 0.4 * (np.asarray(spots) - 128.0)
    return saved(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))


def saved(image):
    file = streams.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def key_of(content):
    return hashlib.sha256(content).hexdigest()[:12]


class Walk:
    """A run, the photos that exist, and what a person has decided about them."""

    def __init__(self, home, seed):
        self.home, self.rng = home / "home", np.random.default_rng(seed)
        self.count = 0
        self.trash = []  # what was deleted: the bytes of each file
        self.excluded = []  # names of files
        self.colors, self.labels = {}, {}  # content -> its mean color; its true label
        self.decided, self.names = {}, {}  # content -> cluster, -1 for none; cluster -> name
        self.pages = []  # (state, the content of each place, the cluster of each)
        self.past = []  # what `now` returned before each step that can be undone
        self.folders = ["photos"]
        self.has_labels, self.has_many_folders = bool(seed % 2), bool(seed % 3)
        self.has_file_of_labels = seed % 4 == 3
        first = []
        for kind in range(3):
            made = self.draw(f"photos/{'ab'[kind % 2]}", kind, int(self.rng.integers(7, 12)))
            first += [(path, f"kind {kind}") for path in made]
        if self.has_file_of_labels:  # Of the first photos alone, under their first names.
            lines = [f"{path.relative_to(self.home / 'photos')},{kind}" for path, kind in first]
            (self.home / "labels.csv").write_text("\n".join(["image,label", *lines]) + "\n")
        images.main([*self.places(), f"--workdir={self.run}", "--quiet", *self.flags, *QUICK])
        self.check()

    @property
    def run(self):
        return self.home / "run"

    @property
    def flags(self):
        if self.has_file_of_labels:
            return [f"--labels={self.home}/labels.csv"]
        return ["--labels=folders"] if self.has_labels else []

    def places(self):
        return [str(self.home / name) for name in self.folders]

    def write(self, folder, content):
        path = self.home / folder / f"IMG_{self.count:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.count += 1
        with Image.open(path) as image:
            self.colors[key_of(content)] = np.asarray(image, float).mean(axis=(0, 1))
        return path

    def draw(self, folder, kind, count):
        return [self.write(folder, drawn(self.rng, kind)) for _ in range(count)]

    def files(self):
        every = (path for name in self.folders for path in (self.home / name).rglob("*.png"))
        return sorted(path for path in set(every) if path.name not in self.excluded)

    def there(self):
        """How often each content is there, by content."""
        return collections.Counter(key_of(path.read_bytes()) for path in self.files())

    # What the outputs say.
    def keys(self, run):
        """The content of each row of a state."""
        return [bytes(facts["file"]).hex()[:12] for facts in run.facts]

    def clusters(self):
        """The clusters of each content, of copies all."""
        run = records.read(self.run)
        table = toy.table(self.run)
        assert [row["image"] for row in table] == list(run.names)
        found = collections.defaultdict(list)
        for key, row in zip(self.keys(run), table, strict=True):
            found[key].append(int(row["cluster"]))
        return {key: sorted(labels) for key, labels in found.items()}

    def now(self):
        places = [*self.folders], [*self.excluded]
        return self.clusters(), dict(self.decided), dict(self.names), places

    def remember(self, past=None):
        self.past.append(self.now() if past is None else past)

    def update(self, *flags):
        update.main([f"--workdir={self.run}", "--quiet", *flags])

    def report(self, *flags):
        report.main([str(self.run), "--quiet", *flags])

    def decide(self, said, state=None, name="said.json"):
        state = self.pages[-1][0] if state is None else state
        (self.home / name).write_text(json.dumps({"state": state, **said}))
        return f"--corrections={self.home}/{name}"

    def digests(self):
        kept = (path for path in self.run.rglob("*") if path.is_file() and path.name != "lock")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}

    # What must hold.
    def check(self, had=None, most=0.0, present=None):
        """The state on disk.

        Args:
            had: the clusters before, of which a share may move.
            most: that share.
            present: how often each content is there; None: as on the disk.
        """
        run, now = records.read(self.run), self.clusters()
        check_decided(run)
        present = self.there() if present is None else present
        assert {key: len(labels) for key, labels in now.items()} == present
        shown = {label for labels in now.values() for label in labels if label >= 0}
        results = io.read_json(self.run / "results.json")
        assert (results["number"], results["state"]) == (run.number, run.state)
        assert results["metrics"]["tree"]["n_clusters"] == len(shown)
        assert run.state in (self.run / "report.html").read_text() or run.points is not None
        if results["metrics"]["tree"].get("verdict") == "clear":
            assert run.is_of_fit
        for key, to in self.decided.items():
            assert to in now.get(key, [to]), f"{key} is decided"
        for label, name in self.names.items():
            assert run.named.get(label) == name
        if had is not None:
            both = [key for key in had if key in now]
            assert np.mean([set(had[key]) != set(now[key]) for key in both]) <= most
        assert max(shown, default=-1) < run.next_label
        self.check_pictures(run)
        if self.has_labels:
            assert results["metrics"]["tree"]["ari"] is not None
            names = [run.label_names[code] if code >= 0 else None for code in run.truth.tolist()]
            labels = dict(zip(self.keys(run), names, strict=True))
            labels = {key: name for key, name in labels.items() if present[key] == 1}
            for key in labels.keys() & self.labels.keys():
                assert labels[key] == self.labels[key], "a photo keeps its label"
            self.labels = labels
        if not self.pages or self.pages[-1][0] != run.state:
            self.pages.append((run.state, self.keys(run), run.labels.tolist()))

    def check_pictures(self, run):
        """Features and thumbnails are those of the photo of their row."""
        keys, pictures = self.keys(run), run.pictures()
        shown = pictures.fetch(pictures.places(run.columns["row"])).mean(axis=(1, 2))
        assert np.abs(shown - np.stack([*map(self.colors.get, keys)])).max() < 6
        features = self.__dict__.setdefault("features", {})
        for key, row in zip(keys, run.features, strict=True):
            np.testing.assert_allclose(row, features.setdefault(key, row), atol=1e-5)

    def changed(self, *flags, most=0.35, past=None):
        """An update of what has changed on the disk."""
        past = self.now() if past is None else past
        number = records.read(self.run).number
        self.update(*flags)
        if records.read(self.run).number > number:
            self.past.append(past)
        self.check(past[0], most)

    # What happens on the disk.
    def come(self):
        folder = self.rng.choice(["photos/a", "photos/b", f"photos/new{self.count}"])
        self.draw(folder, int(self.rng.integers(KINDS)), int(self.rng.integers(2, 8)))
        self.changed()

    def leave(self):
        files = [path for path in self.files() if self.rng.random() < 0.2]
        if len(files) < len(self.files()) - 5:
            for path in files:
                self.trash.append(path.read_bytes())
                path.unlink()
        self.changed()

    def back(self):
        for content in self.trash[-4:]:
            self.write("photos/b", content)
        del self.trash[-4:]
        self.changed()

    def rename(self):
        had = self.clusters()
        for path in self.files():
            path.rename(path.with_name(f"x{path.name}"))
        self.changed(most=0)
        assert self.clusters() == had or self.undone(had)

    def undone(self, had):
        """Whether the files that are there were others than those of the run before."""
        return {key: len(labels) for key, labels in had.items()} != self.there()

    def copies(self):
        """The same files again, elsewhere."""
        had = self.clusters()
        for path in self.rng.permutation(self.files())[:3]:
            self.write("photos/backup", path.read_bytes())
        self.changed()
        now = self.clusters()
        for labels in now.values():
            if len(labels) > 1 and not self.undone(had):
                assert len(set(labels)) == 1, "equal files are in one group"

    def sizes(self):
        """The same photo in other sizes."""
        with Image.open(self.rng.choice(self.files())) as image:
            for side in (20, 40, 48):
                self.write("photos/small", saved(image.resize((side, side), 3)))
        self.changed()

    def replace(self):
        """Another picture under an old name is another photo."""
        path = self.rng.choice(self.files())
        self.trash.append(path.read_bytes())
        new = self.write("photos/a", drawn(self.rng, int(self.rng.integers(KINDS))))
        new.replace(path)
        self.changed()

    def folder(self):
        if not self.has_many_folders:
            return
        past, name = self.now(), f"more{self.count}"
        self.draw(name, int(self.rng.integers(KINDS)), int(self.rng.integers(3, 7)))
        self.folders.append(name)
        self.changed(str(self.home / name), past=past)

    def move(self):
        """Photos and run move together, and any command comes first."""
        new = self.home.with_name(f"home{self.count}")
        self.count += 1
        shutil.move(self.home, new)
        self.home = new
        had = self.clusters()
        if self.rng.integers(2):
            self.report()
            assert self.clusters() == had
        self.changed(most=0.35)

    def away(self):
        """A folder is away for one update; nothing of it is lost, whatever comes in between."""
        self.changed()
        name = self.rng.choice(self.folders)
        had, here = self.clusters(), self.there()
        (self.home / name).rename(self.home / "unplugged")
        if len(self.folders) > 1 and self.rng.integers(2):
            other = next(other for other in self.folders if other != name)
            fresh = self.draw(other, int(self.rng.integers(KINDS)), 2)
            here += collections.Counter(key_of(path.read_bytes()) for path in fresh)
        past, number = self.now(), records.read(self.run).number
        if len(self.folders) > 1:
            self.update()
            if records.read(self.run).number > number:
                self.past.append(past)
            self.check(had, 0.35, here)
            if self.rng.integers(2):
                self.correct()
        else:
            with pytest.raises(SystemExit):
                self.update()
        had = self.clusters()
        (self.home / "unplugged").rename(self.home / name)
        self.update()
        assert self.clusters() == had
        self.check(had)

    def gone(self):
        if len(self.folders) == 1:
            return
        past, name = self.now(), self.folders[-1]
        for path in sorted((self.home / name).rglob("*.png")):
            self.trash.append(path.read_bytes())
        shutil.rmtree(self.home / name)
        self.folders.pop()
        self.changed(f"--gone={self.home / name}", "--yes", past=past)

    def exclude(self):
        path = self.rng.choice(self.files())
        past = self.now()
        self.excluded.append(path.name)
        self.changed(f"--exclude={path.name}", past=past)

    # What a person asks for.
    def refit(self):
        self.changed("--refit", most=1)

    def number(self, command=None):
        self.changed()
        self.remember()
        count = int(self.rng.integers(2, 5))
        if command is None:
            self.update(f"--n-clusters={count}")
        else:
            command(f"--n-clusters={count}")
        alive = {label for labels in self.clusters().values() for label in labels}
        fixed = {key for key, to in self.decided.items() if to in (*alive, -1)}
        self.decided = {key: self.decided[key] for key in fixed}
        assert len(alive - {-1}) == count or self.decided
        self.check()

    def command(self):
        """The command of the run, with another number of groups, or as it was."""
        self.changed()
        every = [*self.places(), f"--workdir={self.run}", "--quiet", *self.flags, *QUICK]
        excluded = records.read(self.run).config["data"]["exclude"]
        every += [f"--exclude={glob}" for glob in excluded]
        number = records.read(self.run).number
        self.number(lambda flag: images.main([*every, flag]))
        if records.read(self.run).number == number:
            self.past.pop()

    def pick(self, page, count):
        """Places of a page of photos without a copy, in groups of at least five."""
        _, keys, labels = page
        there = collections.Counter({key: len(is_in) for key, is_in in self.clusters().items()})
        rows = [i for i, key in enumerate(keys) if there[key] == keys.count(key) == 1]
        rows = [i for i in rows if labels[i] >= 0 and labels.count(labels[i]) > 4]
        rows = [i for i in rows if keys[i] not in self.decided]
        return self.rng.permutation(rows)[:count].tolist()

    def note(self, page, said):
        for row, to in said.get("labels", {}).items():
            self.decided[page[1][int(row)]] = to
        self.decided |= {page[1][row]: -1 for row in said.get("wrong", [])}
        self.names |= {int(label): name for label, name in said.get("names", {}).items()}

    def said(self, page, tag=""):
        """What a person decides on a page: a name, a move and what is wrong."""
        rows = self.pick(page, 2)
        groups = sorted({label for label in page[2] if label >= 0})
        if len(rows) < 2 or not groups:
            return {}
        names = {str(page[2][rows[0]]): f"name {len(self.past)}{tag}"}
        to = int(self.rng.choice(groups))
        return {"names": names, "labels": {str(rows[0]): to}, "wrong": [rows[1]]}

    def present(self):
        return {key: len(labels) for key, labels in self.clusters().items()}

    def apply(self, page, said, *files):
        past, present = self.now(), self.present()
        number = records.read(self.run).number
        self.report(*files)
        if records.read(self.run).number > number:
            self.past.append(past)
        for each in said:
            self.note(page, each)
        self.check(present=present)

    def correct(self):
        said = self.said(self.pages[-1])
        self.apply(self.pages[-1], [said], self.decide(said))

    def old_page(self):
        """Carried to the groups of the same photos, or refused, and then nothing has changed."""
        if len(self.pages) < 2:
            return
        page = self.pages[-2]
        said, had = self.said(page), self.digests()
        if not said:
            return
        label = int(next(iter(said["names"])))
        members = {k for k, c in zip(page[1], page[2], strict=True) if c == label}
        try:
            self.apply(page, [said], self.decide(said, page[0]))
        except SystemExit:
            assert self.digests() == had
            return
        now = self.clusters()
        inside = {key for key, labels in now.items() if label in labels}
        members &= now.keys()
        assert 2 * len(inside & members) >= len(inside | members) - 2

    def two_files(self):
        page = self.pages[-1]
        one, other = self.said(page, "a"), self.said(page, "b")
        rows = [{*map(int, each["labels"]), *each["wrong"]} for each in (one, other) if each]
        if len(rows) < 2 or one["names"].keys() == other["names"].keys() or rows[0] & rows[1]:
            return
        files = [self.decide(said, name=f"{i}.json") for i, said in enumerate((one, other))]
        self.apply(page, [one, other], *files)

    def again(self):
        """A file that was applied, once more."""
        if not (self.home / "said.json").exists():
            return
        had, present = self.digests(), self.present()
        number = records.read(self.run).number
        try:
            self.report(f"--corrections={self.home}/said.json")
        except SystemExit:
            assert self.digests() == had
            return
        run = records.read(self.run)
        if run.number > number:  # It was refused or undone before.
            self.past.clear()
            self.decided.clear()
            self.names = dict(run.named)
        self.check(present=present)

    def mind(self):
        """A second file of the page and browser, which decides otherwise."""
        page = self.pages[-1]
        rows, groups = self.pick(page, 3), sorted({label for label in page[2] if label >= 0})
        if len(rows) < 3:
            return
        one, other = self.rng.choice(groups, 2).tolist()
        who = {"browser": f"browser {self.count}"}
        first = {"labels": {str(rows[0]): one, str(rows[2]): one}, "wrong": [rows[1]], **who}
        last = {"labels": {str(rows[1]): other, str(rows[2]): other}, "wrong": [rows[0]], **who}
        for said in (first, last):
            self.apply(page, [said], self.decide(said, page[0], "mind.json"))

    def keep(self):
        """Of copies another one is kept; the copies stay where they are."""
        run = records.read(self.run)
        repeated = run.duplicates
        if not repeated.n_groups:
            return
        had = self.clusters()
        copy = int(repeated.images[~repeated.keep][0])
        self.apply(self.pages[-1], [], self.decide({"keep": [copy]}))
        assert self.clusters() == had
        after = records.read(self.run)
        assert not duplicates.are_copies(after.duplicates, np.array([copy]))[0]
        assert after.columns["kept"][copy]

    def name(self):
        had = self.clusters()
        label = next(label for labels in had.values() for label in labels if label >= 0)
        said = {"names": {str(label): f"given {len(self.past)}"}}
        name = said["names"][str(label)]
        self.apply(self.pages[-1], [said], f"--name={label}={name}")
        assert self.clusters() == had

    def divide(self):
        page = self.pages[-1]
        rows = self.pick(page, 1000)
        rows = [i for i in rows if page[2][i] == page[2][rows[0]]][::2]
        if not rows:
            return
        born = records.read(self.run).next_label
        said = {"new": {"a": None}, "labels": {str(i): "a" for i in rows}}
        now = {"labels": dict.fromkeys(said["labels"], born)}
        self.apply(page, [now], self.decide(said))

    def undo(self):
        if not self.past:
            return
        had, self.decided, self.names, (self.folders, self.excluded) = self.past.pop()
        self.labels = {}
        self.update("--undo")
        assert self.clusters() == had
        self.check(present={key: len(labels) for key, labels in had.items()})
        # A folder that was given up is one of the run again, and is not there.
        for name in [name for name in self.folders if not (self.home / name).exists()]:
            past = self.now()
            self.folders.remove(name)
            self.changed(f"--gone={self.home / name}", "--yes", past=past)

    def nothing(self):
        self.changed()
        before = self.digests()
        self.update()
        assert self.digests() == before

    def place(self):
        """Each photo of the run is placed where it is; the command writes nothing into the run."""
        self.changed()
        before, now = self.digests(), self.clusters()
        flags = [f"--workdir={self.run}", "--quiet", f"--out={self.home}/placed.csv"]
        predict.main([*flags, f"--images={self.home}/photos"])
        assert self.digests() == before
        with_names = {
            row["image"]: int(row["cluster"]) for row in toy.table(self.home, "placed.csv")
        }
        same = []
        for path in self.files():
            name = os.path.relpath(path, self.home / "photos")
            if name in with_names:
                key = key_of(path.read_bytes())
                same += (
                    [now[key] == [with_names[name]]] if key in now and len(now[key]) == 1 else []
                )
                assert key not in self.decided or key not in now or same[-1]
        assert np.mean(same) >= 0.9

    def export(self):
        """Each photo once, in the folder of its group; copies of one in their own."""
        self.changed()
        out = self.home / f"sorted{self.count}"
        self.count += 1
        before = self.digests()
        self.report(f"--export={out}", "--by=copy")
        assert self.digests() | {"exports.json": 0} == before | {"exports.json": 0}
        found = collections.Counter(key_of(path.read_bytes()) for path in out.rglob("*.png"))
        now = self.clusters()
        assert found == {key: len(labels) for key, labels in now.items()}
        for folder in out.iterdir():
            if folder.is_dir() and not folder.name.startswith("copies"):
                keys = [key_of(path.read_bytes()) for path in folder.rglob("*.png")]
                common = set.intersection(*(set(now[key]) for key in keys))
                assert common, "photos of one folder are of one group"
        shutil.rmtree(out)

    def acts(self):
        """Commands that make a state, by name."""
        acts = {"update": lambda: self.update(), "refit": lambda: self.update("--refit")}
        return acts | {"number": lambda: self.update("--n-clusters=3")}

    def killed(self):
        """A kill at any moment leaves the state before or the one after, and its outputs follow."""
        self.changed()
        page = self.pages[-1]
        said = self.said(page)
        acts = self.acts()
        if said:
            flag = self.decide(said, name="killed.json")
            acts["report"] = lambda: self.report(flag)
        kind = str(self.rng.choice(sorted(acts)))
        if kind == "update":
            self.draw("photos/a", int(self.rng.integers(KINDS)), 3)
        before = records.read(self.run)
        past = self.now()
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, int(self.rng.integers(12)))  # Of the writes of a command.
            with contextlib.suppress(Killed):
                acts[kind]()
        found = records.read(self.run)
        assert found.number in (before.number, before.number + 1)
        assert found.number > before.number or found.state == before.state
        if found.number == before.number or kind == "update":
            acts[kind]()
        else:
            self.report()
        after = records.read(self.run)
        assert after.number == before.number + 1 or after.state == before.state
        if kind == "report":
            self.note(page, said)
        if kind == "number":
            alive = {*after.labels.tolist(), -1}
            self.decided = {key: to for key, to in self.decided.items() if to in alive}
        if after.number > before.number:
            self.past.append(past)
        self.check(None if kind in ("refit", "number") else past[0], 0.35)

    def locked(self):
        """While one command uses the run, another one is refused and changes nothing."""
        before = self.digests()
        with workdirs.locked(self.run):
            for command in (
                lambda: self.update("--refit"),
                lambda: self.update("--undo"),
                lambda: self.report("--name=0=x"),
                lambda: self.update("--n-clusters=2"),
            ):
                with pytest.raises(SystemExit):
                    command()
        assert self.digests() == before


def test_a_walk(tmp_path):
    walk(Walk(tmp_path, 2), STEPS, 2, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_many_walks(tmp_path, seed):
    walk(Walk(tmp_path, seed), STEPS, seed, 20)
