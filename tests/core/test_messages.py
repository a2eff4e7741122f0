"""Sentences for the user: their length, and numbers of one."""

import importlib.metadata
import pathlib
import re

import numpy as np
import pytest

from cluster_jax.cli import app, exit_codes
from cluster_jax.core import checks
from cluster_jax.core.checks import MOST, InputError, sentence
from cluster_jax.core.logs import logger
from tests.rows import every_row

PACKAGE = pathlib.Path(checks.__file__).parent.parent
LONG = "a/" + "b" * 5000 + "/photo.jpg"


def test_a_value_is_cut_and_the_advice_is_not():
    advice = ": repair them, or set data.max_corrupt_fraction higher to leave them out"
    for value in (LONG, repr(list(range(9999))), "x y " * 999, "; got " * 999):
        said = str(InputError(f"data.dir must be a folder of images; got {value}{advice}"))
        assert said.startswith("data.dir must be a folder of images; got "), said
        assert said.endswith(advice)
        assert len(said) <= MOST
        assert "..." in said
    said = str(InputError(f"{LONG} must be a file; got a folder: name a file in it"))
    assert said.endswith("/photo.jpg must be a file; got a folder: name a file in it")
    said = str(InputError(f"x must be one of {', '.join(map(str, range(999)))}; got 'y'"))
    assert said.startswith("x must be one of 0, 1,")
    assert said.endswith("; got 'y'")
    assert len(said) <= MOST
    short = "x must be a number; got 'y'"
    assert str(InputError(short)) == short


@every_row(
    "arguments",
    [
        ["x" * 999],
        ["images", LONG],
        ["images", ".", f"--n-clusters={'9' * 999}x"],
        ["cluster", f"--features={LONG}"],
        ["train", "--config=nrcc_digits", f"--config.seed={'9' * 999}"],
        ["train", "--config=nrcc_digits", f"--config.{'k' * 999}=1"],
    ],
)
def test_no_command_ends_with_a_long_line(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        app.main(arguments)
    assert stop.value.code in (1, 2)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ")
    assert len(said) <= len("error: ") + MOST


def test_every_text_becomes_one_short_line():
    """Of words and names of any length, in any order, with what breaks a line."""
    rng = np.random.default_rng(0)
    letters = np.array([*"aé猫/ \n\t;,:.", "\x1b", "\udce9", "; got ", "\u202e"])
    for length in rng.integers(1, 3000, 200):
        text = "".join(rng.choice(letters, length, p=rng.dirichlet(np.full(len(letters), 0.3))))
        said = sentence(text)
        assert len(said) <= MOST
        assert said.isprintable() or "\udce9" in said, repr(said)
    assert sentence("a\nb\x1b[2J.jpg") == "a\\nb\\x1b[2J.jpg"


def test_warnings_are_short_lines(capsys, tmp_path):
    with pytest.warns(UserWarning, match="long$") as caught:
        checks.warn(f"{LONG}: it\nis long")
    assert len(str(caught[0].message)) <= MOST
    assert caught[0].filename == __file__
    with exit_codes.handle_errors():
        logger.warning("%s is damaged", LONG)
        exit_codes._show_warning("y" * 5000, UserWarning, "x.py", 1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(len(line) <= len("warning: ") + MOST for line in lines)
    with pytest.raises(SystemExit), exit_codes.handle_errors():
        raise OSError("z" * 5000)
    assert len(capsys.readouterr().err) <= len("error: ") + MOST + 1


def test_messages_tell_to_install_packages_that_there_are():
    """This package is not on PyPI, so that its extras cannot be installed by its name."""
    told = set()
    for file in PACKAGE.rglob("*.py"):
        for words in re.findall(r"pip install ([\w' \[\]-]+)", file.read_text()):
            told |= set(words.replace("'", "").split())
    needed = importlib.metadata.requires("cluster-jax") or []
    extras = {re.split(r"[^\w-]", need)[0] for need in needed if "extra ==" in need}
    assert {"pillow-heif", "gcsfs", "safetensors"} <= told
    assert told <= extras - {"cluster-jax"}
