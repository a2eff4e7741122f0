"""A whole run: train, embed, cluster, report; it resumes at the first stage not finished."""

import hashlib
import json
import os
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
from cluster_jax.data import splits
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.evaluation import assignments, discovery, evaluate, report
from cluster_jax.pipeline import build, provenance, stages
from cluster_jax.training import log
from cluster_jax.training import state as states

# Files that say what must be known to place new images without the old ones.
IMAGES, CLUSTERS = "images.json", "clusters.npz"
# Embeddings: of the training images, of those kept for a test, and of the training images at the
# start of a training that goes on from another.
TRAINED, TESTED, BEFORE = "embedding.npz", "embedding_test.npz", "embedding_before.npz"
STORED = (
    "points", "centers", "bandwidth", "cluster_labels", "distances", "outliers", "kmeans_labels",
    "novelty_threshold",
)  # fmt: skip

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
    previous = _claim(workdir, config)
    if previous is not None and dataset is not None:
        _check_images(workdir / IMAGES, _fingerprint(dataset))
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
    images = _fingerprint(built.dataset)
    _check_images(workdir / IMAGES, images)
    weights = stages.source(trainings)
    if main:
        workdir.mkdir(parents=True, exist_ok=True)
        io.write_json(workdir / "config.json", config)
        io.write_json(workdir / IMAGES, {**images, **build.describe_images(built)})
    features = _features(trainings, weights)
    trained = time.perf_counter()
    if not main:
        return {}
    _say("clustering")
    clustered, of_clustered = _unlabeled(built.dataset, features[TRAINED])
    judged = discovery.with_number(config, built.dataset.known)
    found = evaluate.evaluate(of_clustered, clustered.labels, seed=config["seed"], **judged["eval"])
    records = log.read(workdir)
    discovered = _discover(built, features, config)
    results = {
        "protocol": provenance.describe(judged, built.dataset, clustered, built.schedule.total),
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
    stored = {k: np.asarray(getattr(found, k)) for k in STORED}
    if built.dataset.known is not None:
        stored["rows"] = np.flatnonzero(built.dataset.known < 0)
    if discovered:
        stored |= {
            "classes": discovered.classes,
            "class_novelty_threshold": np.asarray(discovered.novelty_threshold),
        }
    io.write_arrays(workdir / CLUSTERS, stored)
    io.write(workdir / "assignments.csv", assignments.text(built.dataset, found, discovered))
    if discovered:  # Their report shows the novel classes; assignments.csv has the clusters too.
        own = {"cluster_labels": discovered.cluster_labels, "distances": discovered.distances}
        found = found._replace(**own, outliers=None)
    shown = _report_data(name, results, records, found, clustered)
    report.write_report(workdir / "report.html", shown)
    # Last: its presence says that the run is finished.
    io.write_json(workdir / "results.json", results)
    _say(provenance.table(results))
    _say(f"\nreport       {workdir / 'report.html'}\nassignments  {workdir / 'assignments.csv'}")
    _say(f"figures      {workdir / 'results.json'}")
    return io.read_json(workdir / "results.json")


def outcome(workdir: epath.PathLike) -> dict | None:
    """Results of a run all of whose files are there, None where it must go on first."""
    workdir = epath.Path(workdir)
    if not all((workdir / f).exists() for f in ("results.json", "config.json", CLUSTERS)):
        return None
    results = io.read_json(workdir / "results.json")
    # Another evaluation that was interrupted leaves its config and the results of the one before.
    return results if results["config"] == io.read_json(workdir / "config.json") else None


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """`runs/NAME-HASH`; the hash is of what the training depends on."""
    text = json.dumps(_training_part(config), sort_keys=True)
    return pathlib.Path("runs") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


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

    if not _agreed((last.workdir / TRAINED).exists(), last.workdir):
        border = len(trainings) > 1 or last.config["init_from"] is not None
        state = stages.train(
            trainings,
            weights,
            _say,
            lambda state: embedded(BEFORE, dataset, state) if border else None,
        )
        if test is not None:
            embedded(TESTED, test, state)
        embedded(TRAINED, dataset, state)
    if jax.process_index() != 0:
        return {}
    files = [f for f in (TRAINED, TESTED, BEFORE) if (last.workdir / f).exists()]
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
    found = features[TRAINED]
    if "novel" not in found:
        return None

    def part(file: str, labels: np.ndarray | None) -> discovery.NetworkOutputs:
        rows = features[file]
        return discovery.NetworkOutputs(
            arrays.normalize_rows(rows["backbone"]), rows["labeled"], rows["novel"], labels
        )

    before = features.get(BEFORE)
    return discovery.discover(
        part(TRAINED, built.dataset.labels),
        built.dataset.known,
        None if before is None else arrays.normalize_rows(before["backbone"]),
        part(TESTED, built.test.labels) if TESTED in features else None,
        n_init=config["eval"]["kmeans"]["n_init"],
        seed=config["seed"],
    )


def _claim(workdir: epath.Path, config: dict[str, Any]) -> dict | None:
    """Results of a finished run of this very config, else None.

    Raises:
        InputError: the workdir belongs to a run of another config.
    """
    if not (workdir / "config.json").exists():
        return None
    old = io.read_json(workdir / "config.json")
    different = _different(_training_part(old), _training_part(config))
    if different:
        # Another method has other keys too: its name says more than any of them.
        key, was, wanted = min(different, key=lambda d: d[0] != "method.name")
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise InputError(
            f"{workdir} holds a run with {key} = {was}, not {wanted}{more}; give another --workdir"
        )
    results = outcome(workdir)
    return results if results and results["config"] == json.loads(json.dumps(config)) else None


def _training_part(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in config.items() if k not in AFTER_TRAINING}
    for section, keys in AT_ANY_TIME.items():
        kept[section] = {k: v for k, v in kept[section].items() if k not in keys}
    return kept


def _different(a: Any, b: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) of the leaves that differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        names = sorted(set(a) | set(b))
        return [d for n in names for d in _different(a.get(n), b.get(n), f"{key}.{n}".strip("."))]
    return [] if a == b else [(key, a, b)]


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


def _fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Tells whether a run is continued with the images that it began with."""
    some = np.arange(min(dataset.size, 256)) * dataset.size // min(dataset.size, 256)
    digest = hashlib.sha256(dataset.fetch(some).tobytes())
    for name in dataset.sources or ():
        digest.update(os.fsencode(name))
    if dataset.known is not None:
        digest.update(dataset.known.astype(np.int32).tobytes())
        digest.update("\n".join(splits.known_names(dataset)).encode())
    return {"size": dataset.size, "sha256": digest.hexdigest()}


def _check_images(file: epath.Path, images: dict[str, Any]) -> None:
    if file.exists() and not images.items() <= io.read_json(file).items():
        raise InputError(
            f"the images have changed since the run in {file.parent} began, or the classes given "
            "for some; give another --workdir"
        )


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
        clusters=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        labels=dataset.labels,
        label_names=dataset.label_names,
        thumbnails=dataset.fetch,
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
