"""What a person has decided about the clusters of a run: read, checked, joined, and applied.

A decision is a fact about images or clusters, and later facts override earlier ones. A page saves
the decisions of a visit in a file of corrections; `DECISIONS` in a workdir has all of them.
The numbers of clusters never change their meaning: merged ones are not used again.
"""

import collections
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER as NO_CLUSTER
from cluster_jax.clustering.membership import Membership
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError
from cluster_jax.discovery import splits
from cluster_jax.report import assignments
from cluster_jax.report.assignments import Table

DECISIONS = "decisions.csv"
MAX_NAME = 100  # characters of a name
FOUND = "found_cluster"  # title of the clusters that the run found, once they are corrected
_NOVEL = splits.novel_name(0).removesuffix("0")
CONTENTS = ("content", "to_content")  # titles of contents of images, where they are known
PAIRS = ("same", "apart", "distinct")  # corrections about two images, and fields of `Decisions`
_NOUNS = ("image", "row")  # titles of names
_GONE = "\0"  # in place of the name of an image that is gone
_TYPICAL = 20  # images by which a file says which cluster it means
_SAVE_AGAIN = "save it again on the page of the run"


class Clusters(NamedTuple):
    """The clusters that a run has found.

    Attributes:
        names: of the n images or rows that are in clusters, as in `assignments.csv`, unescaped.
        labels: int `[n]`, their clusters, as they were found.
        distances: float `[n]`, to the centers of these.
        noun: "image" or "row".
        run: identifies the run, whatever is decided about its clusters, see `digest`.
        contents: name -> digest of the content, as hexadecimal digits; empty: names are all that
            tells images or rows apart.
    """

    names: Sequence[str]
    labels: NDArray
    distances: NDArray
    noun: str
    run: str
    contents: Mapping[str, str] = {}


def digest(names: Sequence[str], labels: NDArray) -> str:
    """Identifies a run by its images and the clusters that it has found."""
    every = json.dumps(list(names)).encode()
    return hashlib.sha256(every + np.ascontiguousarray(labels, np.int64).tobytes()).hexdigest()[:16]


class Absent(NamedTuple):
    """Facts about images that are gone: they come back with them.

    Attributes:
        moved: content of an image -> the cluster to which a person has moved it, or `NO_CLUSTER`.
        pairs: kind of a pair, of `PAIRS`, and the contents of both images.
        names: content -> the last name.
    """

    moved: Mapping[str, int] = {}
    pairs: frozenset[tuple[str, str, str]] = frozenset()
    names: Mapping[str, str] = {}


class Decisions(NamedTuple):
    """What a person has decided.

    Attributes:
        moved: name of an image -> the cluster that it belongs to, its own if a person has confirmed
            it, or `NO_CLUSTER`.
        merged: cluster -> the one that it is a part of.
        named: cluster -> its name.
        created: clusters that the run did not find.
        same, apart: pairs of names of images that are in one cluster, and in two, see
            `clustering.constraints`; they hold from the next update on.
        distinct: pairs of names of images that are no duplicates of one another.
        absent: facts about images that are gone.
    """

    moved: Mapping[str, int] = {}
    merged: Mapping[int, int] = {}
    named: Mapping[int, str] = {}
    created: frozenset[int] = frozenset()
    same: frozenset[tuple[str, str]] = frozenset()
    apart: frozenset[tuple[str, str]] = frozenset()
    distinct: frozenset[tuple[str, str]] = frozenset()
    absent: Absent = Absent()

    @property
    def is_of_members(self) -> bool:
        """Whether a person has decided about images or clusters, and not about names alone."""
        return bool(self.moved or self.merged or self.created)

    def root(self, cluster: int) -> int:
        """Returns the cluster that a cluster is a part of: itself, if it was not merged."""
        while cluster in self.merged:
            cluster = self.merged[cluster]
        return cluster

    def labels(self, run: Clusters) -> NDArray:
        """Returns the clusters of all images as decided, int64 `[n]`."""
        moved = [self.moved.get(name, label) for name, label in self._found(run)]
        return np.array([self.root(label) for label in moved], np.int64)

    def is_decided(self, run: Clusters) -> NDArray:
        """Returns which images a person has moved, confirmed, or marked wrong, bool `[n]`."""
        return np.array([name in self.moved for name in run.names], bool)

    def next_cluster(self, run: Clusters) -> int:
        """Returns the lowest number that no cluster has had."""
        moved = (*self.moved.values(), *self.absent.moved.values())
        return 1 + max(*run.labels.tolist(), *self.created, *self.merged, *moved, -1)

    def _found(self, run: Clusters) -> zip:
        return zip(run.names, run.labels.tolist(), strict=True)

    def summary(self, group: str = "cluster") -> str:
        """Counts the decisions in words: "3 moved, 1 in no cluster, 2 merged".

        Args:
            group: what a cluster is called.
        """
        lost = list(self.moved.values()).count(NO_CLUSTER)
        counts = {
            "moved or confirmed": len(self.moved) - lost,
            f"in no {group}": lost,
            "new": len(self.created),
            "merged": len(self.merged),
            "named": len(self.named),
            "pairs together": len(self.same),
            "pairs apart": len(self.apart),
            "pairs that are no duplicates": len(self.distinct),
        }
        return ", ".join(f"{n:,} {word}" for word, n in counts.items() if n) or "none"


def join(before: Decisions, after: Decisions) -> Decisions:
    """Joins earlier and later decisions; the later ones count where both say something.

    Raises:
        InputError: the later ones merge a cluster into a part of itself.
    """
    merged = dict(before.merged)
    joined = Decisions(
        {**before.moved, **after.moved},
        merged,
        created=before.created | after.created,
        same=(before.same - after.apart) | after.same,
        apart=(before.apart - after.same) | after.apart,
        distinct=before.distinct | after.distinct,
        absent=Absent(
            {**before.absent.moved, **after.absent.moved},
            before.absent.pairs | after.absent.pairs,
            {**before.absent.names, **after.absent.names},
        ),
    )
    for cluster, into in after.merged.items():
        old, new = joined.root(cluster), joined.root(into)
        if old != new:
            merged[old] = new
    named = {joined.root(cluster): name for cluster, name in after.named.items()}
    return joined._replace(named={**before.named, **named})


def read_workdir(workdir: epath.PathLike, run: Clusters) -> Decisions:
    """Reads the decisions of a run; none if a person has decided nothing.

    Raises:
        InputError: the file is damaged, or belongs to other clusters than those of the run.
    """
    file = buckets.path(workdir) / DECISIONS
    return read(file, run, Decisions()) if file.exists() else Decisions()


def is_of(file: epath.PathLike, run: str) -> bool:
    """Returns whether a file's decisions are about the clusters of the run of this digest."""
    _, rows = assignments.read(epath.Path(file))
    return bool(rows) and rows[0].get("to") == run


def read(file: epath.PathLike, run: Clusters, before: Decisions) -> Decisions:
    """Reads the decisions in a file, in the numbers of the clusters of a run.

    Clusters of another run are those with most of the images by which the file means them.

    Args:
        file: as a page saves it: lines of image, cluster, correction, and to. The corrections are
            "run" (to: the digest of the run), "member" (an image by which the cluster is meant),
            "new" (a new cluster and its name), "merge" (into the cluster `to`), "name", "move" (to
            a cluster; to its own: a person has confirmed it), "wrong", "same", "apart" and
            "distinct" (no duplicates; `to` is another image), and "end". Where `content` and
            `to_content` have the contents of the images, these say which images are meant, whatever
            they are called now.
        run: the clusters that the run has found.
        before: earlier decisions about them.

    Raises:
        InputError: the file or one of its lines does not fit the run; says which and why.
    """
    lines, members, absent, is_own = _lines(file, run)
    clusters = _meant(file, lines, members, run, before, is_own=is_own)
    names, counts = set(run.names), collections.Counter(run.names)
    moved, merged, named = dict[str, int](), dict[int, int](), dict[int, str]()
    at: dict[tuple[str, object], int] = {}
    pairs: dict[str, set[tuple[str, str]]] = {kind: set() for kind in PAIRS}
    for number, (name, cluster, kind, to) in lines:
        must = f"line {number} of {file} must"
        if kind == "new":
            if to:
                named[clusters[cluster]] = _name(to, must)
        elif kind == "name":
            cluster_ = clusters[cluster]
            if named.get(cluster_, _name(to, must)) != _name(to, must):
                raise InputError(
                    f"{must} agree with line {at['name', cluster_]}; got another name of cluster "
                    f"{cluster}: leave one"
                )
            named[cluster_], at["name", cluster_] = _name(to, must), number
        elif kind == "merge":
            old, new = clusters[cluster], clusters[to]
            if merged.get(old, new) != new:
                raise InputError(
                    f"{must} agree with line {at['merge', old]}; got {cluster} merged into another "
                    "cluster: leave one"
                )
            if Decisions(merged=merged).root(new) == old:
                raise InputError(
                    f"{must} merge two clusters; got {cluster} and {to}, which is a part of it: "
                    "leave one"
                )
            merged[old], at["merge", old] = new, number
        else:
            is_pair, other = kind in pairs, to
            if not is_own and {name, *([other] * is_pair)} - names:
                continue
            for each in (name, other)[: 1 + is_pair]:
                if counts[each] != 1:
                    problem = f"{each!r}" + (", which several have" if counts[each] else "")
                    raise InputError(f"{must} name one {run.noun} of the run; got {problem}")
            if is_pair:
                pair = (min(name, other), max(name, other))
                opposite = {"same": "apart", "apart": "same"}.get(kind, kind)
                if name == other or (opposite != kind and pair in pairs[opposite]):
                    where = "itself" if name == other else f"line {at[opposite, pair]}"
                    raise InputError(
                        f"{must} agree with {where}; got {name!r} and {other!r} as {kind!r}: "
                        "leave one"
                    )
                pairs[kind].add(pair)
                at[kind, pair] = number
                continue
            target = NO_CLUSTER if kind == "wrong" else clusters[to]
            if moved.get(name, target) != target:
                raise InputError(
                    f"{must} agree with line {at['move', name]}; got another decision about "
                    f"{name!r}: leave one"
                )
            moved[name], at["move", name] = target, number
    created = frozenset(clusters[cluster] for _, (_, cluster, kind, _) in lines if kind == "new")
    same, apart, distinct = map(frozenset, pairs.values())
    return Decisions(moved, merged, named, created, same, apart, distinct, absent)


def to_csv(decisions: Decisions, run: Clusters) -> str:
    """Formats the file of decisions, see `read`; the same decisions give the same text."""
    now, order = decisions.labels(run), np.argsort(run.distances, kind="stable")
    meant = {*decisions.named, *decisions.created, *decisions.merged, *decisions.merged.values()}
    meant |= {cluster for cluster in decisions.moved.values() if cluster != NO_CLUSTER}
    rows: list[tuple[Any, ...]] = [("", "", "run", run.run)]
    for cluster in sorted(meant):
        labels = now if cluster in decisions.created else run.labels
        typical = order[labels[order] == cluster][:_TYPICAL]
        rows += [(run.names[i], cluster, "member", "") for i in typical]
    rows += [("", cluster, "new", "") for cluster in sorted(decisions.created)]
    rows += [("", a, "merge", b) for a, b in sorted(decisions.merged.items())]
    named = sorted(decisions.named.items())
    rows += [("", cluster, "name", name) for cluster, name in named]
    cluster_of = dict(zip(run.names, run.labels.tolist(), strict=True))
    for name, cluster in decisions.moved.items():
        kind = ("wrong", "") if cluster == NO_CLUSTER else ("move", cluster)
        rows.append((name, cluster_of.get(name, ""), *kind))
    rows += [(a, "", kind, b) for kind in PAIRS for a, b in sorted(getattr(decisions, kind))]
    titles: tuple[str, ...] = (run.noun, "cluster", "correction", "to")
    if run.contents:
        key = {"": "", **run.contents}
        rows = [
            (name, cluster, kind, to, key.get(name, ""), key.get(to, "") if kind in PAIRS else "")
            for name, cluster, kind, to in rows
        ]
        gone = decisions.absent
        last = {**{content: name for name, content in run.contents.items()}, **gone.names}
        for content, cluster in gone.moved.items():
            kind = ("wrong", "") if cluster == NO_CLUSTER else ("move", cluster)
            rows.append((last[content], "", *kind, content, ""))
        rows += [(last[a], "", kind, last[b], a, b) for kind, a, b in sorted(gone.pairs)]
        titles += CONTENTS
    rows.append(("", "", "end", "", "", "")[: len(titles)])
    return assignments.to_csv(dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True)))


_Lines = list[tuple[int, tuple[str, str, str, str]]]


def _lines(
    file: epath.PathLike, run: Clusters
) -> tuple[_Lines, dict[str, list[str]], Absent, bool]:
    """Reads a file's numbered lines, its clusters' images, and whether it is of the run itself.

    Images have the names of the run; lines about images that are gone are facts of their own. Lines
    of "run", "member" and "end" are left out.
    """
    path = buckets.path(file)
    if not path.exists() or path.is_dir():
        problem = "a folder" if path.exists() else "no such file"
        raise InputError(f"{file} must be a file that a report has saved; got {problem}")
    titles, rows = assignments.read(path)
    expected = [(noun, "cluster", "correction", "to") for noun in _NOUNS]
    if tuple(titles) not in [*expected, *((*plain, *CONTENTS) for plain in expected)]:
        columns = "the columns image, cluster, correction, to, as a report saves them"
        raise InputError(f"{file} must have {columns}; got {', '.join(titles) or 'none'}")
    lines, members = [], collections.defaultdict(list)
    is_own = bool(rows) and rows[0]["to"] == run.run
    named = collections.defaultdict[str, list[str]](list)
    for name, content in run.contents.items():
        named[content].append(name)
    moved, pairs, names = dict[str, int](), set[tuple[str, str, str]](), dict[str, str]()
    kinds = ("member", "new", "merge", "name", "move", "wrong", *PAIRS)
    for number, row in enumerate(rows, 2):
        cells = tuple(row.get(title) for title in titles[:4])
        name, cluster, kind, to = ("" if cell is None else cell for cell in cells)
        is_needed = {
            "member": name and cluster, "new": cluster, "merge": cluster and to,
            "name": cluster and to, "move": name and to, "wrong": name,
            **dict.fromkeys(PAIRS, name and to),
        }  # fmt: skip
        if kind in ("run", "end"):
            continue
        if kind not in kinds or not is_needed[kind] or None in cells or None in row:
            raise InputError(
                f"line {number} of {file} must have an image, a cluster, one of {', '.join(kinds)} "
                f"and what it is moved to; got {cells}: {_SAVE_AGAIN}"
            )
        contents = [row.get(title) or "" for title in CONTENTS[: 1 + (kind in PAIRS)]]
        images = [assignments.unescaped(image) for image in (name, to)[: len(contents)]]
        there = list[str]()
        for image, content in zip(images, contents, strict=True):
            # Without contents in the line or in the run, names are all that there is.
            same = [n for n in named[content] if n not in there] if named and content else [image]
            there.append(image if image in same else (same or [_GONE])[0])
        if kind == "member":
            members[cluster].append(there[0])
        elif _GONE not in there:
            lines.append((number, (there[0], cluster, kind, there[1] if kind in PAIRS else to)))
        elif is_own:
            # A file that was written for the run has the contents of both images of a pair.
            contents = [c or run.contents.get(i, "") for i, c in zip(images, contents, strict=True)]
            names |= dict(zip(contents, images, strict=True))
            if kind in PAIRS:
                pairs.add((kind, contents[0], contents[1]))
                continue
            target = NO_CLUSTER if kind == "wrong" else _number(to)
            if target is None or moved.get(contents[0], target) != target:
                raise InputError(
                    f"line {number} of {file} must have the one cluster of {images[0]!r}, which is "
                    f"gone; got {to!r}"
                )
            moved[contents[0]] = target
    if not rows or rows[0]["correction"] != "run" or rows[-1]["correction"] != "end":
        raise InputError(
            f"{file} must begin with the line of its run and end with a line 'end'; got a file "
            f"that was cut off, or of an older version: {_SAVE_AGAIN}"
        )
    return lines, dict(members), Absent(moved, frozenset(pairs), names), is_own


def _meant(
    file: epath.PathLike,
    lines: _Lines,
    members: Mapping[str, list[str]],
    run: Clusters,
    before: Decisions,
    *,
    is_own: bool,
) -> dict[str, int]:
    """Maps the number of each cluster in the file to the run's cluster that is meant."""
    now = dict(zip(run.names, before.labels(run).tolist(), strict=True))
    taken = {*run.labels.tolist(), *before.created, *before.merged}
    fresh, clusters = before.next_cluster(run), dict[str, int]()
    for _, (_, cluster, kind, _) in lines:
        if kind != "new":
            continue
        moved = [name for _, (name, *_, to) in lines if name and to == cluster]
        mine = [name for name in (*members.get(cluster, ()), *moved) if name in now]
        is_same = mine and 2 * sum(str(now[name]) == cluster for name in mine) > len(mine)
        same_number = _number(cluster) if is_own else None
        if same_number is not None and (same_number not in taken or is_same):
            clusters[cluster], fresh = same_number, max(fresh, same_number + 1)
        else:
            clusters[cluster], fresh = fresh, fresh + 1
    for number, (_, cluster, kind, to) in lines:
        asked = {"merge": (cluster, to), "name": (cluster,), "move": (to,)}.get(kind, ())
        for each in asked:
            if each in clusters:
                continue
            if is_own:
                if _number(each) not in taken:
                    raise InputError(
                        f"line {number} of {file} must name a cluster of the run; got {each!r}"
                    )
                clusters[each] = int(each)
            else:
                clusters[each] = _match(file, each, members.get(each, []), now)
    meant = collections.Counter(clusters.values())
    for cluster, target in clusters.items():
        if meant[target] > 1:
            raise InputError(
                f"the clusters of {file} must be other ones in this run, too; got {cluster} and "
                f"another, which are both {target} here: {_SAVE_AGAIN}"
            )
    return clusters


def _number(text: str) -> int | None:
    """Parses a cluster's number; None if it is none."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _match(
    file: epath.PathLike, cluster: str, members: Sequence[str], now: Mapping[str, int]
) -> int:
    """Finds the run's cluster that has most of the images by which a file means a cluster."""
    here = [now[name] for name in members if name in now]
    label, most = collections.Counter(here).most_common(1)[0] if here else (NO_CLUSTER, 0)
    if 2 * len(here) > len(members) and 2 * most > len(here) and label != NO_CLUSTER:
        return label
    raise InputError(
        f"cluster {cluster} of {file}, which is of another run, must have most of its images in "
        f"one cluster of this run; got {len(here)} of {len(members)} here, at most {most} of them "
        "together: use the file with its own run"
    )


def _name(text: str, must: str) -> str:
    name = " ".join(assignments.unescaped(text).split())
    if not name or len(name) > MAX_NAME:
        raise InputError(
            f"{must} give a name of 1 to {MAX_NAME} characters; got {len(name)}: {name[:40]!r}"
        )
    return name


def clustered(table: Table) -> tuple[list[int], Clusters]:
    """Returns the rows of a table that are in clusters, and these as the run has found them."""
    rows = [i for i, row in enumerate(table.rows) if row[table.cluster] and row.get("cluster", "0")]
    names = [assignments.unescaped(table.rows[i][table.name]) for i in rows]
    if all(row[table.name] == str(i) for i, row in enumerate(table.rows)):
        names = list(map(str, range(len(rows))))  # Without names, the report numbers what it shows.
    computed = [table.rows[i].get(FOUND) or table.rows[i][table.cluster] for i in rows]
    labels = np.array([int(cluster.removeprefix(_NOVEL)) for cluster in computed])
    distances = np.array([float(table.rows[i].get("distance") or "inf") for i in rows])
    run = digest(names, labels)
    return rows, Clusters(names, labels, distances, table.name, run)


def decided_membership(decided: Decisions, run: Clusters, member: Membership) -> Membership:
    """Returns probabilities of the clusters after decisions: a person's word is certain.

    A runner-up that is the same cluster now adds up.

    Args:
        decided: the decisions.
        run: the clusters that the run has found.
        member: their probabilities.
    """
    labels, is_decided = decided.labels(run), decided.is_decided(run)
    others = np.array([decided.root(other) for other in member.runners_up.tolist()], np.int64)
    second = member.runner_up_probabilities
    is_same = others == labels
    sure = np.minimum(member.probabilities + np.where(is_same, second, 0), 1)
    is_sure = is_decided | is_same
    return Membership(
        labels,
        np.where(is_decided, 1.0, sure),
        np.where(is_sure, NO_CLUSTER, others),
        np.where(is_sure, 0.0, second),
    )


def decided_csv(
    table: Table,
    rows: Sequence[int],
    computed: NDArray,
    labels: NDArray,
    is_decided: NDArray,
    names: Mapping[int, str],
) -> str:
    """Formats a table with what a person has decided.

    `cluster` is the cluster now, `found_cluster` that of the run, of which the distance, the
    probability and the like are; `corrected` is 1 where a person has decided, and `name` is the
    name of the cluster.

    Args:
        table: content of `assignments.csv`.
        rows: which of its n rows are in clusters, see `clustered`.
        computed: int `[n]`, the clusters that were found.
        labels: int `[n]`, the clusters now, -1 for none.
        is_decided: bool `[n]`.
        names: cluster -> its name.
    """
    changed = [dict(row) for row in table.rows]
    prefix = _NOVEL if table.cluster == "class" else ""
    for i, old, now, decided in zip(
        rows, *map(np.ndarray.tolist, (computed, labels, is_decided)), strict=True
    ):
        row = changed[i]
        row[table.cluster] = f"{'' if now < 0 else prefix}{now}"
        if "id" in row:
            row["id"] = str(now)
        row |= {FOUND: f"{prefix}{old}", "corrected": str(int(decided)), "name": names.get(now, "")}
    titles = [*table.titles, *(t for t in (FOUND, "corrected", "name") if t not in table.titles)]
    cells: dict[str, assignments.Column] = {
        title: [assignments.unescaped(row.get(title) or "") for row in changed] for title in titles
    }
    return assignments.to_csv(cells)
