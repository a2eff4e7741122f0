"""Imports go one way: a module imports only from rows above its own, and there are no cycles."""

import ast
import pathlib
import re

import pytest

from cluster_jax.cli import app

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cluster_jax"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
# Top to bottom; a name stands for a module or a folder of the package.
ROWS = (
    ("core",),
    ("losses", "samplers", "nets", "clustering", "metrics", "data"),
    ("methods", "encoding"),
    ("evaluation",),
    ("discovery",),
    ("training",),
    ("report",),
    ("runs",),
    ("estimators",),
    ("cli",),
    ("main", "__main__"),
)
ROW = {name: row for row, members in enumerate(ROWS) for name in members}
FILES = sorted(PACKAGE.rglob("*.py"))


def _imports(file):
    """Dotted names under `cluster_jax` that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("cluster_jax"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cluster_jax"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                path = ROOT / full.replace(".", "/")
                module = path.is_dir() or path.with_suffix(".py").is_file()
                yield full if module else node.module


def _unit(name):
    return name.split(".")[1] if "." in name else None


def test_imports_point_up():
    for file in FILES:
        own = file.relative_to(PACKAGE).with_suffix("").parts[0]
        if own == "__init__":
            continue
        for name in _imports(file):
            other = _unit(name)
            if other in (None, own):
                continue
            assert other in ROW, f"{other} has no row; add it to ROWS"
            assert ROW[other] < ROW[own], f"{file.relative_to(ROOT)} imports {name}"


def test_the_picture_of_contributing_has_these_rows():
    """And the modules of `core`, and the commands."""
    picture = re.search(r"^```mermaid\n(.*?)^```$", CONTRIBUTING.read_text(), re.M | re.S)[1]
    named = re.findall(r"<b>(\w+)</b>", picture)
    assert named == [name for row in ROWS[:-1] for name in row]
    modules = re.search(r"<b>core</b><br/>config sections, checks, (.*?)\"", picture)[1]
    assert all((PACKAGE / "core" / f"{name}.py").exists() for name in modules.split(", "))
    commands = re.search(r"cluster-jax ([a-z |]+)", picture)[1].split(" | ")
    assert set(commands) == set(app.COMMANDS)
    chain = re.findall(r"^ *(core --> .*)$", picture, re.M)[0]
    boxes = [box for step in chain.split(" --> ") for box in step.split(" & ")]
    assert boxes == re.findall(r"^ {4}(?:subgraph )?(\w+)\[", picture, re.M)


def test_no_cycles():
    graph = {}
    for file in FILES:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        graph[name] = set(_imports(file)) - {"cluster_jax"}
    done, active = set(), []

    def visit(name):
        assert name not in active, f"cycle: {' -> '.join([*active, name])}"
        if name in done:
            return
        active.append(name)
        for other in graph.get(name, ()):
            visit(other)
        done.add(active.pop())

    for name in graph:
        visit(name)


COLLECTIVES = {
    "all_gather", "all_to_all", "axis_index", "axis_size", "pcast", "pmax", "pmean", "pmin",
    "ppermute", "psum", "psum_scatter", "pvary",
}  # fmt: skip


def _names(file):
    """Every attribute, imported name and top-level imported module of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)


@pytest.mark.parametrize(
    ("words", "home"),
    [({"flax"}, "nets"), (COLLECTIVES, "collectives.py"), ({"orbax"}, "training")],
)
def test_one_home_of(words, home):
    """Flax, collectives and Orbax are named in one place each, and there they are."""
    inside = {f for f in FILES if home in f.relative_to(PACKAGE).parts}
    for file in set(FILES) - inside:
        assert not words & set(_names(file)), file
    assert words & {name for file in inside for name in _names(file)}


def test_nearest_rows_have_one_search():
    """That of `core.knn`; GridShift looks up the cells of a grid."""
    others = {"NearestNeighbors", "kneighbors_graph", "BallTree", "KDTree", "cKDTree", "cdist"}
    users = {file.stem for file in FILES if others & set(_names(file))}
    assert users == {"gridshift"}


# Nouns, which begin the docstring of a value.
PLURALS = {
    "Bytes", "Classes", "Columns", "Embeddings", "Facts", "Features", "Files", "Images", "Indices",
    "Labels", "Lines", "Logits", "Parameters", "Probabilities", "Rows", "Settings", "This",
    "Values",
}  # fmt: skip


def _is_function(node):
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and "property" not in " ".join(map(ast.unparse, node.decorator_list))


def test_docstrings_of_functions_begin_with_a_verb():
    """As "Returns the ..."; "See `x`." is the docstring of a function like another one."""
    for file in FILES:
        for node in filter(_is_function, ast.walk(ast.parse(file.read_text()))):
            doc = ast.get_docstring(node) or "See"
            word = re.match(r"\w*", doc)[0]
            is_verb = re.fullmatch("[A-Z][a-z]+s", word) and word not in PLURALS
            assert is_verb or word == "See", f"{file.relative_to(ROOT)}: {doc.splitlines()[0]}"


def _code_lines(node, lines):
    """The number of lines of a function that are code: no docstring, no comment, not empty."""
    doc = node.body[0] if ast.get_docstring(node) else None
    left_out = range(doc.lineno, doc.end_lineno + 1) if doc else ()
    own = (i for i in range(node.lineno, node.end_lineno + 1) if i not in left_out)
    return sum(not re.fullmatch(r"\s*(#.*)?", lines[i - 1]) for i in own)


def test_functions_are_as_short_as_contributing_says():
    most = int(re.search(r"Functions have at most (\d+) lines", CONTRIBUTING.read_text())[1])
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for file in (*FILES, *ROOT.glob("experiments/**/*.py"), *ROOT.glob("configs/*.py")):
        lines = file.read_text().splitlines()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, functions):
                assert _code_lines(node, lines) <= most, f"{file}: {node.name}"


def test_scripts_and_templates_of_the_page_stay_short():
    folder = PACKAGE / "report" / "templates"
    lines = [len(file.read_text().splitlines()) for file in folder.rglob("*") if file.is_file()]
    assert 0 < sum(lines) <= 1600
