"""Tables of a folder of results, beside what was predicted."""

from collections.abc import Mapping
from typing import Any

from cluster_jax.core import io
from experiments.gpu.roofline import FILE as PREDICTIONS

COLUMNS = ("", "images/s", "predicted", "of peak", "GFLOP/image", "memory GB", "first step s")


def line(entry: Mapping[str, Any] | None) -> str:
    """One line for the terminal."""
    if entry is None:
        return "failed, nothing written"
    figures = entry["figures"]
    if "error" in figures:
        return figures["error"]
    if "images_per_second" in figures and "history" not in figures:
        return f"{figures['images_per_second']:,.0f} images/s"
    if "passed" in figures:
        return "passed" if figures["passed"] else f"FAILED: {', '.join(figures['failed'])}"
    if "busy" in figures:
        return f"device busy {_percent(figures['busy'])}"
    return f"epoch {figures.get('epoch', 0):g}"


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """All results as Markdown."""
    sections = [_about(results), _checks(results), _rates(results), _profile(results)]
    sections += [_training(e) for e in results.values() if e["item"]["kind"] == "train"]
    return "\n\n".join(section for section in sections if section) + "\n"


def _about(results: Mapping[str, Mapping[str, Any]]) -> str:
    seen: dict[str, list[str]] = {}
    for entry in results.values():
        origin = entry["provenance"]
        versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
        text = f"{origin['device']}; {origin['machine']}; {versions}; commit {origin['commit']}"
        seen.setdefault(text, []).append(entry["item"]["name"])
    lines = ["Command: `python -m experiments.gpu`, seed 0."]
    for text, names in seen.items():
        lines.append(f"- {text}: {len(names)} results")
    return "\n".join(lines)


def _checks(results: Mapping[str, Mapping[str, Any]]) -> str:
    entry = results.get("checks")
    if entry is None or "checks" not in entry["figures"]:
        return ""
    figures = entry["figures"]
    lines = ["| gradient against the CPU, float32 | loss | gradient |", "|---|---:|---:|"]
    for name, values in figures["checks"].items():
        if name.startswith("gradient of"):
            if "error" in values:
                lines.append(f"| {name[12:]} | {values['error']} | |")
            else:
                lines.append(f"| {name[12:]} | {values['loss']:.1e} | {values['gradient']:.1e} |")
    others = [f"{name}: {values}" for name, values in figures["checks"].items() if name[0] in "bk"]
    steps = [n for n in figures["checks"] if n.startswith("one step")]
    ended = f"One step of each of {len(steps)} configs. {'; '.join(others)}."
    failed = f" FAILED: {', '.join(figures['failed'])}." if figures["failed"] else ""
    return "\n".join(lines) + f"\n\n{ended}{failed}"


def _rates(results: Mapping[str, Mapping[str, Any]]) -> str:
    entries = [e for e in results.values() if e["item"]["kind"] in ("rate", "torch")]
    if not entries:
        return ""
    predictions = io.read_json(PREDICTIONS)["rates"]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for entry in sorted(entries, key=lambda e: e["item"]["name"]):
        name, figures = entry["item"]["name"], entry["figures"]
        if "error" in figures:
            lines.append(f"| {name} | {figures['error']} |" + " |" * (len(COLUMNS) - 2))
            continue
        expected = _predicted(predictions.get(name), entry["provenance"]["device"])
        cells = [
            f"{figures['images_per_second']:,.0f}",
            "" if expected is None else f"{expected:,.0f}",
            _percent(figures.get("share_of_peak")),
            _number(figures.get("gflops_per_image")),
            _number(figures.get("memory_gb")),
            _number(figures.get("first_step_seconds")),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + _ratios(results)


def _ratios(results: Mapping[str, Mapping[str, Any]]) -> str:
    """NRCC over BYOL in time for each sampler, and ours over PyTorch in rate."""
    base = _rate(results, "byol resnet18 bfloat16 256")
    lines = []
    for sampler in ("sghmc", "hmc", "monte_carlo"):
        rate = _rate(results, f"byol + nrcc ({sampler}) resnet18 bfloat16 256")
        if base and rate:
            lines.append(f"- BYOL + NRCC ({sampler}) / BYOL in time: {base / rate:.3f}")
    for dtype in ("bfloat16", "float32"):
        ours = _rate(results, f"byol resnet18 {dtype} 256 flips alone")
        peer = _rate(results, f"pytorch byol resnet18 {dtype} 256")
        if ours and peer:
            lines.append(f"- images/s over PyTorch's, {dtype}: {ours / peer:.3f}")
    return "\n".join(lines)


def _profile(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, entry in results.items():
        figures = entry["figures"]
        if entry["item"]["kind"] != "trace" or not figures.get("largest"):
            continue
        lines += [
            f"{name}: {figures['steps']} steps in {figures['milliseconds']:.1f} ms, "
            f"{figures['kernels']:,} kernels, device busy {_percent(figures['busy'])}",
            "",
            "| kernel | ms | share | calls |",
            "|---|---:|---:|---:|",
        ]
        lines += [
            f"| `{k['name'][:80]}` | {k['milliseconds']:.2f} | {_percent(k['share'])} | "
            f"{k['calls']} |"
            for k in figures["largest"]
        ]
    return "\n".join(lines)


def _training(entry: Mapping[str, Any]) -> str:
    figures, name = entry["figures"], entry["item"]["name"]
    failed = f"; failed: {figures['error']}" if "error" in figures else ""
    lines = [
        f"{name}: epoch {figures.get('epoch', 0):g} of {entry['item']['epochs']}, "
        f"{figures.get('seconds', 0):.0f} s, {_number(figures.get('images_per_second'))} images/s"
        f"{_carried(figures.get('carried'))}{failed}",
        "",
        "| epoch | 20-NN | k-means ACC | k-means NMI | GridShift clusters | ACC | NMI |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for point in figures.get("history", ()):
        grid = point["gridshift"] if isinstance(point["gridshift"], Mapping) else {}
        cells = [
            f"{point['epoch']:g}",
            f"{point['knn']['20']:.3f}",
            f"{point['kmeans']['acc']:.3f}",
            f"{point['kmeans']['nmi']:.3f}",
            str(grid.get("n_clusters", "")),
            *(f"{grid[key]:.3f}" if key in grid else "" for key in ("acc", "nmi")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _carried(size: Mapping[str, Any] | None) -> str:
    if size is None:
        return ""
    bits = ", ".join(f"{name} {number}" for name, number in size["bits"].items())
    errors = ", ".join(f"{part} {error:.1e}" for part, error in size["errors"].items())
    return f"; carried in {size['mb']:.1f} MB (bits: {bits}; errors: {errors})"


def _rate(results: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    return results.get(name, {}).get("figures", {}).get("images_per_second")


def _predicted(prediction: Mapping[str, Any] | None, device: str) -> float | None:
    for chip in ("H100", "H200"):
        if prediction is not None and chip in device:
            return prediction[chip]["images_per_second"]
    return None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
