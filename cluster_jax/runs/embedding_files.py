"""The embeddings that a training has made, as files of its workdir: which are missing.

`store` has what a run keeps of them for all later states.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.encoding.embed import LABELS, Batch, Parts
from cluster_jax.runs import claims, start
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import RunConfig

# Embeddings of a run, each `{"backbone": [n, d], ...}`, by the name of their file in a workdir:
# `workdir.TRAIN_EMBEDDING` and, if there are any, `TEST_EMBEDDING` and `INITIAL_EMBEDDING`.
Embeddings = Mapping[str, dict[str, np.ndarray]]


class Files(NamedTuple):
    """The embeddings of a run in its workdir, and which of them are missing.

    Attributes:
        workdir: the folder.
        images: description of the images, see `claims.describe_images`.
        recorded: content of `images.json`; {} if no earlier call has written it.
        made_from: fingerprint of config and images.
        steps: name of the file of an embedding -> number of training steps of its network. For the
            file of the encoder it is the text `STEPS:FEATURES`, because `eval.features` may change
            after the training.
        missing: the names in `steps` of which no file exists, or one after other training steps.
    """

    workdir: epath.Path
    images: Mapping[str, Any]
    recorded: Mapping[str, Any]
    made_from: str
    steps: Mapping[str, int | str]
    missing: tuple[str, ...]


def find(workdir: epath.Path, inputs: Inputs[RunConfig], steps: Mapping[str, int | str]) -> Files:
    """Returns which embeddings of a run its workdir has.

    Args:
        workdir: folder of the run; need not exist.
        inputs: the config and the images of the run.
        steps: the files that the run needs, see `Files`.

    Raises:
        InputError: the workdir has embeddings of other images or of another config, or a file is
            damaged (`DamagedFile`).
    """
    images = claims.describe_images(inputs.dataset)
    made_from = claims.made_from(inputs.config.values, images)
    recorded = claims.check_images(workdir, images)
    there = (_has_embedding(workdir / name, made_from, by) for name, by in steps.items())
    missing = tuple(name for name, is_there in zip(steps, there, strict=True) if not is_there)
    return Files(workdir, images, recorded, made_from, steps, missing)


def begin(files: Files, inputs: Inputs[RunConfig]) -> None:
    """Writes `config.json` and `images.json`, in the first process only.

    Parts of embeddings that are complete are removed. What an earlier call has recorded of the file
    of a method stays.

    Args:
        files: the embeddings in the workdir, which exists.
        inputs: the config and the images of the run.
    """
    if jax.process_index() != 0:
        return
    start.record(files.workdir, inputs, {**files.recorded, **files.images})
    for name in files.steps.keys() - set(files.missing):  # left by a kill after the last part
        Parts(files.workdir / name, "").remove()


def write(
    files: Files,
    name: str,
    checksum: str,
    make: Callable[[Parts], Batch],
    labels: NDArray | None,
) -> None:
    """Computes and writes a missing embedding; parts of it are saved so that it resumes.

    Args:
        files: embeddings of the run.
        name: name of the file, a key of `files.steps`.
        checksum: checksum of the network, by which parts of an earlier call are known again.
        make: embeds the images; its argument is the location for parts of the embedding.
        labels: int32 `[n]`, of all images, also unreadable ones; None: there are none. They stay
            as they are now: no command reads them.
    """
    parts = Parts(files.workdir / name, f"{origin(files, name)}:{checksum}")
    beside = {} if labels is None else {LABELS: labels.astype(np.int32)}
    parts.finish({**make(parts), **beside}, origin(files, name))


def origin(files: Files, name: str) -> str:
    """Returns the fingerprint in the file of an embedding or of the encoder, by its name."""
    return f"{files.made_from}:{files.steps[name]}"


def _has_embedding(file: epath.Path, fingerprint: str, step: int | str) -> bool:
    """Returns whether a file was written by this run, from its network after `step` training steps.

    The file is an embedding or the encoder. The result is False if the file does not exist, or was
    written after another number of steps.

    Args:
        file: path of the embedding or of the encoder; need not exist.
        fingerprint: fingerprint of the run's config and images.
        step: number of training steps of the network; for the encoder the text `STEPS:FEATURES`,
            such as `1000:backbone`.

    Raises:
        InputError: the file was written by another run, or is damaged (`DamagedFile`).
    """
    try:
        made_by, _, made_at = io.read_fingerprint(file).partition(":")
    except FileNotFoundError:
        return False
    if made_by != fingerprint:
        raise InputError(
            f"{file} must be the embedding of this run; got that of another config or of other "
            "images: choose another folder"
        )
    return made_at == str(step)


def read(workdir: epath.Path) -> Embeddings:
    """Returns the embeddings in a workdir by the names of their files, without missing files.

    Rows that stand in for unreadable files are among them, see `embed.UNREADABLE`, and so are
    labels, see `embed.LABELS`; `embed.readable_rows` leaves both out.

    Raises:
        DamagedFile: a file is not what was written.
    """
    names = (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING, workdirs.INITIAL_EMBEDDING)
    there = buckets.names(workdir)
    return {n: io.read_arrays(workdir / n) for n in names if n in there}
