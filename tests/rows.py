"""Several rows of a table in one test: for checks that take no time and share their set-up."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def every_row(
    names: str | tuple[str, ...], rows: Iterable[Any], slow: Iterable[Any] = ()
) -> Callable[..., Any]:
    """Makes one test of a function and the rows that `pytest.mark.parametrize` would take.

    Each row has a folder of its own in `tmp_path`, and what it patches or prints is undone and
    forgotten after it. A failure names its row; the rows that follow it do not run.

    Args:
        names: of the columns.
        rows: of every run of the suite.
        slow: more rows, in a second test, which is slow: those that take the way of another row.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows, nightly = list(rows), list(slow)
    chosen = f"{columns[0]}_rows"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for i, row in enumerate(fixtures.pop(chosen, rows)):
                values = dict(zip(columns, row if len(columns) > 1 else (row,), strict=True))
                with pytest.MonkeyPatch.context() as patch:
                    try:
                        test(**_of_row(fixtures, i, patch), **values)
                    except (Exception, pytest.fail.Exception) as error:
                        error.add_note(f"row {i}: {values}")
                        raise

        kept = [p for name, p in signature.parameters.items() if name not in columns]
        if nightly:
            kept.append(inspect.Parameter(chosen, inspect.Parameter.KEYWORD_ONLY))
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        if not nightly:
            return run
        both = [rows, pytest.param(nightly, marks=pytest.mark.slow)]
        return pytest.mark.parametrize(chosen, both, ids=["rows", "slow rows"])(run)

    return decorate


def _of_row(fixtures: dict[str, Any], i: int, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    changed = dict(fixtures)
    if "tmp_path" in changed:
        changed["tmp_path"] = fixtures["tmp_path"] / str(i)
        changed["tmp_path"].mkdir()
    if "monkeypatch" in changed:
        changed["monkeypatch"] = patch
    if "capsys" in changed:
        changed["capsys"].readouterr()
    if "caplog" in changed:
        changed["caplog"].clear()
    return changed
