"""The command `report`: what it refuses. What it writes is in `tests/report/test_decisions.py`."""

import re

import pytest

from cluster_jax.cli import report as command
from cluster_jax.report import assignments
from tests.rows import every_row


def write(folder, title="image"):
    folder.mkdir()
    columns = {title: ["a", "b"], "cluster": [0, 1]}
    (folder / "assignments.csv").write_text(assignments.to_csv(columns))
    return str(folder)


@every_row(
    ("flags", "message"),
    [
        (("{run}",), "the run in .*run must be finished; got no results"),
        (("{photos}",), "workdirs of finished runs; got .*photos, which has no assignments.csv"),
        (("none",), "workdirs of finished runs; got none, which does not exist"),
        (("{other}",), "must have a column of names and one of clusters"),
        (("{run}", "--by=copy"), "--by must come with --export=DIR; got no --export"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, flags, message):
    places = {name: tmp_path / name for name in ("run", "photos", "other")}
    write(places["run"])
    write(places["other"], "other")
    places["photos"].mkdir()
    with pytest.raises(SystemExit) as stop:
        command.main([flag.format(**places) for flag in flags])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
