"""The service of the guide answers several clients, also after uploads that are no photos."""

import concurrent.futures
import pathlib
import re
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from cluster_jax import ImageClusterer
from tests import toy

GUIDE = pathlib.Path(__file__).parent.parent / "experiments" / "tutorials" / "guide.md"
SMALL = {"data.image_size": 32, "augment.size": 32, "eval.reduce.method": "pca"}


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
    (code,) = re.findall(r"```python\n([^`]*FastAPI[^`]*)```", GUIDE.read_text())
    namespace: dict = {}
    exec(compile(code, "service.py", "exec"), namespace)
    client = client_of(namespace["app"])

    def ask(data):
        return client.post("/group", content=data)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [_file(pixels, format="PNG") for pixels in photos]))
    assert {answer.status_code for answer in answers} == {200}
    groups = [answer.json()["group"] for answer in answers]
    assert np.mean(groups == model.labels_) > 0.9
    whole = _file(photos[0], format="JPEG")
    frames = [Image.fromarray(pixels) for pixels in photos[:2]]
    animated = BytesIO()
    frames[0].save(animated, format="GIF", save_all=True, append_images=frames[1:])
    assert ask(animated.getvalue()).status_code == 200
    assert ask(_file(photos[0, ..., 0], format="PNG")).status_code == 200
    for broken in (b"", b"no photo", whole[: len(whole) // 3]):
        answer = ask(broken)
        assert answer.status_code == 422
        assert "cannot be read" in answer.json()["detail"]
    assert ask(whole).status_code == 200
