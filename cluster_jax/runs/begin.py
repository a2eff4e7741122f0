"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from cluster_jax.clustering import custom
from cluster_jax.core import buckets, checks, hosts, io
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
    novel,
    page,
    photos,
    sources,
    start,
    trainings,
    update,
)
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Files
from cluster_jax.runs.next_state import Now
from cluster_jax.runs.run import Run
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, PhotosConfig, RunConfig, own_files, parse_config
from cluster_jax.training.progress import read_log

# Images of which several hosts make pictures for the page, while all but one wait.
_PICTURES = 5_000


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
        run = _run(parse_config(config, name), workdir, name, dataset, report)
        return {**run.results, "config": run.config}
    except io.DamagedFile as error:
        finished = workdirs.about(epath.Path(error.path).parent)
        # The command of an updated run would embed the photos of now, not those of the run.
        if error.otherwise or (finished is not None and finished["updates"]):
            raise
        raise io.DamagedFile(error.path, error.reason, workdirs.MADE_AGAIN) from error


def _run(
    parsed: AnyConfig,
    workdir: epath.PathLike | None,
    name: str,
    dataset: Dataset | None,
    report: bool,
) -> Run:
    """Returns the run of a config, after the steps that no earlier call has done.

    If the workdir has the finished run of an equal config with all its files, it is returned; all
    outputs are written again if `results.json` is missing or is that of another state. If only the
    embedding, the encoder or the pictures are missing, they are made again. Otherwise the missing
    steps are done, and the images are clustered. For the arguments see `run_pipeline`.
    """
    is_first = jax.process_index() == 0
    hosts.wait_for_all("started")
    workdir = buckets.path(workdir or claims.default_workdir(parsed.values, name))
    if not isinstance(parsed, RunConfig):  # Trainings alone write into a bucket.
        checks.local(workdir)
    parsed = parse_config(config_paths.with_absolute_paths(parsed.values), name)
    finished = claims.claim(workdir, parsed.values)
    if is_first:
        _warn_of_an_edit(parsed, workdir)
    custom.check("eval.method", parsed.eval.method, FINDERS)
    own.check(parsed.eval.metrics)
    difference = "" if finished is None else _difference(parsed, finished, workdir)
    is_same = finished is not None and not difference
    if isinstance(parsed, PhotosConfig):
        return _photos(parsed, workdir, dataset, finished, difference, report)
    needed = {workdirs.IMAGES, workdirs.TRAIN_EMBEDDING, workdirs.ENCODER}
    needed.add(stores.path_of(workdir).name)
    if workdirs.agree(is_same and needed <= buckets.names(workdir), workdir):
        return _finished(workdir, dataset, report)
    started = time.perf_counter()
    io.check_writable(workdir)
    if is_first:
        workdirs.check_unused(workdir)
    assert isinstance(parsed, RunConfig)
    files, make = trainings.prepare(parsed, workdir, dataset)
    if difference:
        say(difference)
    with workdirs.locked(workdir) if is_first else contextlib.nullcontext():
        inputs = make()
        if not is_first:
            hosts.follow()
            return records.read(workdir)
        # Who sets the sample has decided how long that takes.
        with hosts.leading(limited=parsed.eval.sample is None):
            if is_same:  # Only its features or pictures had to be made again.
                if not stores.path_of(workdir).exists():
                    _write_pictures(files, inputs)
                run = page.repaired(records.read(workdir), with_report=report)
                say(f"{workdir} is finished; the missing files were made again\n")
                say(summary.run_table(run.results))
                return run
            return _cluster_and_write(files, inputs, started, report)


def _finished(workdir: epath.Path, dataset: Dataset | None, report: bool) -> Run:
    """Returns a finished run, whose outputs are written if one is missing."""
    run = records.read(workdir)
    if dataset is not None:
        _check_images(run, dataset)
    say(f"{workdir} is finished{_next_steps(run) if dataset is None else ''}\n")
    run = page.ensured(run, with_report=report)
    say(summary.run_table(run.results))
    return run


def _photos(
    config: PhotosConfig,
    workdir: epath.Path,
    dataset: Dataset | None,
    finished: Mapping[str, Any] | None,
    difference: str,
    report: bool,
) -> Run:
    """Returns the run of photos: the finished one, its next state, or a first one.

    Args:
        config: the config that is asked for, which the workdir can have.
        workdir: folder of the run.
        dataset: the photos, if they are loaded already.
        finished: what `workdir.about` returns for the workdir.
        difference: see `_difference`; "" also where no run is finished.
        report: whether to write the page.

    Raises:
        InputError: there are several processes; for others see `run_pipeline`.
    """
    if jax.process_count() > 1:
        raise InputError(
            f"photos must be clustered in one process; got {jax.process_count()} processes: write "
            "their features with `cluster-jax embed`, and cluster the file"
        )
    is_whole = stores.path_of(workdir).exists()
    if finished is not None and not finished["updates"] and not is_whole:
        with workdirs.locked(workdir):
            photos.make_again(photos.load(config, dataset), workdir)
        say(f"the missing features and thumbnails of {workdir} were made again")
    if difference:
        return _cluster_again(config, workdir, dataset, difference, report)
    if finished is not None:
        return _finished(workdir, dataset, report)
    started = time.perf_counter()
    io.check_writable(workdir)
    workdirs.check_unused(workdir)
    inputs = photos.load(config, dataset)
    start.print_start(inputs, workdir)
    with workdirs.locked(workdir):
        if claims.claim(workdir, config.values) is None:
            before, now = photos.first(inputs, workdir)
            run = update.next_of_run(before, now, "other", started, with_report=report)
            photos.kept_in(workdir, {}).remove()
            return _told(run)
    return _run(config, workdir, config.name, dataset, report)  # Another one has been faster.


def _cluster_again(
    config: PhotosConfig,
    workdir: epath.Path,
    dataset: Dataset | None,
    difference: str,
    report: bool,
) -> Run:
    """Returns the next state of a run of photos by another section `eval`; reads no photo.

    Args:
        config: the config that is asked for.
        workdir: folder of the run.
        dataset: the photos, if they are loaded already.
        difference: see `_difference`.
        report: whether to write the page.
    """
    started = time.perf_counter()
    with workdirs.locked(workdir):
        before = records.read(workdir)
        if dataset is not None:
            _check_images(before, dataset)
        values = claims.asked_again(before.config, config.values)
        after = dataclasses.replace(before, config=values)
        if values["data"]["labels"] is not None and before.names is not None:
            if values["data"]["labels"] != before.config["data"]["labels"]:
                after = dataclasses.replace(after, truth=None, label_names=None)  # All are new.
            after = sources.with_truth(after)
        say(difference)
        run = update.cluster_again(before, after, started, with_report=report)
    if said := changes.lost(before, run):
        say(said)
    say(summary.run_table(run.results))
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


def _difference(config: AnyConfig, finished: Mapping[str, Any], workdir: epath.Path) -> str:
    """Returns why a finished run must be clustered again for a config; "" if it must not.

    Args:
        config: the config that is asked for; it trains and embeds as that of the run does.
        finished: what `workdir.about` returns for the run.
        workdir: folder of the run, for messages.

    Raises:
        InputError: the module of `eval.method` cannot be imported.
    """
    stored = finished["config"]
    differing = claims.difference(stored, claims.asked_again(stored, config.values))
    changed = ""
    if differing:
        undo = f"`cluster-jax update --workdir={shlex.quote(str(workdir))} --undo`"
        changed = f"the results in {workdir} had {differing}: they are replaced"
        changed += f"\n{undo} brings them back"
    source = finished["source"]
    file = custom.file_hash(config.eval.method, FINDERS)
    if not differing and file != source["finder"]:
        changed = f"the file of {config.eval.method} has changed: the images are clustered again"
    if not (differing or changed) and own.files(config.eval.metrics) != source["metrics"]:
        changed = "a file of eval.metrics has changed: the clusters are scored again"
    n = source["clustered"]
    sampled = finished["fit"].get("rows_clustered", n)
    most = config.eval.sample_of(n, jax.process_count()) or n
    if not changed and config.eval.method != "tree" and sampled < most:
        changed = f"the results in {workdir} are of a sample of {sampled:,} images: {most:,} are"
        changed += " clustered now"
    return changed


def _warn_of_an_edit(config: AnyConfig, workdir: epath.Path) -> None:
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


def _cluster_and_write(
    files: Files, inputs: Inputs[RunConfig], started: float, report: bool
) -> Run:
    """Clusters the embedding in the workdir, writes all outputs, and returns the run.

    Args:
        files: the embeddings in the workdir, none of which is missing.
        inputs: the images, also those that cannot be read.
        started: what `time.perf_counter` returned before the training or the embedding.
        report: whether to write the page.
    """
    processes = jax.process_count()
    waiting = ""
    if processes > 1:
        longest = f"at most {hosts.LONGEST_WAIT / 60:g} minutes"
        until = longest if inputs.config.eval.sample is None else "until it is done"
        waiting = f"; {processes - 1} of {processes} hosts wait, {until}"
    say("clustering" + waiting)
    skipped = inputs.dataset.skipped
    workdir = files.workdir
    inputs, features = finish.readable(inputs, embedding_files.read(workdir))
    images = workdirs.read_values(workdir / workdirs.IMAGES)
    embedding = features[workdirs.TRAIN_EMBEDDING]
    before, after = finish.first(inputs, embedding[inputs.config.eval.features], workdir, images)
    old = np.arange(0)
    if workdirs.states(workdir):  # The same images by another section `eval`.
        before = records.read(workdir)
        old = np.arange(len(before.columns))
        after = dataclasses.replace(before, config=after.config, store=after.store)
    made = finish.Made(
        embedding,
        test=finish.probe_test(inputs, features),
        steps=int(files.steps[workdirs.TRAIN_EMBEDDING]),
        log=read_log(workdir),
    )
    now = Now(after, old, pictures=inputs.dataset.shown)
    if (found := novel.discover(inputs, features)) is not None:
        run = novel.next_of_images(before, now, inputs.dataset, made, found, started)
    else:
        run = finish.next_of_images(before, now, "other", made, started)
    say("writing the report" if report else "writing the clusters")
    stores.complete(workdir, inputs.dataset, _most_pictures())
    run = page.publish_next(before, run, with_report=report)
    if not skipped:
        start.print_skipped(run.skipped)
    return _told(run)


def _write_pictures(files: Files, inputs: Inputs[RunConfig]) -> None:
    """Writes the pictures of a finished training, which somebody has removed.

    Args:
        files: the embeddings in the workdir, none of which is missing.
        inputs: the images, also those that cannot be read.
    """
    readable, _ = finish.readable(inputs, embedding_files.read(files.workdir))
    stores.complete(files.workdir, readable.dataset, _most_pictures())


def _most_pictures() -> int:
    """Returns the most images of a training of which the page has pictures."""
    return stores.MOST_PICTURES if jax.process_count() == 1 else _PICTURES


def _told(run: Run) -> Run:
    """Prints the results of a run that was made now, and its outputs; returns the run."""
    say(summary.run_table(run.results))
    say("")
    for key, path in workdirs.outputs(run.workdir).items():
        say(f"{key:<12} {path}")
    return run
