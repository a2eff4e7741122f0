"""The service of the guide answers several clients, also after uploads that are no photos."""

import concurrent.futures
import pathlib
import re
import tempfile
import time
from io import BytesIO

import numpy as np
import pytest
from mypy import api
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cluster_jax import ImageClusterer
from tests import toy

GUIDE = pathlib.Path(__file__).parent.parent / "experiments" / "tutorials" / "guide.md"
SMALL = {"data.image_size": 32, "eval.reduce.method": "pca"}


def _file(pixels, **options):
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, **options)
    return stream.getvalue()


@pytest.mark.usefixtures("one_device")
def test_the_service_of_the_guide(tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    photos = toy.images(24, channels=3)[0]
    model = ImageClusterer(overrides=SMALL, verbose=False).fit(photos)
    model.save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # afterwards as before
    (code,) = re.findall(r"```python\n([^`]*FastAPI[^`]*)```", GUIDE.read_text())
    namespace: dict = {}
    exec(compile(code, "service.py", "exec"), namespace)
    client = client_of(namespace["app"])

    def ask(data, name="my photo.jpg"):
        return client.put(f"/group/{name}", content=data)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [_file(pixels, format="PNG") for pixels in photos]))
    assert {answer.status_code for answer in answers} == {200}
    groups = [answer.json()["group"] for answer in answers]
    assert np.mean(groups == model.labels_) > 0.9
    whole = _file(photos[0], format="JPEG")
    text = PngInfo()
    text.add_text("comment", "x" * 100_000_000, zip=True)
    bomb = _file(photos[0], format="PNG", pnginfo=text)  # of 100 kB; Pillow raises a ValueError
    assert ask(bomb).status_code in (200, 422)  # It is a photo.
    for broken in (b"", b"no photo", whole[: len(whole) // 3]):
        answer = ask(broken)
        assert answer.status_code == 422
        assert "my photo.jpg, which cannot be read (" in answer.json()["detail"]
        assert tempfile.gettempdir() not in answer.json()["detail"]
    for wide in (6_000, 15_000):  # Pillow's own limit is between them.
        answer = ask(_file(np.zeros((wide, 15_000), bool), format="PNG"))
        assert answer.status_code == 413
        assert answer.json()["detail"] == "my photo.jpg must have at most 50,000,000 pixels"
    decoding, most, locate = [], [0], model.__class__.locate

    def counted(*arguments):
        decoding.append(1)
        most[0] = max(most[0], len(decoding))
        time.sleep(0.05)
        try:
            return locate(*arguments)
        finally:
            decoding.pop()

    monkeypatch.setattr(ImageClusterer, "locate", counted)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, [whole] * 12))
    assert {answer.status_code for answer in answers} == {200}
    assert most == [2], "no more are decoded at once"
    answer = ask(b"x" * 20_000_001)
    assert answer.status_code == 413
    assert answer.json()["detail"] == "my photo.jpg must have at most 20,000,000 bytes"
    assert ask(whole, "../run").status_code in (404, 405)
    assert ask(whole).status_code == 200


@pytest.mark.slow
def test_a_type_checker_accepts_it(tmp_path):
    (code,) = re.findall(r"```python\n([^`]*FastAPI[^`]*)```", GUIDE.read_text())
    (tmp_path / "service.py").write_text(code)
    said, errors, status = api.run([str(tmp_path / "service.py"), "--check-untyped-defs"])
    assert status == 0, said + errors
