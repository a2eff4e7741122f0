"""The API reference as a website: `python -m experiments.reference --out=site`.

pdoc (`pip install '.[docs]'`) renders the docstrings in seconds, with the README as the first page.
`pdoc cluster_jax --math -o site` gives the same pages, except that a function with the name of its
module, as `losses.nrcc`, is on a page of its own, and the README's links lead nowhere.
"""

import pathlib
import re
import shutil
import types

from experiments import tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ("experiments/tutorials/report.png", "experiments/tutorials/report_dark.png")
# What Python itself writes into every named tuple.
TUPLES = r"<p>(?:Alias for field number \d+|Create new instance of \w+\([^<]*\))</p>"
# Links to files of the project.
FILES = r'href="(?!\w+:)((?:[\w./]+\.(?:md|py|ipynb|cff)|LICENSE)(?:#[\w-]+)?)"'


def build(out: pathlib.Path, repository: str) -> None:
    """Writes the site to the folder `out`.

    Args:
        out: made if it does not exist.
        repository: address at which the files of the project are, such as
            "https://github.com/OWNER/NAME/blob/main".
    """
    import pdoc

    submodules = pdoc.extract.iter_modules2

    def public_modules(package: types.ModuleType) -> dict:
        found = submodules(package)
        return {n: m for n, m in found.items() if isinstance(getattr(package, n), types.ModuleType)}

    pdoc.render.configure(docformat="google", math=True)
    pdoc.extract.iter_modules2 = public_modules
    try:
        pdoc.pdoc("cluster_jax", output_directory=out)
    finally:
        pdoc.extract.iter_modules2 = submodules
    for page in out.rglob("*.html"):
        text = page.read_text().replace("jax.jaxlib._jax.Array", "jax.Array")
        text = re.sub(FILES, rf'href="{repository}/\1"', re.sub(TUPLES, "", text))
        page.write_text(text)
    for picture in PICTURES:
        (out / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / picture, out / picture)


def main() -> None:
    """Entry point."""
    parser = tables.parser("reference", __doc__)
    parser.add_argument("--out", type=pathlib.Path, default="site", help="folder of the site")
    parser.add_argument("--repository", default=ROOT.as_uri(), help="address of the files it links")
    flags = parser.parse_args()
    build(flags.out, flags.repository)
    print(flags.out / "index.html")


if __name__ == "__main__":
    main()
