"""Results as JSON and as Markdown tables, with the command, hardware, versions and commit.

Every experiment writes what it found by `write`.
"""

import pathlib
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster_jax.core import io
from cluster_jax.pipeline import provenance


def origin(command: str, **more: Any) -> dict[str, Any]:
    """The provenance of a result: how and where it is made, and `more`, such as the seeds."""
    return {
        "command": command,
        "machine": machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
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
        f"Commit: {about['commit']}."
    )
