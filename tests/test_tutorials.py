"""The tutorials run from top to bottom, with a training of a few steps in place of a whole one."""

import os
import pathlib

import pytest

TUTORIALS = pathlib.Path(__file__).resolve().parent.parent / "experiments" / "tutorials"
FILES = sorted(f for f in TUTORIALS.glob("*.py") if f.stem != "__init__")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
@pytest.mark.usefixtures("one_device", "traced_once")
def test_tutorial(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = file.read_text()
    whole = '{"train.duration": "600 steps"}'
    short = str(
        {
            "train.duration": "12 steps",
            "optimizer.warmup": "3 steps",
            "eval.reduce.method": "pca",  # UMAP compiles for 15 seconds
            "eval.linear_probe.epochs": 2,
        }
    )
    assert source.count(whole) == 1
    names = {"__name__": "__main__"}
    exec(compile(source.replace(whole, short), file, "exec"), names)
    printed = capsys.readouterr().out
    assert f"Found {names['clusterer'].n_clusters_} clusters" in printed
    assert "k-means with k = 10" in printed
    report = pathlib.Path("runs/tutorial/report.html")
    assert report.stat().st_size > 1e5
    assert len(names["restored"].labels_) == len(names["train_images"])
    # The second fit only clustered anew: one training, of the steps asked for.
    assert os.listdir("runs/tutorial/run/checkpoints") == ["12"]
