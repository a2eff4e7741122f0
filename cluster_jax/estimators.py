"""scikit-learn's face of the whole pipeline: images in, clusters out."""

import contextlib
import csv
import io
import numbers
import os
import pathlib
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cluster_jax import assemble, finished, pipeline, settings, storage
from cluster_jax.clustering.gridshift import Location
from cluster_jax.data import arrays, datasets, unseen
from cluster_jax.data.datasets import Dataset

_SELF = "estimator.json"
# Files that a warning names.
_NAMED = 5


class ImageClusterer(TransformerMixin, ClusterMixin, BaseEstimator):
    """Clusters images without labels: trains a network on them, then finds the clusters.

    Images are a folder of files (a path), a `.npy` or `.npz` file, or an array `[n, H, W]` or
    `[n, H, W, C]` of uint8 or of floats in [0, 1], C 1 or 3. Whatever is trained lies in a folder,
    the workdir; `save` copies it, `load` reads it, nothing is pickled.

    Args:
        config: name or path of a config, or a config itself; see `configs/images.py`.
        overrides: values of the config by dotted keys, like the flags of `cluster_jax.main`:
            `{"train.duration": "500 steps", "seed": 1}`.
        workdir: where to train; the same images and settings go on there after an interruption
            and are not trained again. None: a temporary folder, deleted with the estimator.
        n_clusters: None: GridShift finds the number; a number: that many by k-means.
        verbose: whether to print progress.

    Attributes:
        labels_: int64 `[n]`, the cluster of each image, in the order of `files_` or of the array.
        distances_: float64 `[n]`, to the centre of the own cluster: in bandwidths of GridShift's
            space, or, with `n_clusters`, Euclidean between features of length one.
        outliers_: bool `[n]`, images that GridShift found apart from all modes, also with
            `n_clusters`.
        n_clusters_: number of clusters: GridShift's without those too small to count, which hold
            outliers; of k-means those that are not empty.
        files_: path of each image relative to the folder; None for an array.
        results_: what `results.json` holds: figures and their protocol.
    """

    def __init__(
        self,
        config: str | Mapping[str, Any] = "images",
        *,
        overrides: Mapping[str, Any] | None = None,
        workdir: str | os.PathLike | None = None,
        n_clusters: int | None = None,
        verbose: bool = True,
    ) -> None:
        self.config = config
        self.overrides = overrides
        self.workdir = workdir
        self.n_clusters = n_clusters
        self.verbose = verbose

    def fit(self, X: str | os.PathLike | ArrayLike, y: None = None) -> Self:
        """Trains on images and clusters them.

        Args:
            X: the images.
            y: ignored.

        Returns:
            The estimator.

        Raises:
            ValueError: the images or a setting cannot be used, or the workdir holds another run.
        """
        made, name = self._config()
        dataset = _training_images(X, made)
        if self.workdir is None:
            workdir = pathlib.Path(tempfile.mkdtemp(prefix="cluster_jax_"))
            weakref.finalize(self, shutil.rmtree, workdir, ignore_errors=True)
        else:
            workdir = pathlib.Path(self.workdir).expanduser()
        with self._voice():
            pipeline.run(made, workdir, name, dataset)
        storage.write_json(workdir / _SELF, {"n_clusters": self.n_clusters})
        return self._adopt(workdir)

    def fit_transform(self, X: str | os.PathLike | ArrayLike, y: None = None) -> NDArray:
        """`fit`, then the features of the training images."""
        return self.fit(X)._run.features

    def transform(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Features of images as they are clustered: float32 `[m, d]`, rows of length one.

        Files of a folder are taken in the order of their paths; a warning names those that cannot
        be read and have no row.
        """
        check_is_fitted(self, "labels_")
        if self._trained is None:
            self._trained = finished.restore(self._run)
        shape = tuple(self._run.images["shape"])
        resident = self._run.results["config"]["data"]["resident_mb"]
        dataset = unseen.load(X, shape=shape, resident_mb=resident)
        if dataset.skipped:
            warnings.warn(_left_out(dataset.skipped), UserWarning, stacklevel=2)
        with self._voice():
            return finished.embed(self._run, self._trained, dataset)

    def predict(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Cluster of each image, int64 `[m]`; images do not affect each other.

        Files of a folder are taken as by `transform`: unreadable ones have no label.
        """
        return self.locate(X).labels

    def locate(self, X: str | os.PathLike | ArrayLike) -> Location:
        """Labels, distances and outliers of new images.

        Here an outlier is an image unlike any that the network was trained on: farther from all of
        their features than 99 % of them are from each other (`placement.reach`).

        Raises:
            ValueError: images that cannot be used, or the run was reduced by t-SNE.
        """
        check_is_fitted(self, "labels_")
        if self.n_clusters is None:
            finished.check(self._run)
            return Location(*finished.place(self._run, self.transform(X)))
        return Location(*finished.place_kmeans(self._run, self.transform(X)))

    def report(self, path: str | os.PathLike) -> pathlib.Path:
        """Copies the report, one HTML file that opens offline, to `path`."""
        check_is_fitted(self, "labels_")
        return pathlib.Path(shutil.copyfile(self._run.workdir / "report.html", path))

    def save(self, path: str | os.PathLike) -> pathlib.Path:
        """Copies the workdir to the folder `path`, which must not be there or be empty.

        Raises:
            FileExistsError: there is something in `path`.
        """
        check_is_fitted(self, "labels_")
        path = pathlib.Path(path).expanduser()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"there is something in {path} already; give a new folder")
        return pathlib.Path(shutil.copytree(self._run.workdir, path, dirs_exist_ok=True))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """The fitted estimator of a saved folder, or of any finished run's workdir.

        Its `config` is that of the run in full, its `workdir` None: `fit` starts afresh.

        Raises:
            ValueError: no finished run in `path`.
        """
        run = finished.read(path)
        own = storage.read_json(run.workdir / _SELF) if (run.workdir / _SELF).exists() else {}
        made = cls(run.results["config"], n_clusters=own.get("n_clusters"))
        return made._adopt(run.workdir)

    def _config(self) -> tuple[ConfigDict, str]:
        """The config with the overrides, and a name for it."""
        if isinstance(self.config, str | os.PathLike):
            made, name = settings.load(str(self.config)), pathlib.Path(self.config).stem
        else:
            made, name = ConfigDict(assemble.plain(self.config)), "images"
        for key, value in (self.overrides or {}).items():
            _override(made, key, value)
        if self.n_clusters is not None:
            if not isinstance(self.n_clusters, numbers.Integral):
                raise settings.InputError(
                    f"n_clusters must be None or a whole number; got {self.n_clusters!r}"
                )
            _override(made, "eval.kmeans.k", self.n_clusters)
        return made, name

    def _adopt(self, workdir: pathlib.Path) -> Self:
        """Takes over what the run in `workdir` found."""
        run = finished.read(workdir)
        if run.known:
            raise settings.InputError(
                f"{workdir} holds a run of novel class discovery, which this estimator does not "
                "read; use cluster_jax.predict"
            )
        self._run, self._trained = run, None
        by_kmeans = self.n_clusters is not None
        name = "kmeans_clusters" if by_kmeans else "clusters"
        self.labels_ = run.clusters[name].astype(np.int64)
        self.distances_ = (
            finished.kmeans_distances(run, run.features, self.labels_)
            if by_kmeans
            else run.clusters["distances"].astype(np.float64)
        )
        self.outliers_ = run.clusters["outliers"]
        counted = self.labels_ if by_kmeans else self.labels_[~self.outliers_]
        self.n_clusters_ = len(np.unique(counted))
        self.files_ = _files(run)
        self.results_ = dict(run.results)
        return self

    @contextlib.contextmanager
    def _voice(self) -> Iterator[None]:
        """Silence for the pipeline unless `verbose`."""
        with contextlib.ExitStack() as stack:
            if not self.verbose:
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield


def load(path: str | os.PathLike) -> ImageClusterer:
    """The fitted `ImageClusterer` of a saved folder, or of any finished run's workdir."""
    return ImageClusterer.load(path)


def _training_images(X: str | os.PathLike | ArrayLike, made: ConfigDict) -> Dataset:
    """The images of `X`, and where they come from noted in the config."""
    made.data.dir = None
    if not isinstance(X, str | os.PathLike):
        made.data.name = "arrays"
        section = made.data
        return arrays.in_hand(X, canvas=section.canvas, resident_mb=section.resident_mb)
    file = str(X).endswith((".npy", ".npz"))
    made.data.name, made.data.dir = "arrays" if file else "folder", os.fspath(X)
    return settings.bind(datasets.load, "data", made.data.to_dict())


def _override(made: ConfigDict, key: str, value: Any) -> None:
    """Sets one value of a config by its dotted key.

    Raises:
        InputError: no such key, or a value of another type.
    """
    *sections, name = key.split(".")
    place = made
    for section in sections:
        place = place[section] if isinstance(place, ConfigDict) and section in place else None
    if not isinstance(place, ConfigDict) or name not in place:
        raise settings.InputError(
            f"the config has no {key!r}; see configs/base.py for the keys, such as 'train.duration'"
        )
    try:
        place[name] = storage.plain(value)  # NumPy's integers are no int
    except TypeError as error:
        raise settings.InputError(f"{key} = {value!r} is of the wrong type: {error}") from error


def _left_out(skipped: Sequence[tuple[str, str]]) -> str:
    """Which files have no row, the first few by name."""
    names = ", ".join(name for name, _ in skipped[:_NAMED])
    more = f" and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
    files = "file" if len(skipped) == 1 else "files"
    return f"{len(skipped):,} {files} could not be read and have no row: {names}{more}"


def _files(run: finished.Finished) -> tuple[str, ...] | None:
    """Names of the training images from the run's table, None where they are only numbered."""
    if run.results["config"]["data"]["name"] != "folder":
        return None
    text = (run.workdir / "assignments.csv").read_bytes().decode("utf-8", "surrogateescape")
    return tuple(row["image"] for row in csv.DictReader(io.StringIO(text)))
