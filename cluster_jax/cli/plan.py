"""Plans a training on TPUs or GPUs that are not there.

Compiles the training step of a config, and prints memory, operations, communication and a roofline
estimate of the time; for GPUs, and without libtpu, it counts operations only. A table estimates the
parts of the whole run, from the start to the report. Nothing is trained and no data are read.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cluster_jax.cli import exit_codes, flags, output
from cluster_jax.cli.flags import Parser
from cluster_jax.core import checks

if TYPE_CHECKING:
    from cluster_jax.pipeline.plan import Plan

_IMAGES = 1_281_167  # of ImageNet-1k
# libtpu compiles on a machine without a TPU, and is silent about what it does not find there.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


def _parser() -> Parser:
    parser = flags.config_parser("plan", __doc__, "--config.train.batch_size=2048")
    slices = "a TPU slice (v5e:4x4, v5p:2x2x2, v6e:4x4) or GPUs (a100:8, h100:8, h200:8)"
    parser.add_argument("--topology", required=True, metavar="NAME", help=slices)
    images = f"number of training images (default: {_IMAGES:,})"
    parser.add_argument("--images", type=int, default=_IMAGES, metavar="N", help=images)
    return parser


def describe(plan: "Plan", assumed: Mapping[str, tuple[float, str]]) -> str:
    """Formats a plan, and what its parts assume, as lines of text."""
    chip, seconds = plan.chip, plan.seconds
    total = sum(plan.memory.values())
    memory = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in plan.memory.items())
    links = ", ".join(
        f"{kind} {size / 1e6:,.1f} MB in {count:,}"
        for kind, (count, size) in plan.collectives.items()
    )
    limits = ", ".join(f"{name} {1e3 * value:,.1f} ms" for name, value in seconds.items() if value)
    update = plan.accumulate * plan.batch_size
    updated = f"; an update of {plan.accumulate} batches, {update:,} images"
    lines = [
        f"{plan.topology}: {plan.chips:,} chips on {plan.hosts:,} hosts",
        f"chip         {chip.flops / 1e12:,.0f} TFLOP/s (bfloat16), {chip.memory / 1e9:,.0f} GB, "
        f"{chip.bandwidth / 1e9:,.0f} GB/s, links {chip.links / 1e9:,.0f} GB/s ({chip.source})",
        f"batch        {plan.batch_size:,} images, {plan.batch_size / plan.chips:,g} a chip"
        f"{updated if plan.accumulate > 1 else ''}",
        f"memory       {total / 1e9:.2f} GB a chip: {memory}",
    ]
    if plan.largest_batch is None:
        lines[-1] += "; activations are not known"
    else:
        fits = "fits" if total <= chip.memory else "does NOT fit: lower train.batch_size"
        lines[-1] += f"; it {fits}"
        lines.append(f"largest      {plan.largest_batch:,} images a step, by proportion")
    lines.append(f"operations   {plan.flops / 1e12:,.2f} TFLOP a chip and step")
    if plan.moved is not None:
        lines[-1] += f", {plan.moved / 1e9:,.1f} GB read and written"
        lines.append(f"collectives  {links or 'none'}")
    lines += [
        f"roofline     {1e3 * plan.step_seconds:,.1f} ms a step ({limits}): "
        f"limited by {max(seconds, key=lambda name: seconds[name])}",
        f"run          {plan.steps:,} steps, in parts:",
        "",
        *_table(plan),
        "",
        "Estimates, not measurements. They assume",
        *(f"  {value:8.3g}  {text}" for value, text in assumed.values()),
    ]
    return "\n".join(lines)


def _table(plan: "Plan") -> Iterator[str]:
    """Yields a line for each part of a run, and what the first host does alone."""
    row = "{:20}{:>6}{:>10}{:>12}{:>12}{:>15}".format
    yield row("part", "hosts", "time", "GB a host", "GB bucket", "requests")
    for part in plan.parts:
        hosts = 1 if part.alone else plan.hosts
        sizes = f"{part.memory / 1e9:,.1f}", f"{part.moved / 1e9:,.1f}", f"{part.requests:,.0f}"
        yield row(part.name, hosts, _time(part.seconds), *sizes)
    # Checkpoints are written while the training goes on.
    last = [part for part in plan.parts if part.alone and "checkpoints" not in part.name]
    seconds, memory = sum(part.seconds for part in last), max(part.memory for part in last)
    yield ""
    yield (
        f"The first host alone, while the others wait: {_time(seconds)}, and "
        f"{memory / 1e9:,.0f} GB of its memory."
    )


def _time(seconds: float) -> str:
    size, unit = next(x for x in ((3600, "h"), (60, "min"), (0, "s")) if seconds >= x[0])
    return f"{seconds / (size or 1):,.1f} {unit}"


def _values(plan: "Plan") -> dict[str, Any]:
    seconds = {"step_seconds": plan.step_seconds, "seconds": plan.seconds}
    largest = {"largest_batch": plan.largest_batch}
    return {
        **plan._asdict(),
        "chip": plan.chip._asdict(),
        **seconds,
        "parts": [part._asdict() for part in plan.parts],
        **largest,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        args, overrides = flags.parse(_parser(), arguments)
        checks.whole("--images", args.images, 1)
        config, name = flags.read_config(args.config, overrides)
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        from cluster_jax.core import devices
        from cluster_jax.pipeline import plan
        from cluster_jax.pipeline.config import parse_training

        planned = plan.plan(parse_training(config, name), args.topology, args.images, devices.say)
        output.end(args, describe(planned, plan.ASSUMED), _values(planned))
