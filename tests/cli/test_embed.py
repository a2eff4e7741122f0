"""`cluster-jax embed` from the command line: the file it writes, and its errors."""

import json

import numpy as np
import pytest

from cluster_jax.cli import embed
from tests import toy
from tests.cli.test_output import check_keys
from tests.rows import every_row

pytestmark = [pytest.mark.usefixtures("one_device", "shallow_lite")]


def run(*arguments):
    """The exit code of a failed command."""
    with pytest.raises(SystemExit) as stop:
        embed.main(arguments)
    return stop.value.code


def test_features_from_the_shell(tmp_path, capsys):
    source, out = toy.file(tmp_path, 20, channels=3), tmp_path / "x.npz"
    flags = ["--config=images", "--config.data.name=arrays", f"--config.data.dir={source}"]
    flags += ["--config.data.image_size=32", f"--out={out}"]
    embed.main([*flags, "--config.eval.batch_size=16"])
    assert capsys.readouterr().out == f"features     20 x 1,280 in {out}\n"
    assert np.load(out)["features"].shape == (20, 1280)
    assert run(*flags, "--config.data.limit=9") == 2
    assert "--out must be new, or have features of these images; got" in capsys.readouterr().err

    shards = f"--out={tmp_path}/shards"
    embed.main([*flags, shards, "--config.eval.batch_size=16", "--json"])
    told = json.loads(capsys.readouterr().out)
    check_keys("embed", told)
    assert told["shape"] == [20, 1280]
    rows = np.load(tmp_path / "shards" / "features-00000-of-00001.npy")
    np.testing.assert_allclose(rows, np.load(out)["features"], atol=1e-5)
    labels = np.load(tmp_path / "shards" / "rows-00000-of-00001.npz")["labels"]
    np.testing.assert_array_equal(labels, np.load(out)["labels"])
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "shards").iterdir()}
    embed.main([*flags, shards, "--config.eval.batch_size=16"])
    assert capsys.readouterr().out == f"features     20 x 1,280 in {tmp_path}/shards\n"
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "shards").iterdir()} == before


def test_an_encoder_by_name(tmp_path, capsys):
    source, out = toy.file(tmp_path, 20, channels=3), tmp_path / "x.npz"
    flags = ["--config=images", "--config.data.name=arrays", f"--config.data.dir={source}"]
    flags += ["--config.data.image_size=32"]
    embed.main([*flags, "--encoder=lite2", f"--out={tmp_path}/named.npz"])
    embed.main([*flags, f"--out={out}"])
    rows = np.load(tmp_path / "named.npz")["features"]
    np.testing.assert_array_equal(rows, np.load(out)["features"])
    capsys.readouterr()
    assert run(*flags, "--encoder=lite", f"--out={tmp_path}/y.npz") == 2
    assert "--encoder must be 'lite2', a .safetensors file" in capsys.readouterr().err


def test_a_folder_with_parts_of_more_processes(tmp_path, capsys):
    out, source = tmp_path / "out", toy.file(tmp_path, 20, channels=3)
    out.mkdir()
    (out / "rows-00000-of-00004.npz").touch()
    flags = ["--config=images", "--config.data.name=arrays", f"--config.data.dir={source}"]
    assert run(*flags, f"--out={out}") == 2
    assert "with rows-00000-of-00004.npz" in capsys.readouterr().err


@every_row(
    ("flags", "message"),
    [
        ((), "the following arguments are required: --out"),
        (
            ("--out=x.npy",),
            "--out must be the path of an .npz file or of a folder to write; got x.npy",
        ),
        (("--out=no/x.npz",), "--out must be a file in a folder that exists; got no/x.npz"),
        (("--out=x.npz", "--config=nrcc_digits"), "must be those of a pretrained network"),
        (("--out=x.npz", "--workdir=w"), "there is no flag --workdir"),
    ],
)
def test_one_sentence_for_bad_flags(flags, message, capsys):
    flags = flags if any("--config" in flag for flag in flags) else ("--config=images", *flags)
    assert run(*flags) == 2
    assert message in capsys.readouterr().err
