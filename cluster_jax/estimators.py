"""scikit-learn estimator for the full pipeline."""

import contextlib
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

from cluster_jax.clustering import tree
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, override, override_all, parse_section
from cluster_jax.data import datasets, inference_data, splits
from cluster_jax.data.datasets import DataConfig, Dataset
from cluster_jax.pipeline import export, inference
from cluster_jax.pipeline import run as pipeline
from cluster_jax.pipeline.config import config_json

# Written into the workdir: the parameter that the config does not have.
_PARAMETERS = "estimator.json"
_LISTED = 5  # unreadable files that a warning names


class ImageClusterer(TransformerMixin, ClusterMixin, BaseEstimator):
    """Clusters images without labels: embeds them by a network, then finds clusters.

    If some classes are known, `fit(X, y)` sorts the images with y = -1 into novel classes (NCL); it
    assumes that none of them belongs to a known class.

    Images are the path of a folder of files, a `.npy` or `.npz` file, or an array `[n, H, W]` or
    `[n, H, W, C]` of uint8 or of floats in [0, 1], with C 1 or 3; for a config of features a file
    or an array `[n, d]` or `[n, v, d]`. The trained model is kept in a folder, the workdir: `save`
    copies it, `load` reads it, and nothing is pickled.

    Args:
        config: name or path of a config, or a config itself; None: `"images"`, or `"ncl_images"`
            with classes.
        overrides: config values by dotted key, as the flags of `cluster_jax.main`:
            `{"train.duration": "500 steps", "seed": 1}`.
        workdir: folder for the training. With the same images and config, an interrupted `fit`
            resumes there and a finished one is not repeated. None: a temporary folder, deleted
            together with the estimator.
        n_clusters: number of clusters, found by k-means; None: GridShift finds the number. With
            classes, the number of novel classes, which must be set here or in the config.
        verbose: whether to print progress.

    Attributes:
        labels_: int64 `[n]`, cluster of each image, in the order of `files_` or of the array; with
            classes str `[n]`, the known class or "novel 0", "novel 1", ...
        distances_: float64 `[n]`, distance to the center of the assigned cluster, in bandwidths of
            GridShift's space; with `n_clusters` or classes, Euclidean between unit features.
        outliers_: bool `[n]`, images that GridShift found far from all modes, also with
            `n_clusters`; False for images of known classes.
        n_clusters_: number of clusters: of GridShift without those too small to count, whose images
            are outliers; of k-means and of novel classes the nonempty ones.
        files_: path of each image relative to the folder; None for an array.
        results_: content of `results.json`: metrics and their provenance.
        linkage_: tree of the clusters `np.unique(labels_)`, for `cut_tree(linkage_, n_groups)`.
    """

    labels_: NDArray
    _run: inference.TrainedRun
    _trained: inference.Trained | None  # Restored on the first `transform`.

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
            y: None, or the class of each image: a whole number or a name, -1 if unknown. Files of a
                folder are in the order of their paths.

        Returns:
            The estimator.

        Raises:
            ValueError: the images, the classes or a parameter are invalid, or the workdir has a
                different run.
        """
        config, name = self._build_config(has_classes=y is not None)
        dataset = _training_images(X, config)
        if y is not None:
            dataset = splits.with_partial_labels(dataset, y)
            # y replaces the classes and the test images that the config may name.
            config.novel.update(classes=None, test_split=None, holdout=0.0)
        if self.workdir is None:
            workdir = pathlib.Path(tempfile.mkdtemp(prefix="cluster_jax_"))
            weakref.finalize(self, shutil.rmtree, workdir, ignore_errors=True)
        else:
            workdir = pathlib.Path(self.workdir).expanduser()
        with self._quiet():
            pipeline.run_pipeline(config, workdir, name, dataset)
        io.write_json(workdir / _PARAMETERS, {"n_clusters": self.n_clusters}, checksum=True)
        return self._read_run(workdir)

    def fit_predict(self, X: str | os.PathLike | ArrayLike, y: ArrayLike | None = None) -> NDArray:
        """`fit`, then `labels_`."""
        return self.fit(X, y).labels_

    def fit_transform(
        self, X: str | os.PathLike | ArrayLike, y: ArrayLike | None = None
    ) -> NDArray:
        """`fit`, then the features of the training images."""
        return self.fit(X, y)._run.all_features

    def transform(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Features of images as they are clustered, float32 `[m, d]`, unit rows.

        Files of a folder are in the order of their paths. Unreadable files have no row, and a
        warning lists them.
        """
        check_is_fitted(self, "labels_")
        if self._trained is None:
            self._trained = inference.restore(self._run)
        dataset = inference_data.load(X, self._run.config.data, self._run.images["shape"])
        if dataset.skipped:
            warnings.warn(_skipped_files(dataset.skipped), UserWarning, stacklevel=2)
        with self._quiet():
            return inference.embed(self._run, self._trained, dataset)

    def predict(self, X: str | os.PathLike | ArrayLike) -> NDArray:
        """Cluster of each image as in `labels_`, `[m]`, independent of the other images.

        Files of a folder are read as in `transform`: unreadable ones have no label.
        """
        return self.locate(X).labels

    def locate(self, X: str | os.PathLike | ArrayLike) -> inference.Assignment:
        """Labels, distances and `is_novel` of new images, see `inference.Assignment`.

        Raises:
            ValueError: the images are invalid, or the run used t-SNE.
        """
        check_is_fitted(self, "labels_")
        if self._run.known:
            return inference.classify(self._run, self.transform(X))
        if self.n_clusters is None:
            inference.check(self._run)
            return inference.place(self._run, self.transform(X))
        return inference.place_kmeans(self._run, self.transform(X))

    def nearest(self, X: str | os.PathLike | ArrayLike, n: int = 5) -> inference.Nearest:
        """The `n` training images most similar to each image, see `inference.Nearest`.

        A training image is its own nearest. Unreadable files have no row, as in `transform`.
        """
        check_is_fitted(self, "labels_")
        checks.whole("n", n, 1)
        return inference.nearest(self._run, self.transform(X), n)

    def export(self, path: str | os.PathLike) -> None:
        """Writes a folder per cluster with links to the training images, see `export.write`."""
        check_is_fitted(self, "labels_")
        export.training_images(self._run, self.labels_, path)

    def report(self, path: str | os.PathLike) -> pathlib.Path:
        """Copies the report, one HTML file that opens offline, to `path`."""
        check_is_fitted(self, "labels_")
        return pathlib.Path(shutil.copyfile(self._run.workdir / "report.html", path))

    def save(self, path: str | os.PathLike) -> pathlib.Path:
        """Copies the workdir to the folder `path`, which must be new or empty.

        Raises:
            FileExistsError: `path` is a file or a folder that is not empty.
        """
        check_is_fitted(self, "labels_")
        path = pathlib.Path(path).expanduser()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"path must be a new or empty folder; got {path}")
        return pathlib.Path(shutil.copytree(self._run.workdir, path, dirs_exist_ok=True))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Loads the fitted estimator from a saved folder or the workdir of any finished run.

        Its `config` is the complete config of the run and its `workdir` is None, so that `fit`
        trains anew.

        Raises:
            ValueError: `path` has no finished run.
        """
        run = inference.read(path)
        file = run.workdir / _PARAMETERS
        parameters = io.read_json(file) if file.exists() else {}
        estimator = cls(run.results["config"], n_clusters=parameters.get("n_clusters"))
        return estimator._read_run(run.workdir)

    def _build_config(self, has_classes: bool) -> tuple[ConfigDict, str]:
        """The config with the overrides, and its name; `has_classes`: whether y is given."""
        source = self.config
        if source is None:
            source = "ncl_images" if has_classes else "images"
        if isinstance(source, str | os.PathLike):
            config, name = load_config(str(source)), pathlib.Path(source).stem
        else:
            config, name = ConfigDict(config_json(source)), "images"
        override_all(config, self.overrides or {})
        if self.n_clusters is not None:
            if not isinstance(self.n_clusters, numbers.Integral):
                raise InputError(
                    f"n_clusters must be None or a whole number; got {self.n_clusters!r}"
                )
            override(config, "eval.kmeans.k", self.n_clusters)
        uses_labels = config.train.labeled_batch_size is not None
        if has_classes and not uses_labels:
            raise InputError(
                f"y must be None for the config {name!r}, which trains without labels; got classes "
                "(the config 'ncl_images' uses them)"
            )
        if uses_labels and not has_classes:
            raise InputError(
                f"y must give the known classes for the config {name!r}; got None (the config "
                "'images' needs no classes)"
            )
        if has_classes and self.n_clusters is not None:
            override(config, "method.classes", self.n_clusters)
        if has_classes and config.method.classes is None:
            raise InputError(
                "with y, n_clusters must be the number of novel classes; got None (fit without y "
                "finds a number of clusters)"
            )
        return ConfigDict(config_json(config)), name

    def _read_run(self, workdir: pathlib.Path) -> Self:
        """Sets the fitted attributes from the run in `workdir`."""
        run = inference.read(workdir)
        self._run, self._trained = run, None
        self.files_ = inference.files(run)
        self.results_ = dict(run.results)
        if run.known:
            self._set_class_attributes()
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
        self.linkage_ = tree.cluster_linkage(run.features, self.labels_)
        return self

    def _set_class_attributes(self) -> None:
        """Sets the fitted attributes from a run of novel class discovery."""
        run = self._run
        classes, unlabeled = inference.class_labels(run), run.clusters.unlabeled_rows
        self.labels_ = inference.class_names(run, classes)
        self.distances_ = inference.class_distances(run, run.all_features, classes)
        self.outliers_ = np.zeros(len(classes), bool)
        self.outliers_[unlabeled] = run.clusters.outliers
        self.n_clusters_ = len(np.unique(classes[unlabeled]))
        self.linkage_ = tree.cluster_linkage(run.all_features, self.labels_)
        inference.warn_of_doubts(run)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Suppresses output unless `verbose`; warnings are issued again at the end."""
        caught = []
        try:
            with contextlib.ExitStack() as stack:
                if not self.verbose:
                    caught = stack.enter_context(warnings.catch_warnings(record=True))
                    stack.enter_context(contextlib.redirect_stdout(StringIO()))
                    stack.enter_context(contextlib.redirect_stderr(StringIO()))
                yield
        finally:
            for warning in caught:
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )


def load(path: str | os.PathLike) -> ImageClusterer:
    """Loads a fitted `ImageClusterer` from a saved folder or the workdir of any finished run."""
    return ImageClusterer.load(path)


def _training_images(X: str | os.PathLike | ArrayLike, config: ConfigDict) -> Dataset:
    """Loads the images of `X` and records their source in the config's section `data`."""
    section = config.data
    section.dir = os.fspath(X) if isinstance(X, str | os.PathLike) else None
    if section.name != "features":
        is_file = section.dir is None or section.dir.endswith((".npy", ".npz"))
        section.name = "arrays" if is_file else "folder"
    parsed = parse_section(DataConfig, "data", section)
    if isinstance(X, str | os.PathLike):
        return datasets.load(parsed)
    return datasets.from_array(parsed, X)


def _skipped_files(skipped: Sequence[tuple[str, str]]) -> str:
    """The warning about files without a row, with the names of the first few."""
    names = ", ".join(name for name, _ in skipped[:_LISTED])
    more = f" and {len(skipped) - _LISTED:,} more" if len(skipped) > _LISTED else ""
    files = "file" if len(skipped) == 1 else "files"
    return f"{len(skipped):,} {files} could not be read and have no row: {names}{more}"
