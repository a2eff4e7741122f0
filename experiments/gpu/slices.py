"""One slice of time: item by item in order, each result written as it comes."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset
from cluster_jax.pipeline import provenance
from experiments import machine
from experiments.gpu import checks, rates, tables, trace, train

Item = Mapping[str, Any]

# An item that ended the process this often is left out: it would end it again.
CRASHES = 2
TORCH_SECONDS = 240
OPTIONAL = {
    "umap": "umap-learn (no GridShift beside the training)",
    "tensorboardX": "tensorboardX (no TensorBoard events)",
    "torch": "PyTorch (no step to compare with)",
}


def run(
    out: pathlib.Path,
    minutes: float,
    items: Sequence[Item],
    *,
    dataset: Dataset | None,
    resume: pathlib.Path | None,
    tiny: bool,
) -> None:
    """Does the items that are not complete until the time is over.

    A group of items stops when it has used its share of the slice; what is left of it follows
    if the other groups leave time.
    """
    start, end = time.monotonic(), time.monotonic() + 60 * minutes
    missing = [text for name, text in OPTIONAL.items() if importlib.util.find_spec(name) is None]
    if missing:
        _say(start, f"not installed: {', '.join(missing)}")
    (out / "results").mkdir(parents=True, exist_ok=True)
    for item in items:
        if not _is_complete(out, item) and (reason := _left_out(out, item, dataset is not None)):
            _say(start, f"{item['name']}: left out, {reason}")
    used: dict[str, float] = {}
    failed: set[str] = set()
    try:
        for within_share in (True, False):
            for item in items:
                left = end - time.monotonic()
                share = item["share"] * 60 * minutes
                if within_share and used.get(item["group"], 0.0) >= share:
                    continue
                if left < item["seconds"] or item["name"] in failed:
                    continue
                if not _can_run(out, item, dataset is not None):
                    continue
                began = time.monotonic()
                _say(start, f"{item['name']} ...")
                if not _do(item, out, dataset, resume, left, tiny):
                    failed.add(item["name"])
                used[item["group"]] = used.get(item["group"], 0.0) + time.monotonic() - began
                _say(start, f"{item['name']}: {tables.line(_read(out, item))}")
    finally:
        found = results(out)
        # One file beside those of the items, where only a few can be fetched.
        io.write_json(out / "results.json", found)
        io.write(out / "tables.md", tables.markdown(found))
        _say(start, f"tables: {out / 'tables.md'}; all results: {out / 'results.json'}")


def results(out: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Name -> `{"item", "figures", "complete", "provenance"}` of every result in a folder."""
    entries = [_entry(path) for path in sorted((out / "results").glob("*.json"))]
    return {entry["item"]["name"]: entry for entry in entries if entry is not None}


def check_time(out: pathlib.Path, minutes: float, items: Sequence[Item], *, has_data: bool) -> None:
    """Raises an `InputError` if there is no item left, or none that the time is enough for."""
    possible = [item for item in items if _can_run(out, item, has_data)]
    if not possible:
        left_out = sum(not _is_complete(out, item) for item in items)
        raise InputError(
            f"an item must be left to do in {out}; got {len(items) - left_out} complete and "
            f"{left_out} left out: choose another --out, or give --data"
        )
    shortest = min(possible, key=lambda item: item["seconds"])
    if 60 * minutes < shortest["seconds"]:
        raise InputError(
            f"--minutes must be at least {shortest['seconds'] / 60:g}, which {shortest['name']!r} "
            f"needs; got {minutes:g}"
        )


def plan(out: pathlib.Path, minutes: float, items: Sequence[Item]) -> str:
    """The items that are not complete, with the seconds that each is given at least."""
    lines = [f"in {minutes:g} minutes, in this order:"]
    for item in items:
        if not _is_complete(out, item):
            lines.append(f"  {item['group']:<10}{item['seconds']:>5} s  {item['name']}")
    total = sum(item["seconds"] for item in items if not _is_complete(out, item))
    return "\n".join([*lines, f"about {total / 60:.0f} minutes; a training takes what is left"])


def _do(
    item: Item,
    out: pathlib.Path,
    dataset: Dataset | None,
    resume: pathlib.Path | None,
    seconds: float,
    tiny: bool,
) -> bool:
    """Measures an item or trains; returns whether it raised nothing."""
    marker = _marker(out, item)
    io.write(marker, str(_crashes(out, item) + 1))
    earlier = _read(out, item)

    def write(figures: Mapping[str, Any], complete: bool) -> None:
        entry = {"item": item, "figures": figures, "complete": complete, "provenance": _about()}
        io.write_json(_path(out, item), entry)

    try:
        if item["kind"] == "train":
            assert dataset is not None
            train.measure(
                item,
                dataset=dataset,
                out=out,
                resume=resume,
                earlier=earlier["figures"] if earlier and "config" in earlier["figures"] else None,
                rates={k: v for k, v in results(out).items() if v["item"]["kind"] == "rate"},
                seconds=seconds,
                write=write,
                tiny=tiny,
            )
        elif item["kind"] == "checks":
            checks.measure(earlier["figures"] if earlier else {}, write, tiny)
        elif item["kind"] == "torch":
            write(_torch(item, seconds), True)
        else:
            write(KINDS[item["kind"]](item, tiny), True)
    except Exception as error:  # One item must not take the others with it.
        is_training = item["kind"] == "train"
        if is_training and isinstance(error, InputError):
            raise
        traceback.print_exc()
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
        # The next slice tries a training again.
        so_far = (_read(out, item) or {"figures": {}})["figures"] if is_training else {}
        write({**so_far, "error": reason}, not is_training)
        marker.unlink()
        return False
    marker.unlink()
    return True


KINDS = {"rate": rates.measure, "trace": trace.measure}


def _torch(item: Item, seconds: float) -> dict[str, Any]:
    """Figures of the PyTorch step, from a process of its own: both load their own CUDA."""
    if importlib.util.find_spec("torch") is None:
        return {"error": "PyTorch is not installed"}
    command = [sys.executable, "-m", "experiments.gpu.torch_peer"]
    command += [f"--batch={item['batch']}", f"--dtype={item['dtype']}"]
    limit = min(TORCH_SECONDS, seconds)
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def _about() -> dict[str, Any]:
    return {
        "command": "python -m experiments.gpu",
        "device": jax.devices()[0].device_kind,
        "machine": machine.describe(),
        "versions": provenance.versions(),
        "commit": os.environ.get("CLUSTER_JAX_COMMIT") or provenance.commit(),
        "seed": 0,
    }


def _path(out: pathlib.Path, item: Item) -> pathlib.Path:
    return out / "results" / f"{re.sub('[^a-z0-9]+', '-', item['name'].lower()).strip('-')}.json"


def _marker(out: pathlib.Path, item: Item) -> pathlib.Path:
    return _path(out, item).with_suffix(".started")


def _crashes(out: pathlib.Path, item: Item) -> int:
    """How often an item was begun and the process ended in it; a training does not count."""
    marker = _marker(out, item)
    return int(marker.read_text()) if marker.exists() and item["kind"] != "train" else 0


def _read(out: pathlib.Path, item: Item) -> dict[str, Any] | None:
    return _entry(_path(out, item))


def _entry(path: pathlib.Path) -> dict[str, Any] | None:
    """A result; a missing or damaged one is None, and measured again."""
    try:
        entry = io.read_json(path)
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) and {"item", "figures"} <= set(entry) else None


def _left_out(out: pathlib.Path, item: Item, has_data: bool) -> str | None:
    """Why an item cannot be done in this slice."""
    if item["kind"] == "train" and not has_data:
        return "it needs --data"
    if _crashes(out, item) >= CRASHES:
        return f"it ended the process {CRASHES} times"
    return None


def _can_run(out: pathlib.Path, item: Item, has_data: bool) -> bool:
    return not _is_complete(out, item) and _left_out(out, item, has_data) is None


def _is_complete(out: pathlib.Path, item: Item) -> bool:
    entry = _read(out, item)
    return entry is not None and entry["complete"]


def _say(start: float, text: str) -> None:
    print(f"{time.monotonic() - start:6.0f} s  {text}", flush=True)
