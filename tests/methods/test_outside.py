"""A method in a file of one's own, outside of the package: that of the tutorial."""

import sys

import jax
import pytest

from cluster_jax import load
from cluster_jax.cli import train
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.methods import base, encoders
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from cluster_jax.training.step import make_step
from experiments.tutorials import __main__ as tutorials
from tests import toy
from tests.methods import cases
from tests.rows import every_row

KEYS = {"weight": 1.0, "t": 2.0}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The tutorial's cells up to its config, as the file that its page describes."""
    cells = [cell.source for cell in tutorials.read("method") if cell.is_code][:2]
    path = tmp_path / "uniformity.py"
    path.write_text("\n\n".join(cells))
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("uniformity", None)


@pytest.mark.usefixtures("one_device", "traced_once")
@pytest.mark.filterwarnings("default:the code of")
def test_it_trains_and_predicts(file, tmp_path, capsys):
    small = {
        "data.limit": 200, "train.duration": "2 steps", "train.batch_size": 16,
        "optimizer.warmup": "1 step", "network.name": "mlp", "nrcc.weight": 0.0,
        "eval.reduce": "pca", "eval.linear_probe.epochs": 2, "method.t": 3.0,
    }  # fmt: skip
    flags = [f"--config.{key}={value}" for key, value in small.items()]
    flags += [f"--config={file}", f"--workdir={tmp_path / 'run'}"]
    for _ in range(2):
        train.main(flags)
    assert "has changed" not in capsys.readouterr().err
    file.write_text(file.read_text() + "\n")
    train.main(flags)
    assert "the code of uniformity has changed since" in capsys.readouterr().err
    images = toy.images(3)[0]
    model = load(tmp_path / "run")
    assert model.predict(images).shape == (3,)
    sys.modules.pop("uniformity")
    file.rename(tmp_path / "elsewhere.py")
    with pytest.raises(InputError, match="PYTHONPATH=FOLDER has the folder of uniformity"):
        load(tmp_path / "run").predict(images)


def test_views_of_a_size_that_the_network_does_not_take(tmp_path, monkeypatch):
    """`encoders.small_crops` refuses them; here a method makes crops without it."""
    config = cases.use(toy.config(toy.file(tmp_path)), "swav")
    config.method.small.size = 6
    crops = lambda context, small: (context.augment.small(small),) * small.count  # noqa: E731
    monkeypatch.setattr(encoders, "small_crops", crops)
    monkeypatch.setattr(build, "try_step", lambda *arguments: None)
    run = toy.built(config)
    step, batch = make_step(run.method, run.optimizer, run.mesh), cases.draw(run.dataset, None, 0)
    with pytest.raises(InputError, match=r"the size of views a and b, 8 x 8, .*; got 6 x 6 "):
        jax.eval_shape(step, build.abstract_state(run), batch, run.dataset.images)


@every_row(
    ("name", "message"),
    [
        ("json", "which has no Config"),
        ("no.such.module", "No module named 'no'"),
        ("../evil", "a function make; got '../evil'"),
        (3, "a function make; got 3"),
    ],
)
def test_other_modules_are_refused(name, message):
    with pytest.raises(InputError, match=r"method.name must be one of 'barlow', ") as error:
        base.parse(name, KEYS)
    assert message in str(error.value)


def test_a_config_gives_the_name_of_its_own_file(tmp_path):
    """By `__name__`; a message has the name of the file as it was typed."""
    file = tmp_path / "my_vicreg.py"
    file.write_text("def get_config():\n    return __name__\n")
    with pytest.raises(InputError, match=r"folder of my_vicreg.py\); got 'my_vicreg': No module"):
        base.parse(load_config(str(file)), KEYS)


def test_another_name_alone_names_the_config_to_start_from(tmp_path):
    values = config_json(toy.config(toy.file(tmp_path)))
    values["method"]["name"] = "byol"
    with pytest.raises(InputError) as error:
        parse_config(values)
    assert str(error.value) == (
        "method must have the keys of byol (decay, final_decay), as --config=byol_digits has them; "
        "got positive_in_denominator, temperature"
    )
