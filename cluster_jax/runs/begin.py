"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import contextlib
import shlex
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from cluster_jax.clustering import custom
from cluster_jax.core import buckets, checks, devices, hosts, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.devices import say
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import own
from cluster_jax.evaluation.options import FINDERS
from cluster_jax.report import summary
from cluster_jax.runs import (
    changes,
    claims,
    config_paths,
    embedding_files,
    finish,
    page,
    photos,
    start,
    trainings,
    update,
)
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.next_state import Now
from cluster_jax.runs.run import Run
from cluster_jax.training.config import AnyConfig, PhotosConfig, RunConfig, parse_config


def run_pipeline(
    config: ConfigDict | Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    name: str = "run",
    dataset: Dataset | None = None,
    report: bool = True,
) -> dict[str, Any]:
    """Trains, embeds, clusters and reports; skips what an earlier call has done.

    A config without the section `train` trains nothing. If the config of a finished run differs
    only in keys on which embeddings do not depend, such as the section `eval` (see
    `claims.training_part`), its images are clustered again. Clusters of which most images are the
    same keep their numbers, names and corrections; an undo goes back to the clusters before.

    Args:
        config: see `configs/base.py`.
        workdir: folder of the run, of a training also a path in a bucket; None: `runs/NAME-HASH` of
            name and config.
        name: name of the config, for the folder and the title of the report.
        dataset: the images if they are loaded already; None: load `config.data`.
        report: whether to write `report.html`; the command `report` writes it later.

    Returns:
        `Run.results`, and the config under the key "config".

    Raises:
        InputError: the config, the data or the workdir is invalid, or a file in the workdir is
            damaged (`DamagedFile`). Most errors come before anything is written; that of a
            user-defined clusterer comes after embedding.
        NotFinite, Collapsed, Preempted, OSError: see `training.loop.train`.
    """
    try:
        run = _run(parse_config(config, name), workdir, dataset, report)
        return {**run.results, "config": run.config}
    except io.DamagedFile as error:
        finished = workdirs.about(epath.Path(error.path).parent)
        # The command of an updated run would embed the photos of now, not those of the run.
        if error.otherwise or (finished is not None and finished["updates"]):
            raise
        raise io.DamagedFile(error.path, error.reason, workdirs.MADE_AGAIN) from error


def _run(
    parsed: AnyConfig, workdir: epath.PathLike | None, dataset: Dataset | None, report: bool
) -> Run:
    """Returns the run of a config, after the steps that no earlier call has done.

    For the other arguments see `run_pipeline`.
    """
    hosts.wait_for_all("started")
    workdir = buckets.path(workdir or claims.default_workdir(parsed.values, parsed.name))
    if not isinstance(parsed, RunConfig):  # Trainings alone write into a bucket.
        checks.local(workdir)
    config = parse_config(config_paths.with_absolute_paths(parsed.values), parsed.name)
    finished = claims.claim(workdir, config.values)
    if jax.process_index() == 0:
        start.warn_of_an_edit(config, workdir)
    custom.check("eval.method", config.eval.method, FINDERS)
    own.check(config.eval.metrics)
    replaces = "" if finished is None else _replaced_results(config, finished, workdir)
    if isinstance(config, PhotosConfig):
        return _photos(config, workdir, dataset, finished, replaces, report)
    return _training(config, workdir, dataset, finished, replaces, report)


def _replaced_results(config: AnyConfig, finished: Mapping[str, Any], workdir: epath.Path) -> str:
    """Returns a sentence about the results of a finished run that a config replaces; "" for none.

    Args:
        config: the config that is asked for; it trains and embeds as that of the run does.
        finished: what `workdir.about` returns for the run.
        workdir: folder of the run, for the sentence.
    """
    stored = finished["config"]
    values = claims.asked_again(stored, config.values)
    sample = config.eval.sample_of(finished["size"], jax.process_count())
    # Who asks for the clusters of a sample may have those of all images.
    accepted = {claims.asked(values["eval"], most) for most in (None, sample)}
    if finished["asked"] in accepted and values["data"] == stored["data"]:
        return ""
    keys = ", ".join(claims.differing(stored, values))
    what = f"another {keys}" if keys else "another version of your modules, or of a sample"
    undo = f"`cluster-jax update --workdir={shlex.quote(str(workdir))} --undo`"
    return f"the results in {workdir} are of {what}: they are replaced, and {undo} brings them back"


def _photos(
    config: PhotosConfig,
    workdir: epath.Path,
    dataset: Dataset | None,
    finished: Mapping[str, Any] | None,
    replaces: str,
    report: bool,
) -> Run:
    """Returns the run of photos: the finished one, its next state, or a first one.

    Args:
        config: the config that is asked for, which the workdir can have.
        workdir: folder of the run.
        dataset: the photos, if they are loaded already.
        finished: what `workdir.about` returns for the workdir.
        replaces: see `_replaced_results`; "" also where no run is finished.
        report: whether to write the page.

    Raises:
        InputError: there are several processes; for others see `run_pipeline`.
    """
    if jax.process_count() > 1:
        raise InputError(
            f"photos must be clustered in one process; got {jax.process_count()} processes: write "
            "their features with `cluster-jax embed`, and cluster the file"
        )
    started = time.perf_counter()
    if finished is None:
        io.check_writable(workdir)
        workdirs.check_unused(workdir)
        inputs = photos.load(config, dataset)
        start.print_start(inputs, workdir)
        with workdirs.locked(workdir):
            if claims.claim(workdir, config.values) is None:
                before, now = photos.first(inputs, workdir)
                run = update.next_of_run(before, now, "refit", started, with_report=report)
                photos.kept_in(workdir, {}).remove()
                return _told(before, run)
        return _run(config, workdir, dataset, report)  # Another process has been faster.
    if not finished["updates"] and not stores.path_of(workdir).exists():
        with workdirs.locked(workdir):
            photos.make_again(photos.load(config, dataset), workdir)
        say(f"the missing features and thumbnails of {workdir} were made again")
    if not replaces:
        return _finished(workdir, dataset, report)
    with workdirs.locked(workdir):
        before = records.read(workdir)
        if dataset is not None:
            _check_images(before, dataset)
        after = photos.with_config(before, claims.asked_again(before.config, config.values))
        say(replaces)
        run = update.cluster_again(before, after, started, with_report=report)
    return _told(before, run)


def _training(
    config: RunConfig,
    workdir: epath.Path,
    dataset: Dataset | None,
    finished: Mapping[str, Any] | None,
    replaces: str,
    report: bool,
) -> Run:
    """Returns the run of a training: the finished one, its next state, or a first one.

    If only its embedding, its encoder or its pictures are missing, they are made again. For the
    arguments see `_photos`.
    """
    is_same = finished is not None and not replaces
    needed = {workdirs.IMAGES, workdirs.TRAIN_EMBEDDING, stores.path_of(workdir).name}
    is_whole = needed <= buckets.names(workdir)
    is_whole = is_whole and workdirs.has_encoder(workdir, config.eval.features)
    if workdirs.agree(is_same and is_whole, workdir):
        return _finished(workdir, dataset, report)
    started = time.perf_counter()
    io.check_writable(workdir)
    is_first = jax.process_index() == 0
    if is_first:
        workdirs.check_unused(workdir)
    files, make_features = trainings.prepare(config, workdir, dataset)
    if replaces:
        say(replaces)
    with workdirs.locked(workdir) if is_first else contextlib.nullcontext():
        inputs = make_features()
        if not is_first:
            hosts.follow()
            return records.read(workdir)
        # Who sets the sample has decided how long that takes.
        with hosts.leading(limited=config.eval.sample is None):
            inputs, features = finish.readable(inputs, embedding_files.read(workdir))
            trainings.write_pictures(workdir, inputs.dataset)
            if not is_same:
                before, run = trainings.next_state(files, inputs, features, started)
                say("writing the report" if report else "writing the clusters")
                return _told(before, page.publish_next(before, run, with_report=report))
    say(f"the missing files of {workdir} were made again")
    return _finished(workdir, dataset, report)


def _finished(workdir: epath.Path, dataset: Dataset | None, report: bool) -> Run:
    """Returns a finished run, whose outputs are written if one is missing or of another state."""
    run = records.read(workdir)
    if dataset is not None:
        _check_images(run, dataset)
    say(f"{workdir} is finished{_next_steps(run) if dataset is None else ''}\n")
    run = page.ensured(run, with_report=report)
    say(summary.run_table(run.results))
    return run


def _next_steps(run: Run) -> str:
    """Returns the end of the line "WORKDIR is finished": which command goes on with the run."""
    try:
        update.check(run)
    except InputError:
        do = "to cluster them again, choose another --workdir"
        return f", and its images were not read again: {do}"
    command = f"`cluster-jax update --workdir={shlex.quote(str(run.workdir))}`"
    return (
        f": {command} takes new photos in and lets those go that are gone, "
        "and with --refit it clusters all anew"
    )


def _told(before: Run, run: Run) -> Run:
    """Prints the results of a state that was made now, and its outputs; returns the state.

    Args:
        before: the state before, perhaps an empty one.
        run: the state.
    """
    if lost := changes.lost(before, run):
        say(lost)
    say(summary.run_table(run.results))
    say("")
    for key, path in workdirs.outputs(run.workdir).items():
        say(f"{key:<12} {path}")
    return run


def _check_images(run: Run, dataset: Dataset) -> None:
    """Raises an `InputError` unless the images are those of a finished run.

    Photos are compared by names and contents, in any order, with the record of the run, because an
    update may have changed them since the run began; others with what was recorded of them.
    """
    if run.is_trained or run.names is None or run.facts is None or dataset.facts is None:
        if not claims.describe_images(dataset).items() <= run.images.items():
            raise claims.changed(run.workdir)
        return
    facts = dataset.facts(np.arange(dataset.size))
    now = set(zip(dataset.sources or (), map(bytes, facts["digest"]), strict=True))
    known = set(zip(run.names, map(bytes, run.facts["digest"]), strict=True))
    # Those that cannot be read are still in a streamed set.
    skipped = run.skipped if dataset.unreadable else ()
    if not {name for name, _ in now ^ known} <= {name for name, _ in skipped}:
        raise claims.changed(run.workdir)


def cluster(before: Run, now: Now, *, with_report: bool) -> Run:
    """Returns the run of a clustering of features, after writing it.

    If the folder has the finished run of the same features and options, it is returned; all outputs
    are written again if `results.json` is missing or is that of another state. Several processes
    all return the run, but only the first one locks the folder and writes files.

    Args:
        before: an empty run, see `rows.first`.
        now: its rows.
        with_report: whether to write `report.html`.

    Raises:
        InputError: the folder cannot be written, is damaged, used by another process, or has the
            run of other rows or options; or there are several processes that do not share it. No
            file of the run has been written then.
    """
    folder = before.workdir

    def is_finished() -> bool:
        with checks.named({"data.features": "--features", "data.labels": "--labels"}):
            is_there = claims.claim(folder, before.config) is not None
        return workdirs.agree(is_there, folder)

    # Before the lock: a finished run may be read-only, and nothing is left in a refused folder.
    if not is_finished():
        started = time.perf_counter()
        with workdirs.locked(folder) if devices.is_first() else contextlib.nullcontext():
            if not is_finished():  # Another process may have been faster.
                return update.next_of_run(before, now, "refit", started, with_report=with_report)
    say(f"{folder} is finished; choose another folder to run it again")
    return page.ensured(records.read(folder), with_report=with_report)
