"""The page of real sets: clusters of the features of finished runs, differences, and curves."""

import re

import pytest

from cluster_jax.clustering.reduce import reduce
from experiments import registry, run
from experiments.real import __main__ as real
from experiments.real import curves
from experiments.tables import Lines
from tests import toy

CONFIG = """
from tests import toy


def get_config():
    return toy.config("toy.npz")
"""
TABLES = """
tables:
  usps:
    title: Bars
    metrics: ACC clusters
    rows:
    - [SimCLR, {config: CONFIG, changes: {data.dir: toy.npz}}, kmeans]
    - - with NRCC
      - {config: CONFIG, changes: {data.dir: toy.npz, optimizer.learning_rate: 0.01}}
      - kmeans
"""


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.slow
def test_the_page_is_of_the_folders_of_the_runs(tmp_path, monkeypatch):
    """Two rows of two seeds, of separable images, whose features have four clusters."""
    toy.file(tmp_path)
    file, config = tmp_path / "bars.yaml", tmp_path / "bars.py"
    config.write_text(CONFIG)
    file.write_text(TABLES.replace("CONFIG", str(config)))
    results, runs = tmp_path / "results.jsonl", tmp_path / "runs"
    flags = [f"--results={results}", f"--runs={runs}", "--seeds", "0", "1"]
    assert run.main([str(file), *flags, f"--data={tmp_path}"]) == 0

    table = registry.tables(str(file))["usps"]
    monkeypatch.setattr(real, "NUMBERS", ("usps",))
    monkeypatch.setattr(registry, "find", lambda group, number: table)
    monkeypatch.setattr(curves, "STEPS", (2, 4))
    # UMAP takes a minute to compile.
    monkeypatch.setattr(real, "reduce", lambda x, **_: reduce(x, method="pca"))
    real.main([*flags, f"--out={tmp_path}"])
    text = (tmp_path / "tables.md").read_text()
    rows = re.findall(r"^\| SimCLR \| ([\d.]+) ± .* \| ([\d.]+) ± .* \| (.*) \|$", text, re.M)
    assert rows == [("100.0", "100.0", "4, 4")]
    assert re.search(r"^\| with NRCC, above SimCLR \| 2 \| [+-]\d", text, re.M)
    found = curves.read(tmp_path / "curves.jsonl")
    assert {name: [point["step"] for point in points] for name, points in found.items()} == {
        "SimCLR": [2, 4], "with NRCC": [2, 4],
    }  # fmt: skip
    assert (tmp_path / "curves.svg").read_text().count("<polyline") == 4

    # What is known is not computed again, nor is a folder needed.
    monkeypatch.setattr(real, "cluster", None)
    real.main([f"--results={results}", "--runs=gone", "--seeds", "0", "1", f"--out={tmp_path}"])
    assert (tmp_path / "tables.md").read_text() == text


def test_a_term_is_compared_with_its_whole_method_by_seeds_that_both_have(tmp_path):
    def trained(number, row, seed, acc):
        metrics = {"kmeans": {"acc": acc}, "gridshift": {"acc": acc / 2}}
        return real.Trained(number, row, seed, None, {"metrics": metrics})

    whole = [trained("usps", "NCC", seed, acc) for seed, acc in ((0, 0.5), (1, 0.7), (2, 0.9))]
    less = [trained("usps_terms", "NCC without ProtoCL", seed, 0.4) for seed in (0, 1)]
    alone = [trained("usps_terms", "CueCo without centroids", 0, 0.4)]
    text = real.paired("usps_terms", whole + less + alone, Lines(tmp_path / "found.jsonl", "set"))
    *_, row = text.splitlines()
    assert row == "| NCC without ProtoCL, above NCC | 2 | -20.0 ± 10.0 |  | -10.0 ± 5.0 |  |"
    assert real.difference([1.5]) == "+1.5"
