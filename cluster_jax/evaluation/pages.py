"""Pages of HTML from the templates of this package, each one file that opens offline."""

import base64
import functools
import gzip
import importlib.resources
from typing import Any

import jinja2
import markupsafe

from cluster_jax.evaluation import report_tables, summary


def fill(template: str, **values: Any) -> str:
    """A page; whatever is filled in is escaped unless it is markup already.

    Args:
        template: name of a file among the templates.
        **values: everything that it names; the style sheet is always there.
    """
    return _environment().get_template(template).render(css=asset("report.css"), **values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cluster_jax.evaluation"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": report_tables.count,
        "entry_name": report_tables.entry_name,
        "number": report_tables.format_value,
    }
    environment.globals["clusters_in_words"] = summary.groups
    return environment


def compressed(text: str) -> str:
    """A text as base64 of its gzip file; the same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def asset(*names: str) -> markupsafe.Markup:
    """Files, one after the other, that become part of the page as they are."""
    folder = importlib.resources.files("cluster_jax.evaluation") / "templates"
    return markupsafe.Markup("".join((folder / name).read_text("utf-8") for name in names))
