"""`python -m experiments.tutorials NAME`: runs a tutorial and writes its page with what it prints.

The script of a tutorial has cells (`# %%`): comments after `# %% [markdown]` are text, the rest is
code. The page `NAME.md` shows text, code and output, beside it the pictures; with `--notebook` the
same run also writes `NAME.ipynb`.
"""

import ast
import base64
import contextlib
import io
import json
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from experiments import tables

FOLDER = Path(__file__).parent


class Cell(NamedTuple):
    """A cell: its text or code, and what the code printed and drew."""

    source: str
    is_code: bool
    printed: str = ""
    picture: bytes | None = None


def read(name: str) -> list[Cell]:
    """The cells of a script; its docstring is the first, whose first line is the title."""
    text = (FOLDER / f"{name}.py").read_text()
    docstring, *parts = re.split(r"^# %%", text, flags=re.M)
    cells = [Cell("# " + (ast.get_docstring(ast.parse(docstring)) or name), is_code=False)]
    for part in parts:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [re.sub("^# ?", "", line) for line in body.strip().splitlines()]
            cells.append(Cell("\n".join(lines), is_code=False))
        else:
            cells.append(Cell(body.strip(), is_code=True))
    return cells


def run(cells: list[Cell]) -> list[Cell]:
    """The cells with what they print; a picture is the value of a cell's last line."""
    main, module = sys.modules["__main__"], types.ModuleType("__main__")
    # What they define can be imported, as in a notebook.
    sys.modules["__main__"] = module
    try:
        return [_run_cell(cell, vars(module)) if cell.is_code else cell for cell in cells]
    finally:
        sys.modules["__main__"] = main


def _run_cell(cell: Cell, names: dict) -> Cell:
    tree = ast.parse(cell.source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<tutorial>", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<tutorial>", "eval"), names)
    picture = None
    if isinstance(value, Image.Image):
        buffer = io.BytesIO()
        value.save(buffer, "JPEG", quality=85)
        picture = buffer.getvalue()
    lines = [line.rstrip() for line in printed.getvalue().strip().splitlines()]
    return cell._replace(printed="\n".join(lines), picture=picture)


def page(name: str, cells: list[Cell]) -> str:
    """The tutorial as Markdown."""
    parts = [f"<!-- Written by `python -m experiments.tutorials {name}`. -->"]
    heading = name
    for number, cell in enumerate(cells):
        if not cell.is_code:
            parts.append(cell.source)
            heading = (re.findall(r"^#+ (.*)$", cell.source, flags=re.M) or [heading])[-1]
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [f"```text\n{cell.printed}\n```"] if cell.printed else []
        parts += [f"![{heading}]({name}_{number}.jpg)"] if cell.picture else []
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """The tutorial as a Jupyter notebook with its outputs."""
    written = []
    for number, cell in enumerate(cells):
        kind = "code" if cell.is_code else "markdown"
        entry: dict = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}}
        entry["source"] = cell.source.splitlines(keepends=True)
        if cell.is_code:
            entry |= {"execution_count": number, "outputs": []}
        if cell.printed:
            text = cell.printed.splitlines(keepends=True)
            entry["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if cell.picture:
            data = {"image/jpeg": base64.b64encode(cell.picture).decode()}
            picture = {"output_type": "display_data", "data": data, "metadata": {}}
            entry["outputs"].append(picture)
        written.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": written, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = tables.parser("tutorials", __doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--notebook", action="store_true")
    flags = parser.parse_args(arguments)
    cells = run(read(flags.name))
    if flags.notebook:
        tables.write(FOLDER / f"{flags.name}.ipynb", notebook(cells))
    tables.write(FOLDER / f"{flags.name}.md", page(flags.name, cells))
    for number, cell in enumerate(cells):
        if cell.picture:
            tables.write(FOLDER / f"{flags.name}_{number}.jpg", cell.picture)


if __name__ == "__main__":
    main()
