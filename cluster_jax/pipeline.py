"""A whole run: train, embed, cluster, report; it resumes at the first stage not finished."""

import csv
import functools
import hashlib
import io
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

from cluster_jax import assemble, protocol, settings, storage
from cluster_jax import embed as embedding
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import evaluate, report
from cluster_jax.training import checkpoint, log, loop
from cluster_jax.training import state as states

# Files that say what must be known to place new images without the old ones.
IMAGES, CLUSTERS = "images.json", "clusters.npz"
STORED = (
    "points", "centers", "bandwidth", "clusters", "distances", "outliers", "kmeans_clusters",
    "reach",
)  # fmt: skip

# What may change in a finished run without training anew.
AFTER_TRAINING = ("eval", "note")
# What may change at any time: it leaves the result as it is.
AT_ANY_TIME = {
    "train": ("log_every", "checkpoint_every", "keep_checkpoints", "prefetch"),
    "data": ("resident_mb",),
}


def run(
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
    config = assemble.plain(config)
    workdir = epath.Path(workdir or default_workdir(config, name))
    previous = _claim(workdir, config)
    if previous is not None and dataset is not None:
        _check_images(workdir / IMAGES, _fingerprint(dataset))
    if _agreed(previous is not None, workdir):
        _say(f"{workdir} is finished; to run again, give another --workdir\n")
        _say(protocol.table(previous))
        return previous
    started = time.perf_counter()
    built = assemble.build(config, dataset)
    main = jax.process_index() == 0
    _say(
        f"{built.dataset.size:,} images of {built.dataset.name}, "
        f"{built.plan.total:,} steps of {config['train']['batch_size']} images "
        f"on {built.mesh.size} x {jax.devices()[0].device_kind}\nworkdir {workdir}"
    )
    if built.dataset.skipped:
        _say(f"{len(built.dataset.skipped)} files cannot be read; the report lists them")
    images = _fingerprint(built.dataset)
    _check_images(workdir / IMAGES, images)
    if main:
        workdir.mkdir(parents=True, exist_ok=True)
        storage.write_json(workdir / "config.json", config)
        storage.write_json(workdir / IMAGES, {**images, **assemble.describe(built)})
    features = _features(built, config, workdir)
    trained = time.perf_counter()
    if not main:
        return {}
    _say("clustering")
    found = evaluate.evaluate(features, built.dataset.labels, seed=config["seed"], **config["eval"])
    records = log.read(workdir)
    results = {
        "protocol": protocol.describe(config, built.dataset, built.plan.total),
        "metrics": {**found.metrics, "gradient_share": _last(records, "gradient_share")},
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": trained - started,
            "cluster": time.perf_counter() - trained,
        },
        "config": config,
    }
    storage.write_arrays(workdir / CLUSTERS, {k: np.asarray(getattr(found, k)) for k in STORED})
    storage.write(workdir / "assignments.csv", _assignments(built.dataset, found))
    report.write_report(
        workdir / "report.html", _report_data(name, results, records, found, built.dataset)
    )
    # Last: its presence says that the run is finished.
    storage.write_json(workdir / "results.json", results)
    _say(protocol.table(results))
    _say(f"\nreport       {workdir / 'report.html'}\nassignments  {workdir / 'assignments.csv'}")
    _say(f"figures      {workdir / 'results.json'}")
    return storage.read_json(workdir / "results.json")


def outcome(workdir: epath.PathLike) -> dict | None:
    """Results of a run all of whose files are there, None where it must go on first."""
    workdir = epath.Path(workdir)
    if not all((workdir / f).exists() for f in ("results.json", "config.json", CLUSTERS)):
        return None
    results = storage.read_json(workdir / "results.json")
    # Another evaluation that was interrupted leaves its config and the results of the one before.
    return results if results["config"] == storage.read_json(workdir / "config.json") else None


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """`runs/NAME-HASH`; the hash is of what the training depends on."""
    text = json.dumps(_training_part(config), sort_keys=True)
    return pathlib.Path("runs") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def embed(
    built: assemble.Run, config: Mapping[str, Any], state: states.State
) -> dict[str, np.ndarray]:
    """Features of every image; see `embed.embed`."""
    return embedding.embed(
        built.method,
        state.params,
        state.extra,
        built.dataset,
        batch_size=config["eval"]["batch_size"],
        mesh=built.mesh,
    )


def restore(
    built: assemble.Run, config: Mapping[str, Any], workdir: epath.PathLike
) -> states.State | None:
    """The newest checkpoint of a run, None if there is none."""
    saved = checkpoint.Checkpoints(
        epath.Path(workdir) / "checkpoints", keep=config["train"]["keep_checkpoints"]
    )
    state = saved.restore(assemble.initial(built, config))
    saved.close()
    return state


def _features(
    built: assemble.Run, config: Mapping[str, Any], workdir: epath.Path
) -> dict[str, np.ndarray]:
    """The stored embedding if it is there, else by training (or what is left of it)."""
    file = workdir / "embedding.npz"
    if _agreed(file.exists(), workdir):
        return storage.read_arrays(file)

    state = loop.train(
        built.method,
        built.optimiser,
        assemble.initial(built, config),
        built.dataset,
        workdir=workdir,
        mesh=built.mesh,
        batch_size=config["train"]["batch_size"],
        seed=config["seed"],
        keep=config["train"]["keep_checkpoints"],
        plan=built.plan,
        embedding=functools.partial(embed, built, config),
        rate=built.rate,
    )
    features = embed(built, config, state)
    if jax.process_index() == 0:
        storage.write_arrays(file, features)
    return features


def _claim(workdir: epath.Path, config: dict[str, Any]) -> dict | None:
    """Results of a finished run of this very config, else None.

    Raises:
        InputError: the workdir belongs to a run of another config.
    """
    if not (workdir / "config.json").exists():
        return None
    old = storage.read_json(workdir / "config.json")
    different = _different(_training_part(old), _training_part(config))
    if different:
        key, was, wanted = different[0]
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise settings.InputError(
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
        raise settings.InputError(
            f"{workdir} is not the same folder for all processes; give a shared --workdir"
        )
    return done


def _fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Tells whether a run is continued with the images that it began with."""
    some = np.arange(min(dataset.size, 256)) * dataset.size // min(dataset.size, 256)
    digest = hashlib.sha256(dataset.fetch(some).tobytes())
    for name in dataset.sources or ():
        digest.update(os.fsencode(name))
    return {"size": dataset.size, "sha256": digest.hexdigest()}


def _check_images(file: epath.Path, images: dict[str, Any]) -> None:
    if file.exists() and not images.items() <= storage.read_json(file).items():
        raise settings.InputError(
            f"the images have changed since the run in {file.parent} began; give another --workdir"
        )


def _assignments(dataset: Dataset, found: evaluate.Evaluation) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "cluster", "distance", "outlier", "kmeans_cluster"])
    names = dataset.sources or range(dataset.size)
    columns = (found.clusters, found.distances, found.outliers, found.kmeans_clusters)
    rows = zip(names, *columns, strict=True)
    writer.writerows((name, int(c), f"{d:.6g}", int(o), int(k)) for name, c, d, o, k in rows)
    return text.getvalue()


def _report_data(
    name: str,
    results: dict,
    records: list[dict],
    found: evaluate.Evaluation,
    dataset: Dataset,
) -> report.ReportData:
    return report.ReportData(
        title=name,
        results=storage.plain(results),
        history=records,
        points=found.points,
        clusters=found.clusters,
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
