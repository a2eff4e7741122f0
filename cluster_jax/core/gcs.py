"""gcsfs by the JSON API, which waits for a busy server; needs the extra `gcs`."""

import asyncio
import logging
import re
import time
import urllib.parse
from typing import Any

import gcsfs.core
from fsspec import asyn
from gcsfs import retry

from cluster_jax.core import buckets
from cluster_jax.core.logs import logger

# Seconds between two lines about a server that is waited for.
_SILENT = 60.0

# gcsfs prints the traceback of an error that it raises as well.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


class Files(gcsfs.core.GCSFileSystem):
    """The files of Google's buckets, to which all threads may go at once.

    What it has listed it does not remember, because other processes write as well. Its errors have
    an attribute `where`, the path that they are about.
    """

    def __init__(self, *arguments: Any, **options: Any):
        options["use_listings_cache"] = False
        super().__init__(*arguments, **options)
        self._told = -_SILENT

    async def _call(self, *arguments: Any, **options: Any) -> Any:
        end = time.monotonic() + buckets.PATIENCE
        while True:
            try:
                return await super()._call(*arguments, **options)
            except Exception as error:
                error.where = _where(*arguments[1:])  # type: ignore[attr-defined]
                wait = retry.is_retriable(error) or buckets.status(error) in buckets.BUSY
                now = time.monotonic()
                if not wait or now > end:
                    raise
                if now - self._told > _SILENT:
                    self._told, told = now, buckets.cause(error) or [str(error)]
                    logger.info("%s: trying again for %.0f s", told[0], end - now)
                await asyncio.sleep(1.0)  # gcsfs itself has waited half a minute before.

    call = asyn.sync_wrapper(_call)  # that of gcsfs is bound to its own


def _where(path: str = "", *names: str) -> str:
    """Returns the path in a bucket that a request is about."""
    match = re.search(r"\bb/([^/?]+)(?:/o)?/?([^?]*)", path)
    bucket, name = match.groups() if match else ("", "")
    if "{}" in path:
        bucket, name = names[0], "/".join(names[1:2])
    return f"gs://{bucket}/{urllib.parse.unquote(name)}".rstrip("/")
