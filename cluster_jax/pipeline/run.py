"""A whole run: train, embed, cluster, report; it resumes at the first stage not finished."""

import pathlib
import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.evaluation import assignments, discovery, evaluate, report
from cluster_jax.pipeline import build, provenance, stages
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.training import log
from cluster_jax.training import state as states

# What may change in a finished run without training anew.
AFTER_TRAINING = ("eval", "note")
# What may change at any time: it leaves the result as it is.
AT_ANY_TIME = {
    "train": ("log_every", "checkpoint_every", "keep_checkpoints", "prefetch"),
    "data": ("cache_mb",),
}


def run_pipeline(
    config: ConfigDict | Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    name: str = "run",
    dataset: Dataset | None = None,
) -> dict:
    """Trains, embeds, clusters and reports; what is done already is not done again.

    Args:
        config: see `configs/base.py`.
        workdir: folder or bucket path of the run; None: `runs/NAME-HASH` of name and config.
        name: of the config, for the folder and the report's title.
        dataset: the images, where they are in hand already; None: what `config.data` says.

    Returns:
        What `results.json` holds.

    Raises:
        InputError: the config, the data or the workdir cannot be used; nothing was written.
        NotFinite, Preempted: see `training.loop.train`.
    """
    config = build.plain(config)
    workdir = epath.Path(workdir or default_workdir(config, name))
    previous = workdirs.claim(
        workdir, config, compared=training_part, required=(workdirs.CLUSTERS,)
    )
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if _agreed(previous is not None, workdir):
        _say(f"{workdir} is finished; to run again, give another --workdir\n")
        _say(provenance.table(previous))
        return previous
    started = time.perf_counter()
    trainings = stages.build_stages(config, workdir, name, dataset)
    built = trainings[-1].built
    main = jax.process_index() == 0
    lengths = " + ".join(f"{stage.built.schedule.total:,}" for stage in trainings)
    _say(
        f"{built.dataset.size:,} images of {built.dataset.name}, "
        f"{lengths} steps of {config['train']['batch_size']} images "
        f"on {built.mesh.size} x {jax.devices()[0].device_kind}\nworkdir {workdir}"
    )
    if built.dataset.skipped:
        _say(f"{len(built.dataset.skipped)} files cannot be read; the report lists them")
    images = workdirs.describe_images(built.dataset)
    workdirs.check_images(workdir, images)
    weights = stages.source(trainings)
    if main:
        workdir.mkdir(parents=True, exist_ok=True)
        io.write_json(workdir / workdirs.CONFIG, config)
        io.write_json(workdir / workdirs.IMAGES, {**images, **build.describe_images(built)})
    features = _features(trainings, weights)
    trained = time.perf_counter()
    if not main:
        return {}
    _say("clustering")
    clustered, of_clustered = _unlabeled(built.dataset, features[workdirs.TRAIN_EMBEDDING])
    judged = discovery.with_novel_k(config, built.dataset.known)
    eval_config = parse_section(evaluate.EvalConfig, "eval", judged["eval"])
    found = evaluate.evaluate(of_clustered, clustered.labels, eval_config, seed=config["seed"])
    records = log.read(workdir)
    discovered = _discover(built, features, config)
    results = {
        "provenance": provenance.describe(judged, built.dataset, clustered, built.schedule.total),
        "metrics": {
            **found.metrics,
            "gradient_share": _last(records, "gradient_share"),
            "discovery": discovered and discovered.metrics,
        },
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": trained - started,
            "cluster": time.perf_counter() - trained,
        },
        "config": config,
    }
    workdirs.write_clusters(workdir, _stored_clusters(found, discovered, built.dataset))
    io.write(
        workdir / workdirs.ASSIGNMENTS, assignments.images_csv(built.dataset, found, discovered)
    )
    if discovered:  # Their report shows the novel classes; assignments.csv has the clusters too.
        own = {"cluster_labels": discovered.cluster_labels, "distances": discovered.distances}
        found = found._replace(**own, outliers=None)
    shown = _report_data(name, results, records, found, clustered)
    report.write_report(workdir / workdirs.REPORT, shown)
    # Last: its presence says that the run is finished.
    io.write_json(workdir / workdirs.RESULTS, results)
    _say(provenance.table(results))
    _say(f"\nreport       {workdir / 'report.html'}\nassignments  {workdir / 'assignments.csv'}")
    _say(f"figures      {workdir / 'results.json'}")
    return io.read_json(workdir / workdirs.RESULTS)


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """`runs/NAME-HASH`; the hash is of what the training depends on."""
    return workdirs.default_path("runs", name, training_part(config))


def _features(
    trainings: list[stages.Stage], weights: stages.Weights | None
) -> dict[str, dict[str, np.ndarray]]:
    """The stored embeddings if they are there, else by training (or what is left of it).

    Of the training images, and in novel class discovery of the images kept for a test, and of the
    training images at the first step of the last training.
    """
    last = trainings[-1]
    dataset, test = last.built.dataset, last.built.test

    def embedded(file: str, images: Dataset, state: states.State) -> None:
        features = stages.embed(last, images, state)
        if jax.process_index() == 0:
            io.write_arrays(last.workdir / file, features)

    if not _agreed((last.workdir / workdirs.TRAIN_EMBEDDING).exists(), last.workdir):
        border = len(trainings) > 1 or last.config["init_from"] is not None
        state = stages.train(
            trainings,
            weights,
            _say,
            lambda state: embedded(workdirs.INITIAL_EMBEDDING, dataset, state) if border else None,
        )
        if test is not None:
            embedded(workdirs.TEST_EMBEDDING, test, state)
        embedded(workdirs.TRAIN_EMBEDDING, dataset, state)
    if jax.process_index() != 0:
        return {}
    files = [
        f
        for f in (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING, workdirs.INITIAL_EMBEDDING)
        if (last.workdir / f).exists()
    ]
    return {f: io.read_arrays(last.workdir / f) for f in files}


def _unlabeled(
    dataset: Dataset, features: dict[str, np.ndarray]
) -> tuple[Dataset, dict[str, np.ndarray]]:
    """What is clustered: all images, in novel class discovery the unlabeled ones."""
    if dataset.known is None:
        return dataset, features
    chosen = np.flatnonzero(dataset.known < 0)
    return select(dataset, chosen), {name: rows[chosen] for name, rows in features.items()}


def _discover(
    built: build.Run, features: dict[str, dict], config: Mapping[str, Any]
) -> discovery.Discovery | None:
    """Classes and figures of novel class discovery; None for other runs."""
    found = features[workdirs.TRAIN_EMBEDDING]
    if "novel" not in found:
        return None

    def part(file: str, labels: np.ndarray | None) -> discovery.NetworkOutputs:
        rows = features[file]
        return discovery.NetworkOutputs(
            arrays.normalize_rows(rows["backbone"]), rows["labeled"], rows["novel"], labels
        )

    before, tested = features.get(workdirs.INITIAL_EMBEDDING), workdirs.TEST_EMBEDDING
    return discovery.discover(
        part(workdirs.TRAIN_EMBEDDING, built.dataset.labels),
        built.dataset.known,
        None if before is None else arrays.normalize_rows(before["backbone"]),
        part(tested, built.test.labels) if tested in features else None,
        n_init=config["eval"]["kmeans"]["n_init"],
        seed=config["seed"],
    )


def training_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of the training: what the checkpoints and embeddings depend on."""
    kept = {k: v for k, v in config.items() if k not in AFTER_TRAINING}
    for section, keys in AT_ANY_TIME.items():
        kept[section] = {k: v for k, v in kept[section].items() if k not in keys}
    return kept


def _agreed(done: bool, workdir: epath.Path) -> bool:
    """`done`, after all processes have found the same: they must take the same way.

    Raises:
        InputError: they have not; the workdir is not one folder for all of them.
    """
    if jax.process_count() == 1:
        return done
    if bool(multihost_utils.broadcast_one_to_all(np.int32(done))) != done:
        raise InputError(
            f"{workdir} is not the same folder for all processes; give a shared --workdir"
        )
    return done


def _stored_clusters(
    found: evaluate.Evaluation, discovered: discovery.Discovery | None, dataset: Dataset
) -> workdirs.StoredClusters:
    stored = workdirs.StoredClusters(
        points=found.points,
        centers=found.centers,
        bandwidth=np.asarray(found.bandwidth),
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        kmeans_labels=found.kmeans_labels,
        novelty_threshold=np.asarray(found.novelty_threshold),
    )
    if dataset.known is not None:
        stored = stored._replace(unlabeled_rows=np.flatnonzero(dataset.known < 0))
    if discovered is not None:
        stored = stored._replace(
            class_labels=discovered.classes,
            class_novelty_threshold=np.asarray(discovered.novelty_threshold),
        )
    return stored


def _report_data(
    name: str,
    results: dict,
    records: list[dict],
    found: evaluate.Evaluation,
    dataset: Dataset,
) -> report.ReportData:
    return report.ReportData(
        title=name,
        results=io.plain(results),
        history=records,
        points=found.points,
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        true_labels=dataset.labels,
        label_names=dataset.label_names,
        fetch_images=dataset.fetch,
        sources=dataset.sources,
        curve=found.curve,
        skipped=dataset.skipped,
    )


def _last(records: list[dict], name: str) -> float | None:
    values = [r[name] for r in records if r.get(name) is not None]
    return values[-1] if values else None


def _speed(records: list[dict]) -> float | None:
    """Median images per second over the log, the first line (compilation) left out."""
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
