"""What a person has decided about the clusters of a run: read, checked, joined, and applied.

Later decisions override earlier ones. A page saves the decisions of a visit in a file of
corrections; `DECISIONS` in a workdir has all of them. The numbers of clusters never change their
meaning: merged ones are not used again.
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
_NOUNS = ("image", "row")  # titles of names
_TITLES = ("cluster", "correction", "to")  # of the other columns
# Correction -> the attribute of `Decisions` that has it.
_TABLES = {"new": "named", "name": "named", "merge": "merged", "move": "moved", "wrong": "moved"}
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
    """

    names: Sequence[str]
    labels: NDArray
    distances: NDArray
    noun: str
    run: str


def digest(names: Sequence[str], labels: NDArray) -> str:
    """Identifies a run by its images and the clusters that it has found."""
    every = json.dumps(list(names)).encode()
    return hashlib.sha256(every + np.ascontiguousarray(labels, np.int64).tobytes()).hexdigest()[:16]


class Decisions(NamedTuple):
    """What a person has decided.

    Attributes:
        moved: name of an image -> the cluster that it belongs to, its own if a person has confirmed
            it, or `NO_CLUSTER`.
        merged: cluster -> the one that it is a part of.
        named: cluster -> its name.
        created: clusters that the run did not find.
        kept: names of the images that a person has picked of their copies, the last one last.
    """

    moved: Mapping[str, int] = {}
    merged: Mapping[int, int] = {}
    named: Mapping[int, str] = {}
    created: frozenset[int] = frozenset()
    kept: Sequence[str] = ()

    @property
    def is_of_members(self) -> bool:
        """Whether a person has decided about images or clusters, and not about names alone."""
        return bool(self.moved or self.merged or self.created)

    @property
    def held(self) -> set[int]:
        """The clusters that a person has named, made or merged, which no update parts."""
        return {*map(self.root, (*self.named, *self.created, *self.merged))}

    def root(self, cluster: int) -> int:
        """Returns the cluster that a cluster is a part of: itself, if it was not merged."""
        while cluster in self.merged:
            cluster = self.merged[cluster]
        return cluster

    def labels(self, run: Clusters) -> NDArray:
        """Returns the clusters of all images as decided, int64 `[n]`."""
        pairs = zip(run.names, run.labels.tolist(), strict=True)
        return np.array([self.root(self.moved.get(name, label)) for name, label in pairs], np.int64)

    def is_decided(self, run: Clusters) -> NDArray:
        """Returns which images a person has moved, confirmed, or marked wrong, bool `[n]`."""
        return np.array([name in self.moved for name in run.names], bool)

    def next_cluster(self, run: Clusters) -> int:
        """Returns the lowest number that no cluster has had."""
        others = (*self.created, *self.merged, *self.moved.values(), -1)
        return 1 + max(*run.labels.tolist(), *others)

    def summary(self, group: str = "cluster") -> str:
        """Counts the decisions in words: "3 moved, 1 in no cluster, 2 merged".

        Args:
            group: what a cluster is called.
        """
        lost = list(self.moved.values()).count(NO_CLUSTER)
        counts = {
            "moved or confirmed": len(self.moved) - lost,
            f"in no {group}": lost,
            "new": len(self.created - self.merged.keys()),
            "merged": len(self.merged),
            "named": len(self.named),
            "picked of their copies": len(self.kept),
        }
        return ", ".join(f"{n:,} {word}" for word, n in counts.items() if n) or "none"


def join(before: Decisions, after: Decisions) -> Decisions:
    """Joins earlier and later decisions; the later ones count where both say something.

    A merged cluster has the name of the one that it is a part of.
    """
    merged = dict(before.merged)
    created = before.created | after.created
    kept = (*(name for name in before.kept if name not in after.kept), *after.kept)
    joined = Decisions({**before.moved, **after.moved}, merged, created=created, kept=kept)
    for cluster, into in after.merged.items():
        old, new = joined.root(cluster), joined.root(into)
        if old != new:
            merged[old] = new
    named = {**before.named, **after.named}
    return joined._replace(named={c: name for c, name in named.items() if c not in merged})


def read_workdir(workdir: epath.PathLike, run: Clusters) -> Decisions:
    """Reads the decisions of a run; none if a person has decided nothing.

    Raises:
        InputError: the file is damaged, or belongs to other clusters than those of the run.
    """
    file = buckets.path(workdir) / DECISIONS
    return read(file, run, Decisions()) if file.exists() else Decisions()


def is_of(file: epath.PathLike, run: str) -> bool:
    """Returns whether a file's decisions are about the clusters of the run of this digest."""
    return assignments.read(epath.Path(file)).get("to", [])[:1] == [run]


def read(file: epath.PathLike, run: Clusters, before: Decisions) -> Decisions:
    """Reads the decisions in a file, in the numbers of the clusters of a run.

    Clusters of another run are those with most of the images by which the file means them.

    Args:
        file: as a page saves it: lines of image, cluster, correction, and to. The corrections are
            "run" (to: the digest of the run), "member" (an image by which the cluster is meant),
            "new" (a new cluster and its name), "merge" (into the cluster `to`), "name", "move" (to
            a cluster; to its own: a person has confirmed it), "wrong", "keep" (of its copies), and
            "end".
        run: the clusters that the run has found.
        before: earlier decisions about them.

    Raises:
        InputError: the file or one of its lines does not fit the run; says which and why.
    """
    lines, members, is_own = _lines(file, run)
    clusters = _meant(file, lines, members, run, before, is_own=is_own)
    names, counts = set(run.names), collections.Counter(run.names)
    said: dict[str, dict[Any, Any]] = {"named": {}, "merged": {}, "moved": {}}
    lines_of, kept = dict[tuple[str, Any], int](), list[str]()
    for number, (name, cluster, kind, to) in lines:
        must, is_of_image = f"line {number} of {file} must", kind in ("move", "wrong", "keep")
        if (kind == "new" and not to) or (is_of_image and not is_own and name not in names):
            continue
        if is_of_image and counts[name] != 1:
            problem = f"{name!r}" + (", which several have" if counts[name] else "")
            raise InputError(f"{must} name one {run.noun} of the run; got {problem}")
        if kind == "keep":
            kept.append(name)
            continue
        table, key = _TABLES[kind], name if is_of_image else clusters[cluster]
        value: Any = NO_CLUSTER
        if kind != "wrong":
            value = _name(to, must) if table == "named" else clusters[to]
        if kind == "merge" and Decisions(merged=said["merged"]).root(value) == key:
            raise InputError(
                f"{must} merge two clusters; got {cluster} and {to}, which is a part of it: "
                "leave one"
            )
        if said[table].setdefault(key, value) != value:
            raise InputError(
                f"{must} agree with line {lines_of[table, key]}; got another decision about "
                f"{name or cluster!r}: leave one"
            )
        lines_of[table, key] = number
    created = frozenset(clusters[cluster] for _, (_, cluster, kind, _) in lines if kind == "new")
    return Decisions(**said, created=created, kept=tuple(kept))


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
    rows += [("", cluster, "name", name) for cluster, name in sorted(decisions.named.items())]
    cluster_of = dict(zip(run.names, run.labels.tolist(), strict=True))
    for name, cluster in decisions.moved.items():
        kind = ("wrong", "") if cluster == NO_CLUSTER else ("move", cluster)
        rows.append((name, cluster_of.get(name, ""), *kind))
    rows += [(name, "", "keep", "") for name in decisions.kept]
    rows.append(("", "", "end", ""))
    columns = map(list, zip(*rows, strict=True))
    return assignments.to_csv(dict(zip((run.noun, *_TITLES), columns, strict=True)))


_Lines = list[tuple[int, tuple[str, str, str, str]]]


def _lines(file: epath.PathLike, run: Clusters) -> tuple[_Lines, dict[str, list[str]], bool]:
    """Reads a file's numbered lines, its clusters' images, and whether it is of the run itself.

    Lines of "run", "member" and "end" are left out.
    """
    path = buckets.path(file)
    if not path.exists() or path.is_dir():
        problem = "a folder" if path.exists() else "no such file"
        raise InputError(f"{file} must be a file that a report has saved; got {problem}")
    columns = assignments.read(path)
    if tuple(columns) not in [(noun, *_TITLES) for noun in _NOUNS]:
        expected = "the columns image, cluster, correction, to, as a report saves them"
        raise InputError(f"{file} must have {expected}; got {', '.join(columns) or 'none'}")
    rows = list(zip(*columns.values(), strict=True))
    lines, members = _Lines(), collections.defaultdict[str, list[str]](list)
    for number, cells in enumerate(rows, 2):
        name, cluster, kind, to = map(assignments.unescaped, cells)
        is_needed = {
            **{"run": to, "member": name and cluster, "new": cluster, "merge": cluster and to},
            **{"name": cluster and to, "move": name and to, "wrong": name, "keep": name},
            "end": True,
        }
        if not is_needed.get(kind):
            raise InputError(
                f"line {number} of {file} must have an image, a cluster, one of "
                f"{', '.join(is_needed)} and what it is moved to; got {cells}: {_SAVE_AGAIN}"
            )
        if kind == "member":
            members[cluster].append(name)
        elif kind not in ("run", "end"):
            lines.append((number, (name, cluster, kind, to)))
    kinds = columns["correction"]
    if not rows or (kinds[0], kinds[-1]) != ("run", "end"):
        raise InputError(
            f"{file} must begin with the line of its run and end with a line 'end'; got a file "
            f"that was cut off, or of an older version: {_SAVE_AGAIN}"
        )
    return lines, dict(members), columns["to"][0] == run.run


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
    name = " ".join(text.split())
    if not name or len(name) > MAX_NAME:
        raise InputError(
            f"{must} give a name of 1 to {MAX_NAME} characters; got {len(name)}: {name[:40]!r}"
        )
    return name


def clustered(table: Table) -> tuple[list[int], Clusters]:
    """Returns the rows of a table that are in clusters, and these as the run has found them."""
    columns, now = table.columns, table.columns[table.cluster]
    pairs = zip(now, columns.get("cluster", now), strict=True)
    rows = [i for i, both in enumerate(pairs) if all(both)]
    every = columns[table.name]
    names = [assignments.unescaped(every[i]) for i in rows]
    if all(name == str(i) for i, name in enumerate(every)):
        names = list(map(str, range(len(rows))))  # Without names, the report numbers what it shows.
    found = columns.get(FOUND, now)
    labels = np.array([int((found[i] or now[i]).removeprefix(_NOVEL)) for i in rows])
    distances = assignments.numbers(table, "distance", rows, np.inf)
    distances = np.full(len(rows), np.inf) if distances is None else distances
    return rows, Clusters(names, labels, distances, table.name, digest(names, labels))


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
    columns = assignments.columns_of(table)
    prefix = _NOVEL if table.cluster == "class" else ""
    for title in (FOUND, "corrected", "name"):
        columns.setdefault(title, [""] * table.size)
    for i, old, now, decided in zip(
        rows, *map(np.ndarray.tolist, (computed, labels, is_decided)), strict=True
    ):
        columns[table.cluster][i] = f"{'' if now < 0 else prefix}{now}"
        columns[FOUND][i] = f"{prefix}{old}"
        columns["corrected"][i], columns["name"][i] = int(decided), names.get(now, "")
    return assignments.to_csv(columns)
