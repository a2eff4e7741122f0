"""Files made to do harm: nothing is executed, unpacked without limit, or written outside."""

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from cluster_jax import estimators
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, tables
from cluster_jax.runs import begin as pipeline
from tests import toy


class _Pwn:
    """Touches a file where it is unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


@pytest.fixture
def pwned(tmp_path):
    """The folder that would be made."""
    path = tmp_path / "pwned"
    yield path
    assert not path.exists()


def _objects(path):
    array = np.empty(2, object)
    array[:] = [_Pwn(path), 1]
    return array


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickled_objects(tmp_path, pwned, suffix):
    file = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(file, _objects(pwned), allow_pickle=True)
    else:
        np.savez(file, images=_objects(pwned), features=_objects(pwned))
    readers = (
        lambda: tables.read_arrays(str(file), ("images", "features")),
        lambda: tables.read_rows(str(file), "features" if suffix == ".npz" else None),
        lambda: datasets.load_new(str(file), toy.DATA, (8, 8, 1)),
    )
    for read in readers:
        with pytest.raises(ValueError, match=r"pickle|Python objects"):
            read()


def test_pickles_in_place_of_a_workdirs_files(tmp_path, pwned):
    for name in ("config.json", "embedding.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(_Pwn(pwned)))
    with pytest.raises(InputError, match="is damaged"):
        estimators.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    io.write_arrays(tmp_path / "run-1.npz", {"about": _objects(pwned)})
    with pytest.raises(InputError, match="its arrays cannot be read"):
        estimators.load(tmp_path)


@pytest.mark.usefixtures("one_device", "compiled_once")
def test_markup_and_paths_in_every_text(tmp_path, monkeypatch):
    """In the report they are text; in the folder of the run they make no path."""
    monkeypatch.chdir(tmp_path)
    script = "<script>alert(1)</script>"
    images, labels = toy.images()
    for image, label in zip(images, labels, strict=True):
        photos = tmp_path / "photos" / f"<b>{label}&"
        photos.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(photos / f"{len(list(photos.iterdir()))}<i>x.png")
    config = toy.config("x", note=script)
    config.data.name, config.data.dir = "folder", str(tmp_path / "photos")
    before = {p.relative_to(tmp_path) for p in tmp_path.rglob("*")}
    pipeline.run_pipeline(config, None, "../../" + script)
    (workdir,) = (tmp_path / "runs").iterdir()
    after = {p.relative_to(tmp_path) for p in tmp_path.rglob("*")}
    assert all(path.parts[0] == "runs" for path in after - before)
    assert not list(tmp_path.parent.glob("*script*"))
    report = (workdir / "report.html").read_text()
    for text in (script, "<i>x.png", "<b>0&"):
        assert text not in report
    table = (workdir / "assignments.csv").read_text()
    assert "<i>x.png" in table  # names are told as they are
