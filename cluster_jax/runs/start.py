"""What a run says and writes of its images when it begins."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath

from cluster_jax.core import checks, io
from cluster_jax.core.devices import say
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.runs import config_paths
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training import build
from cluster_jax.training.build import BuiltRun, Inputs
from cluster_jax.training.config import AnyConfig, own_files


def print_start(
    inputs: Inputs[AnyConfig], workdir: epath.Path, trainings: Sequence[BuiltRun] = ()
) -> None:
    """Prints the images, the work, the devices and the folder of a run, and notes on the files.

    Args:
        inputs: the config and the images.
        workdir: folder of the run.
        trainings: all stages of a training; empty: a run of photos.
    """
    config, dataset, _ = inputs
    noun = "row" if dataset.shown is None else "image"
    name = checks.one_line(name_of_files(config.values) or dataset.name)
    if not trainings:
        work = f"compared by a network trained on other photos ({config.network.name}),"
    else:
        lengths = " + ".join(f"{stage.training.total_steps:,}" for stage in trainings)
        lengths += " step" if lengths == "1" else " steps"
        work = f"{lengths} of {counted(trainings[-1].config.train.batch_size, noun)}"
    say(
        f"{counted(dataset.size, noun)} of {name}, {work} on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}\nworkdir {workdir}"
    )
    print_skipped(dataset.skipped)
    for note in dataset.notes:
        say(checks.sentence(note))


def name_of_files(config: Mapping[str, Any]) -> str | None:
    """Returns the name of the user's own folder or file of images or features; None for other sets.

    `config` is the whole config, as JSON values.
    """
    data = config["data"]
    if data["dir"] is None or data["name"] not in ("folder", "arrays", "features"):
        return None
    if data["name"] == "folder":
        return image_files.root(data["dir"]).resolve().name
    return epath.Path(str(config_paths.normalized(data["dir"]))).resolve().name


def record(
    workdir: epath.Path, inputs: Inputs[AnyConfig], images: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes `config.json` and `images.json` into a locked workdir; returns the latter's content.

    Args:
        workdir: folder of the run.
        inputs: the config and the images of the run.
        images: further values of `images.json`, such as those that an earlier call has recorded.
    """
    config = inputs.config
    io.write_json(workdir / workdirs.CONFIG, config.values)
    described = {
        "config": config.name,
        "code": own_files(config),
        **images,
        **build.describe_images(inputs),
        "workdir": os.path.abspath(workdir),
    }
    io.write_json(workdir / workdirs.IMAGES, described)
    return described


def warn_of_an_edit(config: AnyConfig, workdir: epath.Path) -> None:
    """Warns if the file of a module of one's own has changed since the run began."""
    files = own_files(config)
    file = workdir / workdirs.IMAGES
    if not files or not file.exists():
        return
    begun = workdirs.read_values(file).get("code", files)
    changed = ", ".join(name for name in files if begun.get(name) != files[name])
    if changed:
        checks.warn(
            f"the code of {changed} has changed since the run in {workdir} began, and what is done "
            "stays as it was: to train with it as it is now, choose another --workdir"
        )


def print_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Prints the number of files that cannot be read, if there are any.

    Folders, whose paths end on "/", do not count: a note of the data set names them.
    """
    if files := sum(not name.endswith("/") for name, _ in skipped):
        say(f"{counted(files, 'file')} cannot be read; see the report")
