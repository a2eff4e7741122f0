"""A run of photos: a pretrained network embeds them. Nothing is trained.

Each photo is read and decoded once: its features and its thumbnail are kept in the store of the
run, and the facts about its file in its states, from which all later commands take them.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import io
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.data import decode, images
from cluster_jax.data import folder as image_files
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.decode import Item
from cluster_jax.encoding.embed import Batch, Parts, readable_images, readable_rows
from cluster_jax.encoding.embed import embed as embed_batches
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import changes, claims, finish, match, sources, start
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.config_paths import is_at
from cluster_jax.runs.features import forward_of
from cluster_jax.runs.match import Comparison
from cluster_jax.runs.next_state import Now
from cluster_jax.runs.run import Run
from cluster_jax.runs.sources import Present
from cluster_jax.runs.store import Pictures
from cluster_jax.training import build
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import PhotosConfig

_LEAST_BATCH = 8  # photos that are embedded together, of which the last ones may be copies


def load(config: PhotosConfig, dataset: Dataset | None) -> Inputs[PhotosConfig]:
    """Loads the photos of a first run.

    Args:
        config: see `configs/images.py`.
        dataset: the photos if they are loaded already; None: load `config.data`.

    Raises:
        InputError: the config or the data is invalid.
    """
    # Each photo is decoded once, for all that is kept of it, and is not needed in memory.
    once = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_mb=0.0))
    return build.load_photos(once, dataset)._replace(config=config)


def first(inputs: Inputs[PhotosConfig], workdir: epath.Path) -> tuple[Run, Now]:
    """Returns an empty run in a locked workdir, and its photos of now, which are embedded.

    Args:
        inputs: all photos, also those that cannot be read.
        workdir: folder of the run.

    Raises:
        InputError: the weights of the network cannot be read, or too few photos can.
    """
    config, dataset, _ = inputs
    made, recorded, made_from = _made(inputs, workdir)
    readable = readable_images(dataset, made)
    if readable.skipped != dataset.skipped:
        start.print_skipped(readable.skipped)
    rows = readable_rows(made)
    inputs = inputs._replace(dataset=readable)
    before, after = finish.first(inputs, rows["backbone"], workdir, recorded)
    after = dataclasses.replace(after, files=_write(workdir, 0, rows, made_from))
    now = Now(after, np.arange(0))
    if readable.load is None:  # The pixels of an array are compared, and not thumbnails.
        now = now._replace(pictures=readable.shown)
    elif config.data.name != "folder":  # Images of a sequence are there today alone.
        now = now._replace(pictures=of_run(after)._replace(load=readable.load))
    return before, now


def _made(inputs: Inputs[PhotosConfig], workdir: epath.Path) -> tuple[Batch, dict[str, Any], str]:
    """Embeds the photos of a first run.

    Returns:
        What `embed` does, the content of `images.json`, and the fingerprint for `_write`.
    """
    dataset = inputs.dataset
    encoder = build.encoder_of(inputs.config)
    assert encoder.preprocessing is not None
    # The facts about files tell whether the photos are the same; of others the pixels must.
    about = {} if dataset.facts is not None else claims.describe_images(dataset)
    about["preprocessing"] = io.plain(dataclasses.asdict(encoder.preprocessing))
    about[workdirs.WEIGHTS] = encoder.checksum
    recorded = start.record(workdir, inputs, about)
    kept = kept_in(workdir, about)
    made = embed(dataset, encoder, inputs.config.eval.batch_size, kept)
    return made, recorded, kept.fingerprint


def with_config(run: Run, config: Mapping[str, Any]) -> Run:
    """Returns a state of a run of photos with another config after their embedding.

    No photo is read, but the labels that the config names.

    Args:
        run: the state before.
        config: the config, as JSON values, see `claims.asked_again`.
    """
    after = dataclasses.replace(run, config=config)
    labels = config["data"]["labels"]
    if labels is None or run.names is None:
        return after
    if labels != run.config["data"]["labels"]:  # None of those before stays.
        after = dataclasses.replace(after, truth=None, label_names=None)
    return sources.with_truth(after)


def make_again(inputs: Inputs[PhotosConfig], workdir: epath.Path) -> None:
    """Writes the store of a finished run without updates, which somebody has removed.

    Args:
        inputs: all photos, also those that cannot be read.
        workdir: folder of the run, which is locked.

    Raises:
        DamagedFile: the photos, or the network, are not those of the run. The store is not written.
    """
    other = io.DamagedFile(
        stores.path_of(workdir),
        "it is not there, and these photos, or the network, are not those that it was made of",
        "put those photos back and run the same command",
    )
    then = workdirs.about(workdir)
    assert then is not None
    if inputs.dataset.facts is None:  # They are no files: their pixels tell.
        is_same = claims.describe_images(inputs.dataset).items() <= then["images"].items()
        if not is_same:
            raise other
    made, _, made_from = _made(inputs, workdir)
    rows = readable_rows(made)
    if _fingerprint(rows, made_from) != then["files"]["0"]:
        raise other
    _write(workdir, 0, rows, made_from)
    kept_in(workdir, {}).remove()


def embed(dataset: Dataset, encoder: Encoder, batch_size: int, kept: Parts | None = None) -> Batch:
    """Returns what a run keeps of photos.

    Args:
        dataset: the n photos.
        encoder: the network.
        batch_size: the most photos of a batch. Fewer photos are filled up to a power of two.
        kept: where parts of the embedding are kept until it is done; None: in memory alone.

    Returns:
        "backbone", the features float32 `[n, d]`; "thumbnail", bytes `[n]`, see
        `thumbnails.encode`; of files "facts", `[n]` of `data.images.FACTS`; and perhaps
        "unreadable".
    """
    mesh = meshes.make()
    # For each size a program is compiled, in the time in which many photos are embedded.
    size = min(batch_size, max(_LEAST_BATCH, 1 << (dataset.size - 1).bit_length()))
    forward = forward_of(encoder, mesh, "backbone")

    def also(pixels: NDArray, indices: NDArray) -> Batch:
        # NumPy fills the shorter ones up with zeros; neither a JPEG nor a PNG ends with one.
        rows = {"thumbnail": np.array(stores.encoded(pixels))}
        return rows if dataset.facts is None else {**rows, "facts": dataset.facts(indices)}

    def is_valid(first: int, rows: Batch) -> bool:
        if dataset.facts is None:
            return True
        then = rows["facts"]["digest"]
        now = dataset.facts(np.arange(first, min(first + len(then), dataset.size)))
        return np.array_equal(now["digest"], then)

    kept = kept and kept._replace(is_valid=is_valid)
    return embed_batches(forward, dataset, batch_size=size, mesh=mesh, kept=kept, also=also)


def _write(workdir: epath.Path, first: int, rows: Batch, made_from: str) -> dict[int, str]:
    """Writes the photos that can be read into the store; returns their file as in `Run.files`.

    Args:
        workdir: folder of the run.
        first: row of the store of the first of these photos.
        rows: what `embed` has returned, without photos that cannot be read; if there are none,
            there is no file.
        made_from: fingerprint of the network, and of photos that are no files, see `kept_in`.
    """
    if not (files := rows["thumbnail"].tolist()):
        return {}
    pictures = Pictures(first + np.arange(len(files)), files)
    fingerprint = _fingerprint(rows, made_from)
    return stores.write(workdir, first, rows["backbone"], pictures, fingerprint)


def _fingerprint(rows: Batch, made_from: str) -> str:
    """Returns the fingerprint of a file of the store; for the arguments see `_write`."""
    digests = rows["facts"]["digest"].tobytes() if "facts" in rows else b""
    return workdirs.fingerprint(made_from.encode(), digests)


def kept_in(workdir: epath.Path, about: Mapping[str, Any]) -> Parts:
    """Returns where the embedding of new photos is kept until the state that has them is written.

    Its rows are known by the contents of their photos, in order: those before the first other photo
    are used.

    Args:
        workdir: folder of the run.
        about: JSON values that tell the network, and photos that are no files.
    """
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    return Parts(workdir / "store", made_from)


def of_run(run: Run) -> Dataset:
    """Returns the photos of a run in its order, as the store has them: no file is read.

    Only `load` reads a file, and raises an `OSError` if it is away or has another content.
    """
    names = run.names
    place = str(run.config["data"]["dir"])
    pictures = run.pictures()
    places = pictures.places(run.columns["row"])

    def load(i: int) -> Item:
        assert names is not None
        content = image_files.reader(place)(names[i])
        if run.facts is None or hashlib.sha256(content).digest() != run.facts["file"][i].tobytes():
            raise FileNotFoundError(f"{names[i]} has another content now")
        return decode.preview(content) if decode.is_raw(names[i]) else content

    return Dataset(
        name=run.config["data"]["name"],
        size=len(run.columns),
        shape=pictures.fetch(places[:1]).shape[1:],
        images=None,
        fetch=lambda indices: pictures.fetch(places[indices]),
        labels=run.truth,
        label_names=run.label_names,
        sources=names,
        load=None if names is None else load,
        facts=None if run.facts is None else run.facts.__getitem__,
        skipped=run.skipped,
        ignored=tuple(run.source["ignored"].items()),
    )


def now(
    run: Run,
    more: Sequence[str],
    gone: Sequence[str],
    exclude: Sequence[str],
    confirmed: bool,
) -> Now:
    """Returns the photos of the next state of a run, of which new ones are embedded.

    Args:
        run: the run before the update.
        more: further folders or files.
        gone: folders of the run that a person gives up.
        exclude: globs of files that are left out from now on.
        confirmed: whether somebody has confirmed that more than half of the photos may leave.

    Raises:
        InputError: see `sources.find` and `match.check_leaving`; or no photo is left.
    """
    present, comparison, is_kept = compared(run, more, gone, exclude)
    do = "name the folder in which they are now"
    match.check_leaving(run, int((~is_kept).sum()), 0, confirmed, do)
    dataset = present.dataset
    comparison, made, skipped = _embedded(comparison, dataset)
    found = comparison.joined(is_kept, made)
    folders = "\n".join(present.folders)
    data = {**run.config["data"], "dir": folders, "exclude": list(present.exclude)}
    root = image_files.root(folders)
    names = tuple(os.path.relpath(path, root) for path in found.after.names or ())
    if not names:
        must = "PHOTOS must have an image that can be read"
        raise InputError(f"{must}; got none of {run.workdir}")
    after = dataclasses.replace(
        found.after,
        config={**run.config, "data": data},
        names=names,
        skipped=(*dataset.skipped, *skipped),
        source={**found.after.source, "ignored": dict(dataset.ignored)},
    )
    # A photo that was turned is the same one.
    return found._replace(after=sources.with_truth(after), changed=None)


def compared(
    run: Run, more: Sequence[str] = (), gone: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Present, Comparison, NDArray]:
    """Compares the photos that are in the folders of a run now, and in others, with the run.

    A photo of the run that is found neither under its name nor elsewhere is in one of these cases,
    see `sources.Present.may_be_there`:

    - Its folder is not there, cannot be read or has no photo: it stays, and the folder is away.
    - Its file, or a folder above it, cannot be read, or its file cannot be decoded: it stays. The
      file is away, if it is there.
    - Its folder is there without it, another picture is under its name, it is excluded, or a person
      has given the folder up: it leaves.

    A folder that is not there and of which all photos are elsewhere has moved: it is no folder of
    the run any longer.

    Args:
        run: the run before the update; of a training, images that it left out are new.
        more: further folders or files.
        gone: folders of the run that a person gives up.
        exclude: globs of files that are left out from now on.

    Returns:
        The photos that are there, without the folders that have moved; the comparison, whose run
        has in `away` what cannot be read; and which rows of that run stay, bool `[n]`: also those
        that may be there, see `sources.Present`.

    Raises:
        InputError: see `sources.find`.
    """
    present = sources.find(run, more, gone, exclude)
    run = dataclasses.replace(run, names=changes.paths(run))
    comparison = match.compare(run, present.paths, present.facts)
    is_kept = comparison.known >= 0
    names = comparison.run.names or ()
    missing = np.flatnonzero(~is_kept).tolist()
    away = [row for row in missing if present.may_be_there(names[row])]
    away += _overwritten(comparison, is_kept, present.dataset)
    is_kept[away] = True
    paths = [names[row] for row in away]
    folders = [line for line in present.missing if any(is_at(path, line) for path in paths)]
    files = [path for path in paths if path in present.unreadable or path in present.paths]
    run = dataclasses.replace(comparison.run, away=(*folders, *files))
    not_away = [line for line in present.missing if line not in folders]
    moved = [line for line in not_away if not os.path.lexists(line)]
    present = present._replace(folders=tuple(f for f in present.folders if f not in moved))
    return present, comparison._replace(run=run), is_kept


def _overwritten(comparison: Comparison, is_kept: NDArray, dataset: Dataset) -> list[int]:
    """Returns the rows of photos whose files are there and can no longer be decoded.

    A file that was cut by a full disk or a failing card is not another photo.

    Args:
        comparison: the comparison with the run.
        is_kept: bool `[n]`, the rows of its run that stay for sure.
        dataset: the photos that are there.
    """
    names = comparison.run.names or ()
    places = {(comparison.names or ())[place]: place for place in comparison.new.tolist()}
    rows = [row for row in np.flatnonzero(~is_kept).tolist() if names[row] in places]
    if not rows or dataset.unreadable is None:
        return []
    reasons = dataset.unreadable(np.array([places[names[row]] for row in rows]))
    return [row for row, reason in zip(rows, reasons, strict=True) if reason is not None]


def _embedded(
    comparison: Comparison, dataset: Dataset
) -> tuple[Comparison, NDArray, tuple[tuple[str, str], ...]]:
    """Embeds the photos that are new, or turned.

    Args:
        comparison: the comparison with the run.
        dataset: the photos that are there.

    Returns:
        The comparison, without those that cannot be read; the features of its turned and new
        photos, float `[l, d]`; and (path, reason) of each of their files that cannot be read,
        beside those of `dataset`.
    """
    run = comparison.run
    assert run.store is not None
    asked = comparison.to_embed
    if not len(asked):
        return comparison, run.store[:0], ()
    fresh = images.select(dataset, asked)
    encoder = run.encoder()
    kept = kept_in(run.workdir, {workdirs.WEIGHTS: encoder.checksum})
    made = embed(fresh, encoder, run.config["eval"]["batch_size"], kept)
    rows = readable_rows({**made, "index": asked})
    written = _write(run.workdir, len(run.store), rows, kept.fingerprint)
    comparison = comparison._replace(
        run=dataclasses.replace(run, files={**run.files, **written}),
        changed=comparison.changed & np.isin(comparison.known, rows["index"]),
        new=comparison.new[np.isin(comparison.new, rows["index"])],
    )
    skipped = readable_images(fresh, made).skipped
    return comparison, rows["backbone"], skipped[len(fresh.skipped) :]
