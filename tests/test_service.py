"""The service of the guide answers several clients, also after uploads that are no photos."""

import asyncio
import concurrent.futures
import pathlib
import re
import sys
import types
import warnings
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from cluster_jax import ImageClusterer
from cluster_jax.core import logs
from tests import toy

GUIDE = pathlib.Path(__file__).parent.parent / "experiments" / "guide" / "service.md"
SMALL = {"data.image_size": 32, "eval.reduce": "pca"}


class Refused(Exception):
    """Stands in for FastAPI's `HTTPException`."""

    def __init__(self, status, detail):
        self.status, self.detail = status, detail


def _file(pixels, form="PNG"):
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


@pytest.mark.usefixtures("one_device", "shallow_lite")
def test_the_service_of_the_guide(tmp_path, monkeypatch):
    """Its code as it stands; stand-ins for FastAPI, of which only the transport is missing."""
    web = {
        "FastAPI": lambda: types.SimpleNamespace(put=lambda path: lambda function: function),
        "HTTPException": Refused, "Request": object, "run_in_threadpool": asyncio.to_thread,
    }  # fmt: skip
    for name in ("fastapi", "starlette", "starlette.concurrency"):
        module = types.ModuleType(name)
        vars(module).update(web)
        monkeypatch.setitem(sys.modules, name, module)
    photos = toy.images(24, channels=3)[0]
    model = ImageClusterer(overrides=SMALL, verbose=False).fit(photos)
    model.save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # afterwards as before
    (code,) = re.findall(r"```python\n([^`]*FastAPI[^`]*)```", GUIDE.read_text())
    service: dict = {}
    exec(compile(code, "service.py", "exec"), service)

    def ask(data):
        async def stream():
            yield data[:100]
            yield data[100:]

        request = types.SimpleNamespace(stream=stream)
        return asyncio.run(service["group"]("my photo.jpg", request))

    def shared():
        return (
            logs.logger.level,
            logs.logger.propagate,
            logs.logger.handlers[:],
            warnings.filters[:],
        )

    before = shared()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, map(_file, photos)))
    assert shared() == before, "concurrent calls leave the logger and the filters as they were"
    assert np.mean([answer["group"] for answer in answers] == model.labels_) > 0.9
    whole = _file(photos[0], "JPEG")
    for data, status, said in (
        (b"", 422, "my photo.jpg: images in X must be readable"),
        (whole[: len(whole) // 3], 422, "my photo.jpg: images in X must be readable"),
        (_file(np.zeros((6_000, 15_000), bool)), 413, "must have at most 50,000,000 pixels"),
        (b"x" * 20_000_001, 413, "must have at most 20,000,000 bytes"),
    ):
        with pytest.raises(Refused) as refused:
            ask(data)
        assert refused.value.status == status
        assert said in refused.value.detail
    assert ask(whole)["group"] in model.labels_, "the service goes on"
