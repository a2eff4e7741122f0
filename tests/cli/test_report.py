"""The command `report`: what it refuses. What it writes is in `tests/runs/test_corrections.py`."""

import re

from cluster_jax.cli import report as command
from tests.rows import every_row


@every_row(
    ("flags", "message"),
    [
        (("{run}",), "the run in .*run is not finished; run its command again with --workdir="),
        (("{photos}",), "workdir must be that of a finished run; got .*photos, which is no folder"),
        (("none",), "workdir must be that of a finished run; got none, which does not exist"),
        (("{old}",), "old was written by an older version of cluster_jax"),
        (("{run}", "--corrections="), "--corrections must be a file .*; got an empty name"),
        (("{run}", "--by=copy"), "--by must come with --export=DIR; got no --export"),
        (
            ("{run}", "--name=0=cats", "--name= 0=dogs"),
            "must name a cluster once; got a second .*dogs",
        ),
        (("{run}", "--name=cats"), "--name must be a number and a name, such as 5=Snakes; got 'c"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, refused, flags, message):
    places = {name: tmp_path / name for name in ("run", "photos", "old")}
    for folder in places.values():
        folder.mkdir()
    for name in ("run", "old"):
        (places[name] / "config.json").write_text("{}")
    (places["old"] / "clusters.npz").touch()
    assert re.search(message, refused(command.main, *(flag.format(**places) for flag in flags)))
