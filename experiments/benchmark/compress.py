"""Rate at which an embedding is written: `np.savez_compressed` of normal float32, in one thread."""

import io
import time
from typing import Any

import numpy as np

from experiments.benchmark import _measure

ROWS, COLUMNS, SEED, REPEATS = 20_000, 512, 0, 5
# Written before the first measurement by this file: what `plan` had assumed.
PREDICTED = {"bytes_per_second_of_processor": 22e6}


def measure() -> dict[str, Any]:
    """Bytes per second, of the clock and of the processor, and how much smaller they become."""
    rows = np.random.default_rng(SEED).standard_normal((ROWS, COLUMNS), np.float32)
    wall, cpu = [], []
    for _ in range(REPEATS):
        file, started, used = io.BytesIO(), time.perf_counter(), time.process_time()
        np.savez_compressed(file, rows=rows)
        wall.append(rows.nbytes / (time.perf_counter() - started))
        cpu.append(rows.nbytes / (time.process_time() - used))
    return {
        "bytes_per_second": _measure.spread(wall),
        "bytes_per_second_of_processor": _measure.spread(cpu),
        "size_of_file": file.tell() / rows.nbytes,
    }
