"""Random walks over the commands of a run of embeddings, and what must hold after each step.

What must hold does not depend on which clusters are found. A row is followed by its key, which the
walk knows from the file of that step, so that the order of the table is tested at every step.
"""

import contextlib
import csv
import errno
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from cluster_jax.cli import cluster, predict, report, update
from cluster_jax.runs import place
from cluster_jax.runs import run as records
from tests.runs.test_states import Killed, kill_before
from tests.runs.walks import check_decided, walk

COLUMNS, KINDS = 10, 7
ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = (
    *("add", "add", "leave", "leave", "shuffle", "jitter", "copies", "refit", "number"),
    *("correct", "correct", "correct_old", "two_files", "contradict", "again", "name"),
    *("divide", "undo", "undo", "nothing", "place", "join", "stopped", "stopped"),
)


def break_off(patch, rng):
    """Kills at a drawn write of the next command, or from there on the disk is full."""
    number = int(rng.integers(12))
    if rng.random() < 0.5:
        kill_before(patch, number)
        return
    sync, left = os.fsync, [number]

    def full(file):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    patch.setattr(os, "fsync", full)


class Walk:
    """A run, the rows that exist, and what a person has decided about them."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.run = folder / "run"
        self.has_ids, self.has_labels = bool(seed % 2), bool(seed % 3)
        self.centers = 5 * self.rng.normal(size=(KINDS, COLUMNS))
        self.rows, self.kinds, self.order = {}, {}, []
        self.decided, self.names = {}, {}  # key -> cluster, -1 for none; cluster -> name
        self.pages = []  # (state, the keys in the order of the page, the cluster of each)
        self.past = []  # what `past_now` returned before each step that can be undone
        self.numbers = set()  # all numbers that clusters have had
        for kind in range(4):
            self.come(kind, int(self.rng.integers(12, 30)))
        flags = [f"--features={self.file()}", f"--workdir={self.run}", "--reduce=pca", "--quiet"]
        flags += ["--ids=ids", "--array=x"] if self.has_ids else []
        if self.has_labels:
            np.save(folder / "labels.npy", [self.kinds[key] for key in self.order])
            flags.append(f"--labels={folder}/labels.npy")
        cluster.main(flags)
        self.check()

    def come(self, kind, count):
        for _ in range(count):
            key = f"k{len(self.kinds)}"
            row = self.centers[kind] + self.rng.normal(size=COLUMNS)
            self.rows[key], self.kinds[key] = row.astype("f4"), kind
            self.order.append(key)

    def file(self, order=None):
        self.order = list(self.order if order is None else order)
        path = self.folder / "now.npz"
        ids = {"ids": np.array(self.order)} if self.has_ids else {}
        np.savez(path, x=np.stack([self.rows[key] for key in self.order]), **ids)
        return path

    def clusters(self):
        with open(self.run / "assignments.csv", newline="") as file:
            table = list(csv.DictReader(file))
        if self.has_ids:
            assert [row["ids"] for row in table] == self.order
        assert len(table) == len(self.order)
        return {k: int(row["cluster"]) for k, row in zip(self.order, table, strict=True)}

    def named(self):
        results = json.loads((self.run / "results.json").read_text())
        return {int(key): name for key, name in results["names"].items()}

    def past_now(self):
        named = dict(self.decided), dict(self.names), set(self.numbers)
        return self.clusters(), list(self.order), *named

    def remember(self):
        self.past.append(self.past_now())

    def update(self, *flags, order=None):
        update.main([f"--workdir={self.run}", f"--features={self.file(order)}", "--quiet", *flags])

    def decide(self, said, state=None, name="said.json"):
        state = self.pages[-1][0] if state is None else state
        (self.folder / name).write_text(json.dumps({"state": state, **said}))
        return f"--corrections={self.folder}/{name}"

    def report(self, *flags):
        report.main([str(self.run), "--quiet", *flags])

    # What must hold.
    def check(self, had=None, most=0.0):
        """The state on disk; `had` is what clusters were before, of which a share may move."""
        now = self.clusters()
        run = records.read(self.run)
        check_decided(run)
        shown = {c for c in now.values() if c >= 0}
        results = json.loads((self.run / "results.json").read_text())
        metrics = results["metrics"]["tree"]
        assert metrics["n_clusters"] == len(shown)
        sizes = {int(key): size for key, size in metrics["cluster_sizes"].items()}
        assert sizes == {c: [*now.values()].count(c) for c in shown}
        if metrics.get("verdict") == "clear":
            assert run.is_of_fit
        for key, to in self.decided.items():
            assert now.get(key, to) == to, f"{key} is decided"
        for label, name in self.names.items():
            assert self.named().get(label) == name
        if had is not None:
            both = [key for key in had if key in now]
            assert np.mean([had[key] != now[key] for key in both]) <= most
        placed = place.place(run, np.stack([*map(self.rows.get, self.order)]))
        assert placed.labels.shape == (len(now),)
        assert max(shown, default=-1) < run.next_label
        self.numbers |= shown
        if not self.pages or self.pages[-1][0] != run.state:
            self.pages.append((run.state, list(self.order), list(now.values())))

    # Steps.
    def add(self):
        self.remember()
        had = self.clusters()
        before = len(self.order)
        self.come(int(self.rng.integers(KINDS)), int(self.rng.integers(6, 25)))
        self.update(order=[*self.order[before:], *self.order[:before]])
        self.check(had, 0.3)

    def join(self):
        """The file has the new rows alone, and none leaves."""
        self.remember()
        had, before = self.clusters(), list(self.order)
        self.come(int(self.rng.integers(KINDS)), int(self.rng.integers(6, 25)))
        self.update("--add", order=self.order[len(before) :])
        self.order = [*before, *self.order]
        self.check(had, 0.3)

    def stopped(self):
        """A kill or a full disk leaves the state before or the one after; once more, it is done."""
        said = self.said(self.pages[-1])
        before, past, order = records.read(self.run), self.past_now(), list(self.order)
        self.come(int(self.rng.integers(KINDS)), 6)  # Only an update sees them.
        every = list(self.order)
        acts = {
            "update": lambda: self.update(order=every),
            "refit": lambda: update.main([f"--workdir={self.run}", "--refit", "--quiet"]),
            "report": lambda: self.report(self.decide(said, before.state, "stopped.json")),
        }
        kind = str(self.rng.choice(sorted(acts)))
        with pytest.MonkeyPatch.context() as patch:
            break_off(patch, self.rng)
            with contextlib.suppress(Killed, OSError, SystemExit):
                acts[kind]()
        found = records.read(self.run)
        assert found.number in (before.number, before.number + 1)
        assert found.number > before.number or found.state == before.state
        is_done = found.number > before.number
        self.report() if is_done and kind == "refit" else acts[kind]()
        self.order = every if kind == "update" else order
        assert records.read(self.run).number == before.number + 1
        self.past.append(past)
        if kind == "report":
            self.note(self.pages[-1], said)
        self.check(None if kind == "refit" else past[0], 0.3)

    def leave(self):
        self.remember()
        had = self.clusters()
        self.update(order=[key for key in self.order if self.rng.random() > 0.2])
        self.check(had, 0.3)

    def shuffle(self):
        had = self.clusters()
        self.update(order=self.rng.permutation(self.order).tolist())
        assert self.clusters() == had
        self.check()

    def jitter(self):
        if not self.has_ids:
            return
        self.remember()
        had = self.clusters()
        for key in self.order[::4]:
            self.rows[key] = self.rows[key] * np.float32(1 + 1e-6)
        self.update()
        self.check(had, 0.0)

    def copies(self):
        self.remember()
        had = self.clusters()
        original = self.order[0]
        made = [f"copy{len(self.kinds)}.{i}" for i in range(7)]
        self.rows |= dict.fromkeys(made, self.rows[original])
        self.kinds |= dict.fromkeys(made, self.kinds[original])
        self.update(order=[*self.order, *made])
        self.check(had, 0.3)
        if original not in self.decided:
            assert len({c for key, c in self.clusters().items() if key in made}) == 1

    def refit(self):
        self.remember()
        update.main([f"--workdir={self.run}", "--refit", "--quiet"])
        self.check()

    def number(self):
        self.remember()
        count = int(self.rng.integers(2, 7))
        update.main([f"--workdir={self.run}", f"--n-clusters={count}", "--quiet"])
        now = self.clusters()
        alive = set(now.values())
        fixed = {key for key, to in self.decided.items() if to in (*alive, -1)}
        self.decided = {key: self.decided[key] for key in fixed}
        assert len(alive - {-1}) == count or self.decided
        self.check()

    def pick(self, page, count):
        """Rows of a page that are still there, each of its own, in clusters of at least five."""
        _, order, labels = page
        there = set(self.order)
        rows = [i for i, key in enumerate(order) if key in there and labels.count(labels[i]) > 4]
        rows = [i for i in rows if labels[i] >= 0 and order[i] not in self.decided]
        return self.rng.permutation(rows)[:count].tolist()

    def note(self, page, said):
        for row, to in said.get("labels", {}).items():
            self.decided[page[1][int(row)]] = to
        self.decided |= {page[1][row]: -1 for row in said.get("wrong", [])}
        self.names |= {int(label): name for label, name in said.get("names", {}).items()}

    def said(self, page, tag=""):
        moved, wrong = self.pick(page, 2)
        label = page[2][moved]
        to = int(self.rng.choice([c for c in set(page[2]) if c >= 0]))
        names = {str(label): f"name {len(self.past)}{tag}"}
        return {"names": names, "labels": {str(moved): to}, "wrong": [wrong]}

    def correct(self):
        page = self.pages[-1]
        said = self.said(page)
        self.remember()
        self.report(self.decide(said))
        self.note(page, said)
        self.check()

    def correct_old(self):
        """Carried to the clusters of the same rows, or refused, and then nothing has changed."""
        if len(self.pages) < 2:
            return
        page = self.pages[-2]
        said = self.said(page)
        past = self.past_now()
        had = past[0]
        label = int(next(iter(said["names"])))
        members = {k for k, c in zip(page[1], page[2], strict=True) if c == label and k in had}
        number = records.read(self.run).number
        try:
            self.report(self.decide(said, page[0]))
        except SystemExit:
            assert self.clusters() == had
            return
        if records.read(self.run).number > number:
            self.past.append(past)
        self.note(page, said)
        now = {key for key, cluster in self.clusters().items() if cluster == label}
        # Other files, also of the same page, may have divided it.
        now, members = now - self.decided.keys(), members - self.decided.keys()
        assert 2 * len(now & members) >= len(now | members)
        self.check()

    def two_files(self):
        page = self.pages[-1]
        one, other = self.said(page, "a"), self.said(page, "b")
        rows = [{*map(int, said["labels"]), *said["wrong"]} for said in (one, other)]
        if one["names"].keys() == other["names"].keys() or rows[0] & rows[1]:
            return
        self.remember()
        files = [self.decide(said, name=f"{i}.json") for i, said in enumerate((one, other))]
        self.report(*files)
        self.note(page, one)
        self.note(page, other)
        self.check()

    def contradict(self):
        page = self.pages[-1]
        (row,) = self.pick(page, 1)
        to = next(c for c in page[2] if c not in (-1, page[2][row]))
        one = {"wrong": [row]}
        self.remember()
        self.report(self.decide(one))
        self.note(page, one)
        had = self.clusters()
        with pytest.raises(SystemExit):
            self.report(self.decide({"labels": {str(row): to}}, page[0]))
        assert self.clusters() == had
        self.check()

    def again(self):
        """A file that was applied, once more."""
        if not (self.folder / "said.json").exists():
            return
        number = records.read(self.run).number
        try:
            self.report(f"--corrections={self.folder}/said.json")
        except SystemExit:
            return
        if records.read(self.run).number > number:  # It was refused or undone before.
            self.past.clear()
            self.decided.clear()
            self.names = self.named()
        self.check()

    def name(self):
        had = self.clusters()
        label = next(c for c in had.values() if c >= 0)
        self.remember()
        self.report(f"--name={label}=given {len(self.past)}")
        self.names[label] = f"given {len(self.past)}"
        assert self.clusters() == had
        self.check()

    def divide(self):
        page = self.pages[-1]
        (row,) = self.pick(page, 1)
        label = page[2][row]
        rows = [i for i in range(len(page[1])) if page[2][i] == label]
        rows = [i for i in rows if page[1][i] not in self.decided][::2]
        self.remember()
        self.report(self.decide({"new": {"a": None}, "labels": {str(i): "a" for i in rows}}))
        now = self.clusters()
        made = {now[page[1][i]] for i in rows}
        assert len(made) == 1
        assert not made & self.numbers, "a number is used once"
        self.decided |= {page[1][i]: now[page[1][i]] for i in rows}
        self.check()

    def undo(self):
        if not self.past:
            return
        had, self.order, self.decided, self.names, self.numbers = self.past.pop()
        self.rows = {key: self.rows[key] for key in self.rows}
        update.main([f"--workdir={self.run}", "--undo", "--quiet"])
        assert self.clusters() == had
        self.check()

    def nothing(self):
        before = {path: path.read_bytes() for path in self.run.iterdir() if path.name != "lock"}
        self.update()
        assert before == {path: path.read_bytes() for path in before}

    def place(self):
        np.save(self.folder / "new.npy", np.stack([self.rows[key] for key in self.order]))
        flags = [f"--workdir={self.run}", f"--features={self.folder}/new.npy", "--quiet"]
        predict.main([*flags, f"--out={self.folder}/new.csv"])
        with open(self.folder / "new.csv", newline="") as file:
            placed = [int(row["cluster"]) for row in csv.DictReader(file)]
        now = self.clusters()
        free = [key not in self.decided for key in self.order]
        same = [now[key] == to for key, to in zip(self.order, placed, strict=True)]
        assert np.mean(np.array(same)[free]) >= 0.9


@pytest.mark.parametrize("seed", [1, 2])
def test_a_walk(tmp_path, seed):
    walk(Walk(tmp_path, seed), STEPS, seed, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 50))
def test_many_walks(tmp_path, seed):
    walk(Walk(tmp_path, seed), STEPS, seed, 20)


def started(one, *flags):
    """A process of `update` on the run of a walk."""
    program = "from cluster_jax.cli import update; update.main()"
    command = [sys.executable, "-c", program, f"--workdir={one.run}", "--quiet", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
def test_two_processes_at_once(tmp_path, seed):
    """What each of them adds is there, unless it is refused: nothing is lost in silence."""
    one = Walk(tmp_path, seed)
    had, number = one.clusters(), records.read(one.run).number
    both = []
    for i in range(2):
        one.come(4 + i, 9)
        new = one.file(one.order[-9:]).rename(tmp_path / f"new{i}.npz")
        one.order = [*had, *one.order]
        both.append(started(one, "--add", f"--features={new}"))
    codes = sorted(process.wait() for process in both)
    assert codes in ([0, 0], [0, 2])
    now = records.read(one.run)
    assert now.number == number + codes.count(0)
    assert len(now.columns) == len(had) + 9 * codes.count(0)
    stays = now.labels[: len(had)] == np.array([*had.values()])
    assert stays.mean() >= 0.7
    assert (one.run / "assignments.csv").read_text().count("\n") == 1 + len(now.columns)
    one.report()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
@pytest.mark.parametrize("kind", ["update", "undo"])
def test_a_process_that_the_system_kills(tmp_path, seed, kind):
    """As of the steps `stopped`, but with a signal that no code sees, at a time of its own."""
    one = Walk(tmp_path, seed)
    one.add()
    had = one.clusters()
    one.come(5, 9)
    undone, order, *_ = one.past[-1]
    number, every = records.read(one.run).number, list(one.order)
    flags = ["--undo"] if kind == "undo" else [f"--features={one.file()}"]
    changed = one.run.stat().st_mtime_ns  # A file appears in it at the first write.
    process = started(one, *flags)
    while process.poll() is None and one.run.stat().st_mtime_ns == changed:
        time.sleep(0.001)
    time.sleep(one.rng.uniform(0, 0.03))
    process.kill()
    process.wait()
    found = records.read(one.run).number
    if kind == "update":
        assert found in (number, number + 1)
        one.update(order=every)
        assert records.read(one.run).number == number + 1
        one.check(had, 0.3)
        return
    assert found in (number, number - 1)
    shown = json.loads((one.run / "results.json").read_text())["number"]
    assert found == number or shown == found, "who sees the old outputs would go back twice"
    if found == number:
        update.main([f"--workdir={one.run}", "--undo", "--quiet"])
    else:
        one.report()
    one.order = order
    assert one.clusters() == undone
    one.check()
