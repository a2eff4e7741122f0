"""`cluster-jax embed` from the command line: the file it writes, and its errors."""

import numpy as np
import pytest

from cluster_jax.cli import embed
from tests import toy

pytestmark = [
    pytest.mark.usefixtures("one_device", "shallow_lite0"),
]


def run(*arguments):
    """The exit code of a failed command."""
    with pytest.raises(SystemExit) as stop:
        embed.main(arguments)
    return stop.value.code


def test_features_from_the_shell(tmp_path, capsys):
    source, out = toy.file(tmp_path, 20, channels=3), tmp_path / "x.npz"
    flags = ["--config=images", "--config.data.name=arrays", f"--config.data.dir={source}"]
    flags += ["--config.data.image_size=32", "--config.augment.size=32", f"--out={out}"]
    embed.main([*flags, "--config.eval.batch_size=16", "--views=1"])
    assert capsys.readouterr().out == f"features     20 x 2 x 1,280 in {out}\n"
    assert np.load(out)["features"].shape == (20, 2, 1280)
    assert run(*flags) == 2
    assert "--out must be a new file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "the following arguments are required: --out"),
        (("--out=x.npy",), "--out must be the path of an .npz file to write; got x.npy"),
        (("--out=x.npz", "--views=-1"), "--views must be at least 0; got -1"),
        (("--out=x.npz", "--config=nrcc_digits"), "must be those of a pretrained network"),
        (("--out=x.npz", "--workdir=w"), "Unknown command line flag 'workdir'"),
    ],
)
def test_one_sentence_for_bad_flags(flags, message, capsys):
    flags = flags if any("--config" in flag for flag in flags) else ("--config=images", *flags)
    assert run(*flags) == 2
    assert message in capsys.readouterr().err
