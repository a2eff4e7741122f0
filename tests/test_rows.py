"""Rows of a table in one test: a failure names its row, and rows share nothing."""

import os
import sys

import pytest

from tests.rows import every_row


def test_a_failure_names_its_row_and_ends_the_test():
    seen = []

    @every_row("a, b", [(1, 1), (2, 3), (4, 5)])
    def compared(a, b):
        seen.append(a)
        assert a == b

    with pytest.raises(AssertionError) as error:
        compared()
    assert error.value.__notes__ == ["row 1: {'a': 2, 'b': 3}"]
    assert seen == [1, 2]


@every_row("name", ["first", "second"])
def test_a_row_has_a_folder_patches_and_output_of_its_own(name, tmp_path, monkeypatch, capsys):
    assert capsys.readouterr().out == ""
    assert "ROW" not in os.environ
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("ROW", name)
    (tmp_path / "file").touch()
    sys.stdout.write(name)


@every_row("a", [1, 2])
@every_row("b", [3, 4])
def test_tables_are_multiplied(a, b, request):
    seen = vars(request.node).setdefault("seen", [])
    seen.append((a, b))
    assert seen == [(1, 3), (1, 4), (2, 3), (2, 4)][: len(seen)]
