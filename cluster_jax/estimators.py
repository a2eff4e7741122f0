"""scikit-learn estimator for the full pipeline."""

import contextlib
import csv
import numbers
import os
import pathlib
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, Self

import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cluster_jax.clustering.gridshift import Location
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, override, parse_section
from cluster_jax.data import arrays, datasets, inference_data, splits
from cluster_jax.data.datasets import DataConfig, Dataset
from cluster_jax.pipeline import inference
from cluster_jax.pipeline import run as pipeline
from cluster_jax.pipeline.config import config_json

_SELF = "estimator.json"
# Files that a warning names.
_NAMED = 5


class ImageClusterer(TransformerMixin, ClusterMixin, BaseEstimator):
    """Clusters images without labels: trains a network on them, then finds the clusters.

    With classes given for some of them, `fit(X, y)`, it sorts the others into novel classes (novel
    class discovery, NCL): all images with y = -1 are taken to be of none of the given classes.

    Images are a folder of files (a path), a `.npy` or `.npz` file, or an array `[n, H, W]` or
    `[n, H, W, C]` of uint8 or of floats in [0, 1], C 1 or 3. Whatever is trained lies in a folder,
    the workdir; `save` copies it, `load` reads it, nothing is pickled.

    Args:
        config: name or path of a config, or a config itself; None: `"images"`, with classes
            `"ncl_images"`.
        overrides: values of the config by dotted keys, like the flags of `cluster_jax.main`:
            `{"train.duration": "500 steps", "seed": 1}`.
        workdir: where to train; the same images and settings go on there after an interruption
            and are not trained again. None: a temporary folder, deleted with the estimator.
        n_clusters: None: GridShift finds the number; a number: that many by k-means. With classes
            the number of novel ones, which has to be given here or in the config.
        verbose: whether to print progress.

    Attributes:
        labels_: int64 `[n]`, the cluster of each image, in the order of `files_` or of the array;
            with classes str `[n]`, the given class or "novel 0", "novel 1", ...
        distances_: float64 `[n]`, to the center of the own cluster: in bandwidths of GridShift's
            space, or, with `n_clusters` or classes, Euclidean between features of length one.
        outliers_: bool `[n]`, images that GridShift found apart from all modes, also with
            `n_clusters`; it is not asked about images with a given class.
        n_clusters_: number of clusters: GridShift's without those too small to count, which hold
            outliers; of k-means, and of novel classes, those that are not empty.
        files_: path of each image relative to the folder; None for an array.
        results_: what `results.json` holds: metrics and their provenance.
    """

    _run: inference.TrainedRun
    _trained: inference.Trained | None  # Restored by the first `transform`.

    def __init__(
        self,
        config: str | os.PathLike | Mapping[str, Any] | None = None,
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

    def fit(self, X: str | os.PathLike | ArrayLike, y: ArrayLike | None = None) -> Self:
        """Trains on images and clusters them.

        Args:
            X: the images.
            y: None; or the class of each image, a whole number or a name, -1 where it is not
                known. Files of a folder are in the order of their paths.

        Returns:
            The estimator.

        Raises:
            ValueError: the images, the classes or a setting cannot be used, or the workdir holds
                another run.
        """
        made, name = self._config(y is not None)
        dataset = _training_images(X, made)
        if y is not None:
            dataset = splits.with_partial_labels(dataset, y)
            made.novel.update(classes=None, test_split=None, holdout=0.0)  # y says it instead
        if self.workdir is None:
            workdir = pathlib.Path(tempfile.mkdtemp(prefix="cluster_jax_"))
            weakref.finalize(self, shutil.rmtree, workdir, ignore_errors=True)
        else:
            workdir = pathlib.Path(self.workdir).expanduser()
        with self._voice():
            pipeline.run_pipeline(made, workdir, name, dataset)
        io.write_json(workdir / _SELF, {"n_clusters": self.n_clusters})
        return self._adopt(workdir)

    def fit_predict(self, X: str | os.PathLike | ArrayLike, y: ArrayLike | None = None) -> NDArray:
        """`fit`, then `labels_`."""
        return self.fit(X, y).labels_

    def fit_transform(
        self, X: str | os.PathLike | ArrayLike, y: ArrayLike | None = None
    ) -> NDArray:
        """`fit`, then the features of the training images."""
        return self.fit(X, y)._run.everything

    def transform(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Features of images as they are clustered: float32 `[m, d]`, rows of length one.

        Files of a folder are taken in the order of their paths; a warning names those that cannot
        be read and have no row.
        """
        check_is_fitted(self, "labels_")
        if self._trained is None:
            self._trained = inference.restore(self._run)
        shape = tuple(self._run.images["shape"])
        resident = self._run.config.data.cache_mb
        dataset = inference_data.load(X, shape=shape, cache_mb=resident)
        if dataset.skipped:
            warnings.warn(_left_out(dataset.skipped), UserWarning, stacklevel=2)
        with self._voice():
            return inference.embed(self._run, self._trained, dataset)

    def predict(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Cluster of each image as in `labels_`, `[m]`; images do not affect each other.

        Files of a folder are taken as by `transform`: unreadable ones have no label.
        """
        return self.locate(X).labels

    def locate(self, X: str | os.PathLike | ArrayLike) -> Location:
        """Labels, distances and outliers of new images.

        Here an outlier is an image unlike any that the network was trained on: farther from all of
        their features than 99 % of them are from each other (`out_of_sample.novelty_threshold`).

        Raises:
            ValueError: images that cannot be used, or the run was reduced by t-SNE.
        """
        check_is_fitted(self, "labels_")
        if self._run.known:
            return Location(*inference.classify(self._run, self.transform(X)))
        if self.n_clusters is None:
            inference.check(self._run)
            return Location(*inference.place(self._run, self.transform(X)))
        return Location(*inference.place_kmeans(self._run, self.transform(X)))

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
        run = inference.read(path)
        own = io.read_json(run.workdir / _SELF) if (run.workdir / _SELF).exists() else {}
        made = cls(run.results["config"], n_clusters=own.get("n_clusters"))
        return made._adopt(run.workdir)

    def _config(self, classes: bool) -> tuple[ConfigDict, str]:
        """The config with the overrides, and a name for it; `classes`: whether some are given."""
        config = self.config
        if config is None:
            config = "ncl_images" if classes else "images"
        if isinstance(config, str | os.PathLike):
            made, name = load_config(str(config)), pathlib.Path(config).stem
        else:
            made, name = ConfigDict(config_json(config)), "images"
        for key, value in (self.overrides or {}).items():
            override(made, key, value)
        if self.n_clusters is not None:
            if not isinstance(self.n_clusters, numbers.Integral):
                raise InputError(
                    f"n_clusters must be None or a whole number; got {self.n_clusters!r}"
                )
            override(made, "eval.kmeans.k", self.n_clusters)
        discovers = made.train.labeled_batch_size is not None
        if classes and not discovers:
            raise InputError(
                f"y gives classes, and a training by the config {name!r} uses none; leave y out, "
                "or take the config 'ncl_images'"
            )
        if discovers and not classes:
            raise InputError(
                f"the config {name!r} discovers classes beside known ones; give those as y, or "
                "take the config 'images'"
            )
        if classes and self.n_clusters is not None:
            override(made, "method.classes", self.n_clusters)
        if classes and made.method.classes is None:
            raise InputError(
                "with y, n_clusters must be the number of novel classes; got None (fit without y "
                "finds a number of clusters)"
            )
        return made, name

    def _adopt(self, workdir: pathlib.Path) -> Self:
        """Takes over what the run in `workdir` found."""
        run = inference.read(workdir)
        self._run, self._trained = run, None
        self.files_ = _files(run)
        self.results_ = dict(run.results)
        if run.known:
            self._adopt_classes()
            return self
        by_kmeans = self.n_clusters is not None
        labels = run.clusters.kmeans_labels if by_kmeans else run.clusters.cluster_labels
        self.labels_ = labels.astype(np.int64)
        self.distances_ = (
            inference.kmeans_distances(run, run.features, self.labels_)
            if by_kmeans
            else run.clusters.distances.astype(np.float64)
        )
        self.outliers_ = run.clusters.outliers
        counted = self.labels_ if by_kmeans else self.labels_[~self.outliers_]
        self.n_clusters_ = len(np.unique(counted))
        return self

    def _adopt_classes(self) -> None:
        """Takes over what a run of novel class discovery found."""
        run = self._run
        classes, unlabeled = inference.class_labels(run), run.clusters.unlabeled_rows
        self.labels_ = inference.class_names(run, classes)
        self.distances_ = inference.class_distances(run, run.everything, classes)
        self.outliers_ = np.zeros(len(classes), bool)
        self.outliers_[unlabeled] = run.clusters.outliers
        self.n_clusters_ = len(np.unique(classes[unlabeled]))
        inference.warn_of_doubts(run)

    @contextlib.contextmanager
    def _voice(self) -> Iterator[None]:
        """Silence for the pipeline unless `verbose`; what it warns of is heard at its end."""
        warned = []
        try:
            with contextlib.ExitStack() as stack:
                if not self.verbose:
                    warned = stack.enter_context(warnings.catch_warnings(record=True))
                    stack.enter_context(contextlib.redirect_stdout(StringIO()))
                    stack.enter_context(contextlib.redirect_stderr(StringIO()))
                yield
        finally:
            for one in warned:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def load(path: str | os.PathLike) -> ImageClusterer:
    """The fitted `ImageClusterer` of a saved folder, or of any finished run's workdir."""
    return ImageClusterer.load(path)


def _training_images(X: str | os.PathLike | ArrayLike, made: ConfigDict) -> Dataset:
    """The images of `X`, and where they come from noted in the config."""
    made.data.dir = None
    if not isinstance(X, str | os.PathLike):
        made.data.name = "arrays"
        section = made.data
        return arrays.from_array(X, image_size=section.image_size, cache_mb=section.cache_mb)
    file = str(X).endswith((".npy", ".npz"))
    made.data.name, made.data.dir = "arrays" if file else "folder", os.fspath(X)
    return datasets.load(parse_section(DataConfig, "data", made.data))


def _left_out(skipped: Sequence[tuple[str, str]]) -> str:
    """Which files have no row, the first few by name."""
    names = ", ".join(name for name, _ in skipped[:_NAMED])
    more = f" and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
    files = "file" if len(skipped) == 1 else "files"
    return f"{len(skipped):,} {files} could not be read and have no row: {names}{more}"


def _files(run: inference.TrainedRun) -> tuple[str, ...] | None:
    """Names of the training images from the run's table, None where they are only numbered."""
    if run.config.data.name != "folder":
        return None
    text = (run.workdir / "assignments.csv").read_bytes().decode("utf-8", "surrogateescape")
    return tuple(row["image"] for row in csv.DictReader(StringIO(text)))
