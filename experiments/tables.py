"""What all experiments share: flags, results as JSON and Markdown, the lines of a results file.

Every page and JSON file states the command, hardware, versions, commit and a digest of the code.
`python -m experiments.tables` marks the pages that are of an earlier version.
"""

import ast
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NoReturn

from cluster_jax.core import io
from cluster_jax.runs import provenance

FOLDER = Path(__file__).resolve().parent
# Rooms and modules of the package that make the numbers of a training, its k-means and GridShift,
# and those of clusters that `SmoothTree` finds in features.
TRAININGS = (
    "losses samplers nets methods metrics training/step training/optim training/loop "
    "training/state data/augment data/views data/batches clustering/kmeans clustering/online "
    "clustering/transport clustering/gridshift clustering/reduce clustering/base "
    "core/knn core/sharded_knn"
)
CLUSTERS = (
    "metrics/partition metrics/silhouette clustering/smooth_tree clustering/tree_fit "
    "clustering/choose_k clustering/levels clustering/verdict clustering/separation "
    "clustering/condense clustering/copies clustering/representation clustering/tree "
    "clustering/stable_ids clustering/placing "
    "clustering/membership clustering/label_spreading clustering/base core/knn"
)
# The digest of earlier code (4b135d5f), and of the code that moves and renames parts of it, from
# "One search for nearest rows" to "Means of clusters have one function". Both gave the same, bit
# for bit on one machine, on 58 sets, among them 40 random ones, features of photos, a stream and
# two of 20,000 rows: labels, probabilities, verdicts, trees, cuts and new rows. The k-NN accuracies
# of three sets of features and two of digits are also the same, like all their nearest rows, which
# scikit-learn searched before. k-means has only another import. GridShift sorts its cells in
# another way, whose result is that of NumPy's `unique` on six sets of cells. Since then an error
# names other packages to install, and `tree.linkage_of_clusters` has taken the place of
# `tree.cluster_linkage`, which joins clusters for `cut`: no result has unions of clusters. And
# `verdict` calls fewer answers clear, but all 87 of `number_of_clusters/results.jsonl` still are.
# It also says "unclear" of one cluster of fewer rows than twice the axes, where it was sure, and
# axes without spread are left out: of all 275 sets there of at most 100 rows, numbers of clusters
# and ARI stay (no table has the verdict of one cluster), and no larger set has such an axis. Rows
# in no cluster, which no table has, take no probability from others. And clusters are compared once
# for all thresholds: labels and verdicts of 131 sets of `number_of_clusters` of at most 1,500 rows
# are the same bit for bit, and the sums of their probabilities to three decimals. The checksum of a
# checkpoint is computed array by array, and is the same; `loop.train` has lost an argument that
# nobody gave. Then the order in which rows are fitted became that of their distances from the mean
# (up to 16,000 distinct rows), so that rounding decides nothing. Of the 550 sets of
# `number_of_clusters/results.jsonl` 5 have another number of clusters and 27 another ARI (their
# mean is 0.804 before and 0.807 after): these lines, those of a verdict of one cluster, those of
# the digits in `peers.jsonl`, and all of `real/pixels.jsonl` are of now (rounded columns get other
# noise: of its nine lines two have another number). So is `living.jsonl`: of its 40 streams two
# differ, by less than 0.001. All 24 lines of `probabilities.jsonl` are the same up to rounding, and
# so are those on tiny95_lite2 in `peers.jsonl`. What was not made anew may differ as rarely: two
# sets of `peers.jsonl`, and the clusters of features in `real/found.jsonl`, of which `tables.md`
# says how far those differ whose features are still there.
SAME = {
    "26e16d92ae6f": "668751a77166",
    "258ee6966c87": "668751a77166",
    "b305a538382d": "668751a77166",
    "657b355e8ab3": "668751a77166",
    "24de3b905609": "668751a77166",
    "34f5e66f1571": "c3f8fd543701",
    "c36b1baa6f9d": "c3f8fd543701",
    "cfb93b698e8f": "c3f8fd543701",
    "dedc98f432da": "c3f8fd543701",
    "162741f610a4": "c3f8fd543701",
}
# What every line of a small run has of `origin`.
OF_LINES = ("commit", "machine", "code_digest")
# What is in the title of a method of ours, in lines that have one; all others are peers.
_OURS = "smooth"
EARLIER = "**Of an earlier version**: a config or the code has changed since."


class _Parser(ArgumentParser):
    """A parser that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def parser(module: str, document: str | None) -> ArgumentParser:
    """The parser of `python -m experiments.MODULE`, whose help is the docstring of the module."""
    return _Parser(
        prog=f"python -m experiments.{module}",
        description=document,
        formatter_class=RawDescriptionHelpFormatter,
    )


def seed(text: str) -> int:
    """The type of a flag that is a random seed.

    Raises:
        ArgumentTypeError: it is no whole number, or negative, which no generator takes.
    """
    if not text.isdecimal():
        raise ArgumentTypeError(f"a seed must be a whole number from 0 on; got {text!r}")
    return int(text)


@functools.cache
def code_digest(code: str) -> str:
    """A digest of the code that makes the numbers, without comments and docstrings.

    Args:
        code: what makes them, `TRAININGS` or `CLUSTERS`.
    """
    digest, package = hashlib.sha256(), FOLDER.parent / "cluster_jax"
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for name in code.split():
        for file in sorted((package / name).rglob("*.py")) or [package / f"{name}.py"]:
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                if isinstance(node, kinds) and ast.get_docstring(node) is not None:
                    node.body[0] = ast.Pass()
            digest.update(ast.unparse(tree).encode())
    return digest.hexdigest()[:12]


def current(digest: Any) -> Any:
    """The digest of the code that makes the same as that of a digest, see `SAME`."""
    return SAME.get(digest, digest)


def pages() -> list[Path]:
    """Returns the pages of results that end with where they are from, see `sentence`."""
    return [file for file in sorted(FOLDER.rglob("*.md")) if "Hardware: " in file.read_text()]


def marked(page: str) -> str:
    """Returns a page with a first line that tells if it is of an earlier version."""
    text = page.removeprefix(f"{EARLIER}\n\n")
    stated = set(map(current, re.findall(r"Code: (\w+)\.", text)))
    is_now = bool(stated & {code_digest(TRAININGS), code_digest(CLUSTERS)})
    return text if is_now else f"{EARLIER}\n\n{text}"


class Lines:
    """Results of runs, a line of JSON each, which any number of processes may add to a file.

    Args:
        file: a `.jsonl` file; of a last line that is cut in the middle the run is done again.
        names: entries that tell the lines apart; of equal ones the newest counts.
    """

    def __init__(self, file: Path, *names: str) -> None:
        self._file, self._names, self._origin = file, names, origin("", CLUSTERS)
        text = file.read_text() if file.exists() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        self._lines = {self._key(line): line for line in map(json.loads, whole)}

    def _key(self, line: Mapping) -> str:
        return json.dumps([line[name] for name in self._names], sort_keys=True)

    @property
    def lines(self) -> list[dict]:
        """All of them, in the order of the file."""
        return list(self._lines.values())

    def find(self, case: Mapping) -> dict:
        """The line with the entries `case`, or `{}`."""
        return self._lines.get(self._key(case), {})

    def append(self, line: dict) -> None:
        """Adds a line and waits until it is on the disk."""
        self._lines[self._key(line)] = line
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(self._file.read_bytes().rfind(b"\n") + 1)
            file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, case: Mapping, run: Callable[[], Mapping]) -> None:
        """Adds the result of `run`, and where it is from, unless there is a line of `case`."""
        if not self.find(case):
            now = {name: self._origin[name] for name in OF_LINES}
            self.append({**case, **run(), **now})

    def write(self, command: str, about: str, found: str, cores: str = "one core") -> None:
        """Prints the tables, and writes the page beside the file.

        Args:
            command: that makes the file.
            about: what the page says first.
            found: the tables.
            cores: that were used; the page ends with what its lines are from, and with the digest
                of the code that made ours: peers are code of others.
        """
        ours, peers = list[dict](), list[dict]()
        for line in self.lines:
            (ours if _OURS in line.get("method", _OURS).lower() else peers).append(line)
        source = origin(command, CLUSTERS)
        for name in OF_LINES:
            source[name] = values(name, ours)
        source["commit"] += f" (peers: {values('commit', peers)})" if peers else ""
        source["machine"] = f"{values('machine', self.lines)}, {cores}"
        parts = [part for part in (about, found, sentence(source)) if part]
        print(found)
        write(self._file.with_suffix(".md"), "\n\n".join(parts) + "\n")
        print(f"The results are lines of {self._file}")


def values(name: str, lines: Iterable[Mapping]) -> str:
    """What lines have under a name, each value once; digests of the same code are one."""
    return "; ".join(sorted({f"{current(line.get(name))}" for line in lines}))


def write(file: Path, content: str | bytes) -> None:
    """Writes a file of results, with its folder, and says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    io.write(file, content)
    print(f"Written: {file}")


def origin(command: str, code: str) -> dict:
    """The provenance of a result: how and where it is made.

    Args:
        command: that makes it.
        code: that makes it, see `code_digest`.
    """
    return {
        "command": command,
        "machine": machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "code_digest": code_digest(code),
    }


def machine() -> str:
    """Processor, cores and memory of this machine; on Linux."""
    files = filter(Path.exists, map(Path, ("/proc/cpuinfo", "/proc/meminfo")))
    text = "\n".join(file.read_text() for file in files)
    model = re.search(r"model name\s*: (.*\w\S*)", text)
    memory = re.search(r"MemTotal: *(\d+)", text)
    size = f"{int(memory[1]) / 1e6:.0f} GB" if memory else "?"
    return f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores, {size}"


def markdown(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; the first column is aligned left, the others right."""
    columns = list(columns)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def mean(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation; of one value, the value."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def sentence(about: Mapping) -> str:
    """Command, hardware, versions and commit."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"Command: `{about['command']}`. Hardware: {about['machine']}. Versions: {versions}. "
        f"Commit: {about['commit']}. Code: {about['code_digest']}."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser("tables", __doc__).parse_args(arguments)
    for page in pages():
        text = page.read_text()
        if marked(text) != text:
            write(page, marked(text))


if __name__ == "__main__":
    main()
