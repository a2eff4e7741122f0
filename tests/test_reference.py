"""The API reference shows every public function, formulas as they are written, and the README."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import cluster_jax
from experiments import reference

PACKAGES = ("clustering", "losses", "methods", "metrics", "nets", "samplers")
# As MathJax finds them, in text that is no code.
FORMULAS = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("pdoc", reason="the extra docs is not installed")
    out = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-W", "error", "-m", "experiments.reference", f"--out={out}")
    done = subprocess.run(
        [*command, "--repository=https://x"], cwd=reference.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return out


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_the_page_of_its_package(site, package):
    page = (site / "cluster_jax" / f"{package}.html").read_text()
    public = importlib.import_module(f"cluster_jax.{package}").__all__
    assert [name for name in public if f'id="{name}"' not in page] == []


def test_the_estimators_and_the_readme_come_first(site):
    page = (site / "cluster_jax.html").read_text()
    for name in set(cluster_jax.__all__) - set(PACKAGES):
        assert f'id="{name}"' in page
    assert "A folder of photos" in page
    assert 'href="https://x/experiments/tutorials/guide.md"' in page
    assert 'href="https://x/LICENSE"' in page
    for picture in re.findall(r'srcset="(.*?)"', page):
        assert (site / picture).is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_formulas_are_as_written(site, package):
    """Markdown takes nothing in a formula for a list, an emphasis or an escape."""
    module = importlib.import_module(f"cluster_jax.{package}")
    written = FORMULAS.findall(inspect.getdoc(module).split("Example:")[0])
    page = (site / "cluster_jax" / f"{package}.html").read_text()
    shown = page.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert [formula for formula in written if formula not in shown] == []
    assert written or package in ("metrics", "nets")
