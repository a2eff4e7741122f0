"""Pages of HTML from the templates of this package, each one file that opens offline."""

import base64
import functools
import gzip
from typing import Any

import jinja2

from cluster_jax.core.names import counted, files_and_folders
from cluster_jax.report import summary, thumbnails


def fill(name: str, **values: Any) -> str:
    """Returns a page of HTML from a template; values are escaped unless they are markup.

    Args:
        name: name of a file in the folder `templates`, such as "report.html".
        **values: all variables of the template but `summary`, the module, which is always there.

    Raises:
        jinja2.UndefinedError: a variable of the template is missing.
    """
    return _environment().get_template(name).render(values)


def as_html(text: str) -> str:
    """Returns text as pages have it, in which HTML's own characters are escaped."""
    return _environment().from_string("{{ text }}").render(text=text)


@functools.cache
def _environment() -> jinja2.Environment:
    """Returns the settings and the filters of all templates."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cluster_jax.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["summary"] = summary
    named = {"count": counted, "files_and_folders": files_and_folders}
    environment.filters |= {**named, "number": summary.format_value, "uri": thumbnails.uri}
    return environment


def compressed(text: str) -> str:
    """Returns the base64 of a text's gzip file; the same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
