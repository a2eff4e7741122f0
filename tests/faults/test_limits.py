"""Values that no run can use: one sentence with the key, before any work and within memory."""

import decimal
import itertools
import json
import pathlib
import random
import time

import numpy as np
import pytest
from ml_collections import ConfigDict

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from tests import toy

VALUES = (
    None, True, 0, -1, 3, 2**31, 10**9, 0.5, -0.5, 1e300, "", "x", "5 steps", "byol", [], [1],
    ["a"], {}, {"a": 1}, "../../x", "\x00", "\ud800", "x y " * 999, list(range(9999)),
)  # fmt: skip
# What only Python can give.
OBJECTS = (
    b"x", object(), {1, 2}, 1j, ..., len, int, np.float32("nan"), -float("inf"), np.array([1, 2]),
    np.array("x"), np.int64(3), np.float64(0.5), np.bool_(True), pathlib.Path("x"), (1, (2, "a")),
    [[1], [2]], {"a": {"b": [1]}}, {1: 2}, range(3), 10**400, decimal.Decimal("0.5"),
    ConfigDict({"a": 1}), Exception("x"), (), ((),), {"k" * 999: 1},
)  # fmt: skip
# What Python itself would say.
RAW = ("object is not", "not supported between", "unsupported operand", "has no attr")


def _keys(section, prefix=""):
    for name, value in section.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")


def _with(values, key, value):
    """A copy of nested dicts with one value replaced."""
    head, _, rest = key.partition(".")
    return {**values, head: _with(values[head], rest, value) if rest else value}


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    return toy.config(toy.file(tmp_path_factory.mktemp("toy"))).to_dict()


def _is_a_sentence(error):
    said = str(error)
    assert "\n" not in said, said
    assert len(said) <= checks.MOST
    assert not any(python in said.split("(")[0] for python in RAW), said
    return said


def test_any_object_under_any_key(values):
    """A `ConfigDict` of a program's own; what is accepted can be written as `config.json`."""
    pairs = list(itertools.product(_keys(values), (*VALUES, *OBJECTS)))
    for key, value in random.Random(0).sample(pairs, 800):
        config = ConfigDict(_with(values, key, value), type_safe=False)
        try:
            parse_config(config)
            json.dumps(config_json(config))
        except InputError as error:
            said = _is_a_sentence(error)
            names = (key, key.rsplit(".", 1)[0], key.rsplit(".", 1)[-1])
            assert any(name in said for name in names), (key, said)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nrcc.sghmc.iterations", 10**9, r"nrcc\.sghmc\.iterations must be at most 200"),
        ("eval.kmeans.n_clusters", 10**9, r"eval\.kmeans\.n_clusters must be between 1 and 64"),
        ("seed", 2**32, r"seed must be at most 4,294,967,295; got 4294967296"),
    ],
)
def test_what_does_not_fit(values, key, value, said):
    start = time.monotonic()
    with pytest.raises(InputError, match=said) as error:
        build.build_run(parse_config(_with(values, key, value)))
    _is_a_sentence(error.value)
    assert time.monotonic() - start < 20
