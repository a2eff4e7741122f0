"""What all experiments share: flags, results as JSON and Markdown, the lines of a results file.

Every page and JSON file states the command, hardware, versions, commit and a digest of the code.
`python -m experiments.tables` marks the pages that are of an earlier version.
"""

import argparse
import ast
import functools
import hashlib
import json
import os
import pathlib
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cluster_jax.core import io
from cluster_jax.runs import provenance

FOLDER = pathlib.Path(__file__).resolve().parent
# The rooms of the package that make the numbers.
CODE = "losses samplers nets metrics clustering data methods training evaluation"
EARLIER = "**Of an earlier version**: a config or the code has changed since."


def parser(module: str, document: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m experiments.MODULE`, whose help is the docstring of the module."""
    return argparse.ArgumentParser(
        prog=f"python -m experiments.{module}",
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def append(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Adds a line of JSON to a file and waits until it is on the disk."""
    with path.open("a") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


@functools.cache
def code_digest() -> str:
    """Returns a digest of the code that makes the numbers, without comments and docstrings."""
    digest, package = hashlib.sha256(), FOLDER.parent / "cluster_jax"
    for room in CODE.split():
        for file in sorted((package / room).rglob("*.py")):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                if documented and ast.get_docstring(node) is not None:
                    node.body[0] = ast.Pass()
            digest.update(ast.unparse(tree).encode())
    return digest.hexdigest()[:12]


def pages() -> list[pathlib.Path]:
    """Returns the pages of results that end with where they are from, see `sentence`."""
    files = sorted(FOLDER.rglob("*.md"))
    return [file for file in files if "Hardware: " in file.read_text() and file.name != "tables.md"]


def marked(page: str) -> str:
    """Returns a page with a first line that tells if it is of an earlier version."""
    text = page.removeprefix(f"{EARLIER}\n\n")
    is_now = f"Code: {code_digest()}." in text  # of all lines
    return text if is_now else f"{EARLIER}\n\n{text}"


class Lines:
    """Results of small runs on one core, a line of JSON each; what the file has is not run again.

    Args:
        out: path without extension: the lines are in `OUT.jsonl`, the page is `OUT.md`.
        names: entries that tell the lines apart.

    Attributes:
        lines: all of them, in the order of the file.
    """

    def __init__(self, out: pathlib.Path, *names: str) -> None:
        self._file, self._page = out.with_suffix(".jsonl"), out.with_suffix(".md")
        text = self._file.read_text() if self._file.exists() else ""
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        self._done = {tuple(line[name] for name in names) for line in self.lines}
        now = origin("")
        self._origin = {name: now[name] for name in ("commit", "machine", "code_digest")}

    def add(self, case: Mapping[str, Any], run: Callable[[], Mapping[str, Any]]) -> None:
        """Adds the result of `run` under the entries `case`, unless there is one."""
        key = tuple(case.values())
        if key not in self._done:
            self.lines.append({**case, **run(), **self._origin})
            self._done.add(key)
            append(self._file, self.lines[-1])

    def write(self, command: str, *texts: str, cores: str = "one core") -> None:
        """Writes the page, with the commits of all lines and the cores that were used."""
        about = origin(command)
        about["machine"] += f", {cores}"
        for name in ("commit", "code_digest"):
            about[name] = ", ".join(sorted({f"{line.get(name)}" for line in self.lines}))
        io.write(self._page, "\n\n".join([*texts, sentence(about)]) + "\n")


def origin(command: str, **more: Any) -> dict[str, Any]:
    """The provenance of a result: how and where it is made, and `more`, such as the seeds."""
    return {
        "command": command,
        "machine": machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "code_digest": code_digest(),
        **more,
    }


def machine() -> str:
    """Processor, cores and memory of this machine."""
    cores, memory, model = "?", "?", platform.processor()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        cores = sum(line.startswith("processor") for line in lines)
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
        total = next(
            x for x in pathlib.Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x
        )
        memory = f"{int(total.split()[1]) / 1e6:.0f} GB"
    return f"{model}, {cores} cores, {memory}"


def markdown(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; the first column is aligned left, the others right."""
    columns = list(columns)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def mean(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation; of one value, the value."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def write(path: Any, result: Mapping[str, Any], about: Mapping[str, Any], *texts: str) -> str:
    """Writes `PATH.json` and `PATH.md`; returns the text of the latter.

    Args:
        path: of both files, without extension.
        result: content of the JSON file, to which the provenance is added.
        about: the provenance, see `origin`.
        *texts: tables and sentences, above a sentence that states the provenance.
    """
    io.write_json(f"{path}.json", {**result, "provenance": about})
    text = "\n\n".join([*(t.strip("\n") for t in texts if t), sentence(about)]) + "\n"
    io.write(f"{path}.md", text)
    return text


def sentence(about: Mapping[str, Any]) -> str:
    """Command, hardware, versions and commit."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"Command: `{about['command']}`. Hardware: {about['machine']}. Versions: {versions}. "
        f"Commit: {about['commit']}. Code: {about['code_digest']}."
    )


if __name__ == "__main__":
    for page in pages():
        page.write_text(marked(page.read_text()))
