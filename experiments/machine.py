"""The hardware that measurements were taken on."""

import pathlib
import platform


def describe() -> str:
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
