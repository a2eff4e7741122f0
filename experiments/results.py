"""Rows of results: one JSON line per run, appended by any number of processes."""

import fcntl
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from cluster_jax.core.checks import InputError
from cluster_jax.runs.config import config_json
from experiments import registry, tables
from experiments.registry import Run

FILE = pathlib.Path(__file__).parent / "results.jsonl"


def key(run: Run, seed: int) -> str:
    """What a run is found by in the file."""
    return json.dumps({**run._asdict(), "seed": seed}, sort_keys=True)


def read(path: pathlib.Path) -> tuple[dict[str, dict[str, Any]], str]:
    """The newest row of every key, and a sentence about a last line that is cut; "" if none is.

    Raises:
        InputError: a line before the last is no JSON.
    """
    rows: dict[str, dict[str, Any]] = {}
    text = path.read_text() if path.exists() else ""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            run = Run(**{field: row[field] for field in Run._fields})
            rows[key(run, row["seed"])] = row
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise InputError(
                    f"line {number} of {path} must be a JSON object of a run; repair or remove it"
                ) from error
            return rows, f"the last line of {path} is cut in the middle; its run is done again"
    return rows, ""


def append(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Adds a line to a file that other processes may write to; a last line that is cut goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        tables.append(path, row)


def config_digest(config: ConfigDict) -> str:
    """Returns a digest of a config, whatever its seed and the folder of its data."""
    values = config_json(config)
    values |= {"seed": 0, "data": {**values["data"], "dir": None}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def mark(
    rows: Mapping[str, Mapping[str, Any]], runs: Iterable[Run | None], seeds: Sequence[int]
) -> str:
    """Returns a sentence for a page if a config or the code has changed since its numbers; or "".

    Args:
        rows: the results, see `read`.
        runs: of the page.
        seeds: of the page.
    """
    for run in filter(None, runs):
        now = {"code_digest": tables.code_digest()}
        now["config_digest"] = config_digest(registry.build(run, 0))
        for row in filter(None, (rows.get(key(run, seed)) for seed in seeds)):
            if not now.items() <= row.get("provenance", now).items():
                return tables.EARLIER
    return ""


def numbers(metrics: Any) -> Any:
    """Metrics without their lists and curves."""
    if isinstance(metrics, Mapping):
        kept = {name: numbers(value) for name, value in metrics.items()}
        return {name: value for name, value in kept.items() if value is not None}
    return metrics if isinstance(metrics, int | float | str) else None


def origin(command: str) -> dict[str, Any]:
    """The part of the provenance that all runs of a runner share."""
    accelerated = jax.default_backend() in ("gpu", "tpu")
    return {
        **tables.origin(command),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "precision": "bfloat16, losses float32" if accelerated else "float32",
    }
