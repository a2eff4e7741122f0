"""A GPU: checks against the CPU, rates beside PyTorch's and the roofline, a profile, a training.

An estimated 25 minutes on a GPU (not yet run on one), and the training on CIFAR-10, which needs
`--data=TFDS_DIR`; `--tiny` does a part of it in 20 seconds on a CPU. PyTorch's step
(`_torch_byol.py`) is measured where PyTorch is installed.

`predictions.json` was written before anything was measured: the least time of a step is the larger
of its operations over the chip's peak and its bytes over the bandwidth, of which `REACHED` is
expected. Operations are counted in the step as traced; bytes are the passes over the outputs of
convolutions. `predict` recomputes it.
"""

import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import plan
from cluster_jax.training.loop import TrainingRun
from experiments import tables
from experiments.benchmark import _checks, _steps
from experiments.benchmark._steps import Item

PREDICTIONS = pathlib.Path(__file__).parent / "predictions.json"
DTYPES = ("bfloat16", "float32")
BYOL = Item()
# In both precisions, then in bfloat16 alone.
ITEMS = (
    *(BYOL._replace(method=method) for method in _steps.CONFIGS),
    BYOL._replace(sampler="sghmc"),
    BYOL._replace(views="flips"),
    BYOL._replace(network="resnet34"),
    BYOL._replace(network="resnet50"),
    BYOL._replace(network="resnet50", side=224),
)
ITEMS += (
    *(item._replace(dtype="float32") for item in ITEMS),
    BYOL._replace(batch=512),
    BYOL._replace(batch=1024),
    BYOL._replace(sampler="monte_carlo"),
    BYOL._replace(sampler="hmc"),
)
WARM_UP, ROUNDS, ROUND_SECONDS = 5, 3, 2.0
TORCH_SECONDS = 240
PROFILED_STEPS, KERNELS = 10, 10
EPOCHS = 100
WORKDIR = "runs/gpu"

REACHED = 0.3
FORWARD, BACKWARD = 5, 10  # passes over an output of a convolution
# The Monte Carlo view needs no gradient at the images; SGHMC and HMC add one backward pass to the
# images, HMC one forward pass more; each sampled view is embedded by the target network.
SAMPLED = {
    None: 0,
    "monte_carlo": 2 * FORWARD,
    "sghmc": FORWARD + BACKWARD,
    "hmc": 2 * FORWARD + BACKWARD,
}


CHIPS = {"H100": plan.CHIPS["h100"], "H200": plan.CHIPS["h200"]}


def measure(data: str | None = None, tiny: bool = False) -> dict[str, Any]:
    """All figures; what fails has its error in place of figures.

    Args:
        data: folder of CIFAR-10 prepared by TFDS as array_record; None: no training.
        tiny: a part of it with sizes for a CPU.

    Raises:
        InputError: there is no accelerator, and `tiny` is false.
    """
    # Also PyTorch and the training, in processes of their own, need memory of the device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if jax.default_backend() == "cpu" and not tiny:
        raise InputError("a GPU or TPU must be there; got only a CPU, for which there is --tiny")
    figures: dict[str, Any] = {"checks": _checks.measure(tiny), "rates": {}, "pytorch": {}}
    _say("checks", figures["checks"]["failed"] or "passed")
    for item in (BYOL,) if tiny else ITEMS:
        figures["rates"][item.name] = _checks.attempt(rate, item, tiny)
        _say(item.name, figures["rates"][item.name])
    for dtype in () if tiny else DTYPES:
        figures["pytorch"][dtype] = _checks.attempt(torch_rate, dtype)
        _say(f"PyTorch, {dtype}", figures["pytorch"][dtype])
    profiled = BYOL if tiny else BYOL._replace(sampler="sghmc")
    figures["profile"] = _checks.attempt(profile, profiled, tiny)
    if data is not None:
        figures["training"] = _checks.attempt(train, data)
    return figures


def _say(name: str, figures: Any) -> None:
    print(f"{name}: {figures}", file=sys.stderr, flush=True)


def rate(item: Item, tiny: bool) -> dict[str, Any]:
    """Figures of an item's training step.

    Images are resident on the device and augmented inside the step; the host only sends indices.
    """
    figures = measure_run(_steps.build_run(item, tiny), 0.02 if tiny else ROUND_SECONDS)
    found = [chip for name, chip in CHIPS.items() if name in jax.devices()[0].device_kind]
    share = share_of_peak(figures, found[0], item.dtype) if found else None
    return figures | {"share_of_peak": share}


def share_of_peak(figures: Mapping[str, Any], chip: plan.Chip, dtype: str) -> float:
    """Operations per second over the chip's dense peak, for float32 that in TF32."""
    operations_per_second = 1e9 * figures["gflops_per_image"] * figures["images_per_second"]
    return operations_per_second / _peak(chip, dtype)


def _peak(chip: plan.Chip, dtype: str) -> float:
    """FLOP/s by the data sheet; TF32, in which float32 is multiplied, has half of bfloat16's."""
    return chip.flops if dtype == "bfloat16" else chip.flops / 2


def measure_run(run: TrainingRun, round_seconds: float) -> dict[str, Any]:
    """Figures of a run's step, after at least `round_seconds` of steps in each round."""
    state, step, stream, resident = _steps.prepare(run)
    batch = next(stream)
    start = time.perf_counter()
    compiled = step.lower(state, batch, resident).compile()
    state, metrics = compiled(state, batch, resident)
    jax.block_until_ready(metrics)
    first = time.perf_counter() - start

    def steps(state: Any, count: int) -> tuple[Any, float]:
        start = time.perf_counter()
        for _ in range(count):
            state, metrics = compiled(state, next(stream), resident)
        jax.block_until_ready((state, metrics))
        return state, (time.perf_counter() - start) / count

    state, seconds = steps(state, WARM_UP)
    count = max(3, round(round_seconds / seconds))
    rounds = []
    for _ in range(ROUNDS):
        state, seconds = steps(state, count)
        rounds.append(seconds)
    size, memory = run.train.batch_size, compiled.memory_analysis()
    used = 0 if memory is None else (
        memory.argument_size_in_bytes + memory.output_size_in_bytes
        - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    )  # fmt: skip
    return {
        "images_per_second": size / statistics.median(rounds),
        "images_per_second_range": [size / max(rounds), size / min(rounds)],
        "milliseconds": 1e3 * statistics.median(rounds),
        "first_step_seconds": first,
        "gflops_per_image": _steps.operations(run) / 1e9,
        "memory_gb": used / 1e9 or None,
    }


def torch_rate(dtype: str) -> dict[str, Any]:
    """Figures of PyTorch's step, from a process of its own: both load their own CUDA."""
    if importlib.util.find_spec("torch") is None:
        return {"error": "PyTorch is not installed"}
    command = [sys.executable, "-m", "experiments.benchmark._torch_byol"]
    command += [f"--batch={BYOL.batch}", f"--dtype={dtype}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def profile(item: Item, tiny: bool) -> dict[str, Any]:
    """The ten kernels with the largest sums of time in ten steps, and the gaps between kernels."""
    state, step, stream, resident = _steps.prepare(_steps.build_run(item, tiny))

    def steps(state: Any, count: int) -> Any:
        for _ in range(count):
            state, _ = step(state, next(stream), resident)
        return jax.block_until_ready(state)

    state = steps(state, WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            steps(state, PROFILED_STEPS)
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return {"step": item.name, "steps": PROFILED_STEPS, **summarize(_events(file))}


def summarize(events: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Figures of device events (name, start, duration in ns).

    Returns:
        `{"busy": share of the window in which a kernel runs, "milliseconds": the window,
        "kernels": number, "largest": [{"name", "milliseconds", "share", "calls"}, ...]}`; a share
        is of the sum of all durations.
    """
    if not events:
        return {"busy": None, "milliseconds": None, "kernels": 0, "largest": []}
    durations: dict[str, list[float]] = defaultdict(list)
    for name, _, duration in events:
        durations[name].append(duration)
    spans = sorted((start, start + duration) for _, start, duration in events)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    window, total = reached - spans[0][0], sum(map(sum, durations.values()))
    largest = sorted(durations, key=lambda name: -sum(durations[name]))[:KERNELS]
    return {
        "busy": busy / window if window else None,
        "milliseconds": window / 1e6,
        "kernels": len(events),
        "largest": [
            {
                "name": name,
                "milliseconds": sum(durations[name]) / 1e6,
                "share": sum(durations[name]) / total,
                "calls": len(durations[name]),
            }
            for name in largest
        ],
    }


def _events(file: pathlib.Path) -> list[tuple[str, float, float]]:
    """Kernels on the device; on a CPU, which has no device plane, XLA's own operations."""
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    device = [p for p in planes if p.name.startswith("/device:GPU")]
    return [
        (event.name, event.start_ns, event.duration_ns)
        for plane in device or planes
        for line in plane.lines
        if (line.name.startswith("Stream") if device else "XLA" in line.name)
        for event in line.events
    ]


def train(data: str, workdir: str = WORKDIR, *overrides: str) -> dict[str, Any]:
    """Rate and metrics of NCC with a ResNet-18 on CIFAR-10, by the package's own command.

    A training that was interrupted continues in `workdir`.
    """
    command = [sys.executable, "-m", "cluster_jax.main", "--config=ncc_cifar10"]
    command += [f"--config.data.dir={data}", f"--workdir={workdir}"]
    command += ["--config.network.name=resnet18", "--config.network.dtype=bfloat16"]
    command += [f"--config.train.duration={EPOCHS} epochs", *overrides]
    subprocess.run(command, check=True)
    results = io.read_json(f"{workdir}/results.json")
    shown = " ".join(command[1:]).replace(data, "DIR")
    kept = {key: results[key] for key in ("metrics", "seconds", "images_per_second")}
    return {"command": f"python {shown}", **kept}


def predict(item: Item) -> dict[str, Any]:
    """Operations and bytes of an item's image, and the images/s to expect on each chip."""
    flops = _steps.operations(_steps.build_run(item))
    passes = 2 * (FORWARD + BACKWARD) + SAMPLED[item.sampler]
    passes += 2 * FORWARD if item.method in _steps.TARGET else 0
    width = 2 if item.dtype == "bfloat16" else 4
    moved = passes * width * _steps.outputs_of_convolutions(item)
    expected = {}
    for name, chip in CHIPS.items():
        bound = 1 / max(flops / _peak(chip, item.dtype), moved / chip.bandwidth)
        expected[name] = {"bound": bound, "images_per_second": REACHED * bound}
    return {"gflops_per_image": flops / 1e9, "megabytes_per_image": moved / 1e6, **expected}


def texts(figures: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """The figures as Markdown, the rates beside what was predicted."""
    device = about["device"]
    predictions = io.read_json(PREDICTIONS)["rates"]
    chip = next((name for name in CHIPS if name in device), None)
    found = figures["rates"] | {f"PyTorch, byol {d}": f for d, f in figures["pytorch"].items()}
    rows = []
    for name, row in found.items():
        expected = predictions.get(name, {}).get(chip, {}).get("images_per_second")
        share = row.get("share_of_peak")
        rest = ("gflops_per_image", "memory_gb", "first_step_seconds")
        cells = [
            row.get("error") or _number(row["images_per_second"]),
            _number(expected),
            "" if share is None else f"{share:.1%}",
            *(_number(row.get(key)) for key in rest),
        ]
        rows.append([name, *cells])
    columns = ("images/s", "predicted", "of peak", "GFLOP/image", "memory GB", "first step s")
    checks = figures["checks"]
    parts = [
        f"# {device}{', tiny sizes' * ('--tiny' in about['command'])}",
        f"Checks against the CPU: {len(checks['figures'])}; failed: "
        f"{', '.join(checks['failed']) or 'none'}.",
        tables.markdown(["", *columns], rows),
        "\n".join(_ratios(found)),
    ]
    traced = figures["profile"]
    if traced.get("largest"):
        columns = ("kernel", "ms", "share", "calls")
        parts.append(
            f"{traced['step']}: {traced['steps']} steps in {traced['milliseconds']:.1f} ms, "
            f"{traced['kernels']:,} kernels, device busy {traced['busy']:.1%}."
        )
        rows = [
            [f"`{k['name'][:80]}`", _number(k["milliseconds"]), f"{k['share']:.1%}", k["calls"]]
            for k in traced["largest"]
        ]
        parts.append(tables.markdown(columns, rows))
    training = figures.get("training", {})
    if "metrics" in training:
        kmeans = training["metrics"]["kmeans"]
        parts.append(
            f"`{training['command']}`: {_number(training['images_per_second'])} images/s, k-means "
            f"ACC {kmeans['acc']:.3f}, NMI {kmeans['nmi']:.3f}."
        )
    elif training:
        parts.append(f"Training: {training['error']}.")
    return parts


def _ratios(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """NRCC over BYOL in time for each sampler, and ours over PyTorch in rate."""

    def ratio(above: str, below: str) -> float | None:
        rates = [found.get(name, {}).get("images_per_second") for name in (above, below)]
        return rates[0] / rates[1] if all(rates) else None

    lines = {
        f"BYOL + NRCC ({sampler}) / BYOL in time": ratio(
            BYOL.name, BYOL._replace(sampler=sampler).name
        )
        for sampler in ("sghmc", "hmc", "monte_carlo")
    }
    for dtype in DTYPES:
        flips = BYOL._replace(dtype=dtype, views="flips")
        lines[f"images/s over PyTorch's, {dtype}"] = ratio(flips.name, f"PyTorch, byol {dtype}")
    return [f"- {text}: {value:.3f}" for text, value in lines.items() if value]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
