"""Clusters of images as a scikit-learn estimator, and those of a finished run."""

import abc
import contextlib
import dataclasses
import logging
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
from etils import epath
from ml_collections import ConfigDict
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.core import checks, io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, override, override_all, parse_section
from cluster_jax.data import datasets
from cluster_jax.data.datasets import DataConfig, Dataset, Images
from cluster_jax.discovery import splits
from cluster_jax.encoding import encoder
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.nets import pretrained
from cluster_jax.report import summary
from cluster_jax.runs import begin, config_paths, export, page, place
from cluster_jax.runs import run as records
from cluster_jax.runs import update as updates
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.place import Nearest
from cluster_jax.runs.run import Run
from cluster_jax.training.config import config_json, parse_config


class _OfRun(abc.ABC):
    """What the clusters of a finished run say of new images, or rows of embeddings."""

    @abc.abstractmethod
    def _fitted(self) -> Run:
        """Returns the run."""

    @abc.abstractmethod
    def _rows(self, X: Any) -> NDArray:
        """Returns features `[m, d]` of new images or rows."""

    def cut(self, *, n_clusters: int | None = None) -> NDArray:
        """Returns labels int64 `[n]` at another level of the tree.

        Groups of a coarser level are unions of the clusters of `labels_`, and a union has the
        lowest number of its clusters; those of a finer level are numbered by size, from 0.

        Args:
            n_clusters: number of groups, up to that of the tree's leaves; None: `labels_`.

        Raises:
            ValueError: there is no tree, or `n_clusters` is out of range.
        """
        return place.cut(self._fitted(), n_clusters=n_clusters)

    def assign(self, X: Any, *, n_clusters: int | None = None) -> Assignment:
        """Returns labels, distances, novelty and probabilities, see `clustering.base.Assignment`.

        New images or rows do not affect each other. With `n_clusters`, the labels are the groups of
        `cut`.

        Raises:
            ValueError: what is new is invalid, the run used t-SNE, or see `cut`.
        """
        run = self._fitted()
        labels = None if n_clusters is None else self.cut(n_clusters=n_clusters)
        place.check_places(run)
        placed = place.place(run, self._rows(X), labels)
        return placed._replace(labels=run.titles(placed.labels))

    def predict(self, X: Any, *, n_clusters: int | None = None) -> NDArray:
        """Returns the cluster of each new image or row as in `labels_`, `[m]`, or as in `cut`.

        It is that of most of the nearest ones of the run, see `runs.place.place`. Files of a
        folder are read as in `transform`: unreadable ones have no label.
        """
        return self.assign(X, n_clusters=n_clusters).labels

    def score_samples(self, X: Any) -> NDArray:
        """Returns how like those of the run new ones are, float64 `[m]`: minus their novelty."""
        return -self.assign(X).novelty

    def predict_proba(self, X: Any) -> NDArray:
        """Computes the probability of each of `np.unique(labels_)`, float64 `[m, k]`.

        Of an image of the run it is that of `probabilities_`, unless a person has corrected it.

        Raises:
            ValueError: what is new is invalid, or there is no tree of groups.
        """
        return place.probabilities(self._fitted(), self._rows(X))


class ImageClusterer(_OfRun, TransformerMixin, ClusterMixin, BaseEstimator):
    """Clusters images without labels: embeds them by a network, then finds clusters.

    The default network, EfficientNet-Lite2, was trained on the labels of ImageNet.

    If some classes are known, `fit(X, y)` sorts the images with y = -1 into novel classes (NCL); it
    assumes that none of them belongs to a known class.

    Images are the path of a folder, a `.zip` or a file, a list of folders and files, a `.npy` or
    `.npz` file, an array `[n, H, W]` or `[n, H, W, C]` of uint8 or of floats in [0, 1], with C 1 or
    3, or any sequence of images: paths, bytes, PIL images or arrays, as a column of Hugging Face's
    `datasets`, a set of torchvision or samples of WebDataset, see `data.decode.of_sample`. For a
    config of features they are a file or an array `[n, d]`. `save` writes the fitted
    model to a folder, `load` reads it, and nothing is pickled.

    Args:
        config: name or path of a config, or a config itself; None: `"images"`, or `"ncl_images"`
            with classes.
        overrides: config values by dotted key, as the flags of `cluster_jax.main`:
            `{"train.duration": "500 steps", "seed": 1}`.
        workdir: folder for the run. With the same images and config, an interrupted `fit` resumes
            there and a finished one is not repeated. None: a temporary one, deleted together with
            the estimator.
        n_clusters: number of clusters; None: it is found, as `eval.method` says. With classes, the
            number of novel classes, which must be set here or in the config.
        encoder: frozen network that embeds the images: `"lite2"`, a
            `.safetensors` file, or `"hf:ORG/NAME"`; None: that of the config.
        verbose: whether to print progress.

    Attributes:
        labels_: int64 `[n]`, cluster of each image, in the order of `files_` or of the array; with
            classes str `[n]`, the known class or "novel 0", "novel 1", ...
        probabilities_: float64 `[n]`, of each image's cluster; None where `tree_` is.
        tree_: float64 `[m - 1, 4]`, the tree of up to 16,000 images in SciPy's form, from
            which `cut` takes other groups than `labels_`; None if `eval.method` is "gridshift", and
            with classes.
        distances_: float64 `[n]`, distance to the center of the assigned cluster, see
            `clustering.base.Assignment`; for classes, Euclidean between unit features.
        outliers_: bool `[n]`, images of clusters too small to count. There are none if the number
            of clusters was given. False for images of known classes.
        n_clusters_: number of clusters, without those too small to count; of novel classes the
            nonempty ones.
        files_: path of each image relative to the folder; its number in a sequence; None for an
            array.
        results_: content of `results.json`: metrics and their provenance.
        changes_: what the last update has done to each cluster, see
            `cluster_jax.clustering.stable_ids.Event`.
        linkage_: tree of the clusters `np.unique(labels_)`, for `cut_tree(linkage_, n_groups)`:
            Ward's tree of their mean smooth rows, or without a tree, one of their mean features. It
            has no leaf for -1.
    """

    labels_: NDArray
    tree_: NDArray | None
    _run: Run
    _encoder: Encoder | None  # Read on the first `transform`.

    def __init__(
        self,
        config: str | os.PathLike | Mapping[str, Any] | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
        workdir: str | os.PathLike | None = None,
        n_clusters: int | None = None,
        encoder: str | None = None,
        verbose: bool = True,
    ) -> None:
        self.config = config
        self.overrides = overrides
        self.workdir = workdir
        self.n_clusters = n_clusters
        self.encoder = encoder
        self.verbose = verbose

    def fit(self, X: Images, y: ArrayLike | None = None) -> Self:
        """Trains on images and clusters them.

        Args:
            X: the images. In a list of paths a file counts once.
            y: None, or the class of each image that can be read: a whole number or a name, -1 if
                unknown. Files of a folder are in the order of their paths, where `2.jpg` comes
                before `10.jpg`; a list of files without a folder or `.zip` keeps its order.

        Returns:
            The estimator.

        Raises:
            ValueError: the images, the classes or a parameter are invalid, or the workdir has a
                different run.
        """
        config, name = self._build_config(has_classes=y is not None)
        with self._working():
            dataset = _training_images(X, config)
        datasets.warn(dataset.notes)
        if y is not None:
            dataset = splits.with_partial_labels(dataset, y)
            # y replaces the classes and the test images that the config may name.
            config.novel.update(classes=None, test_split=None, holdout=0.0)
        is_kept = self.workdir is not None
        if self.workdir is None:
            workdir = pathlib.Path(tempfile.mkdtemp(prefix="cluster_jax_"))
            weakref.finalize(self, shutil.rmtree, workdir, ignore_errors=True)
        else:
            workdir = pathlib.Path(self.workdir).expanduser()
        with self._working():
            begin.run_pipeline(config, workdir, name, dataset, report=is_kept)
            self._set_run(records.read(workdir))
        if skipped := [name for name, _ in self._run.skipped if not name.endswith("/")]:
            datasets.warn((), [(name, "") for name in skipped])
        discovered = self._run.results["metrics"].get("discovery")
        if discovered and (doubt := summary.doubt(discovered)):
            checks.warn(f"{doubt}; see the report's clusters", 2)
        return self

    def fit_predict(self, X: Images, y: ArrayLike | None = None) -> NDArray:
        """Fits the clusters and returns `labels_`."""
        return self.fit(X, y).labels_

    def fit_transform(self, X: Images, y: ArrayLike | None = None) -> NDArray:
        """Fits the clusters and returns the features of the images."""
        return self.fit(X, y)._run.features

    def transform(self, X: Images) -> NDArray:
        """Computes features of images as they are clustered, float32 `[m, d]`, unit rows.

        Files of a folder are in the order of their paths, where `2.jpg` comes before `10.jpg`; a
        list of files without a folder or `.zip` keeps its order and repeats, a row each. Unreadable
        files, also those of a list, have no row, and a warning has their number and their names, up
        to 200 characters; nor has a raw photo beside an image of its name, of which a warning says
        how many there are.
        """
        check_is_fitted(self, "labels_")
        with self._printing():
            encoder = self.encoder_
            data = parse_config(self._run.config).data
            dataset = datasets.load_new(X, data, self._run.images["shape"])
            rows = encoder.embed(dataset)
        datasets.warn(dataset.notes, dataset.skipped)
        return rows

    def _rows(self, X: Images) -> NDArray:
        return self.transform(X)

    def _fitted(self) -> Run:
        check_is_fitted(self, "labels_")
        return self._run

    @property
    def encoder_(self) -> Encoder:
        """The encoder that has made the features, which embeds any images of its size."""
        if self._encoder is None:
            self._encoder = self._fitted().encoder()
        return self._encoder

    def update(
        self,
        *folders: str | os.PathLike,
        gone: Sequence[str | os.PathLike] = (),
        exclude: Sequence[str] = (),
        refit: bool = False,
        confirmed: bool = False,
    ) -> Self:
        """Takes in what is new and gone in the run's folder of photos, as `cluster-jax update`.

        Args:
            folders: folders or files beside those of the run.
            gone: folders of the run that are gone for good, whose photos leave.
            exclude: globs of names or paths that are left out from now on.
            refit: whether all photos are clustered anew, and matched to the old clusters.
            confirmed: whether more than half of the photos may leave.

        Raises:
            ValueError: the run is none of photos of a folder in the clusters of the tree, or more
                than half of its photos would leave.
        """
        workdir = self._fitted().workdir
        if other := [folder for folder in folders if not isinstance(folder, str | os.PathLike)]:
            raise InputError(
                f"folders must be paths of folders or files; got {type(other[0]).__name__}: "
                "predict places images, and fit(all of them) finds clusters anew"
            )
        with self._working():
            updates.update_photos(
                workdir,
                [os.fspath(folder) for folder in folders],
                gone=[os.fspath(folder) for folder in gone],
                exclude=exclude,
                refit=refit,
                confirmed=confirmed,
                with_report=(workdir / workdirs.REPORT).exists(),
            )
        return self._set_run(records.read(workdir))

    def warm_up(self, n_images: int = encoder.BATCHES[-1]) -> Self:
        """Loads and compiles what places new images, so that no later call waits for it.

        Calls are padded to one image, eight or 64, each of which is compiled once, and needs memory
        in proportion.

        Args:
            n_images: the most images of a call that is not to wait.
        """
        shape = self._fitted().images["shape"]
        checks.whole("n_images", n_images, 1)
        for fewer, count in zip((0, *encoder.BATCHES), encoder.BATCHES, strict=False):
            if fewer < n_images:
                self.assign(np.zeros((count, *shape), np.uint8))
        return self

    def nearest(self, X: Images, n: int = 5) -> Nearest:
        """Returns the `n` images of the run most similar to each image, see `runs.place.Nearest`.

        An image of the run is its own nearest. Unreadable files have no row, as in `transform`.
        """
        checks.whole("n", n, 1)
        return place.nearest(self._fitted(), self.transform(X), n)

    def export(self, path: str | os.PathLike) -> None:
        """Writes folders of links to the images by cluster, as `cluster-jax report --export` does.

        Raises:
            InputError: the folder is not empty and has no earlier export of this run, or an
                image of the run is gone or has changed.
        """
        run = self._fitted()
        left_out, _ = export.check_of_run(path, run)
        export.run_clusters(run, path, left_out=left_out)

    def report(self, path: str | os.PathLike) -> pathlib.Path:
        """Writes the report, one HTML file that opens offline, to `path`."""
        run = self._fitted()
        if page.is_published(run, with_report=True):
            return pathlib.Path(shutil.copyfile(run.workdir / workdirs.REPORT, path))
        with self._working():
            text = page.render(run)
        io.write(path, text.encode("utf-8", "backslashreplace"))
        return pathlib.Path(path)

    def save(self, path: str | os.PathLike) -> pathlib.Path:
        """Copies the workdir to the folder `path`, which must be new or empty, with a report.

        Raises:
            FileExistsError: `path` is a file or a folder that is not empty.
            ValueError: the newest state in the workdir is that of another estimator or command, or
                a file of it is damaged or missing; nothing was copied.
        """
        run = self._fitted()
        path = pathlib.Path(path).expanduser()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            said = checks.sentence(f"path must be a new or empty folder; got {path}")
            raise FileExistsError(said)
        if workdirs.states(run.workdir)[-1:] != [run.number]:
            raise InputError(
                f"{run.workdir} must have state {run.number}, which is of this estimator, as its "
                "newest one; got another: `cluster_jax.load` reads that, or fit in another workdir"
            )
        records.read(run.workdir).pictures()  # Raises what would be wrong with the copy.
        shutil.copytree(run.workdir, path, dirs_exist_ok=True)
        copy = dataclasses.replace(run, workdir=epath.Path(path))
        if not page.is_published(copy, with_report=True):
            with self._working():
                page.publish(copy, with_report=True)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Loads the fitted estimator from a saved folder or the workdir of any finished run.

        Its `config` is the complete config of the run and its `workdir` is None, so that `fit`
        trains anew.

        Raises:
            ValueError: `path` has no finished run, or one of embeddings.
        """
        run = records.read(path)
        if not run.is_of_images:
            raise InputError(
                f"path must be a run of images; got {path}, whose rows are embeddings: "
                "cluster_jax.load reads both"
            )
        return cls(run.config)._set_run(run)

    def _build_config(self, has_classes: bool) -> tuple[ConfigDict, str]:
        """Builds the config with the overrides, and its name.

        Raises:
            InputError: a value is invalid, or classes are given to a config that uses none, or none
                to one that needs them.
        """
        source = self.config
        if source is None:
            source = "ncl_images" if has_classes else "images"
        if isinstance(source, str | os.PathLike):
            config = load_config(str(source))
            name = pathlib.Path(source).stem
        else:
            config = ConfigDict(config_json(source))
            name = "images"
        if self.encoder is not None:
            override_all(config, pretrained.config_values(self.encoder, config))
        override_all(config, self.overrides or {})
        train = config.get("train")
        uses_labels = train is not None and train.labeled_batch_size is not None
        k = self.n_clusters
        if k is not None and not isinstance(k, numbers.Integral):
            raise InputError(f"n_clusters must be None or a whole number; got {k!r}")
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
        if k is not None:
            override(config, "method.n_classes" if has_classes else "eval.n_clusters", k)
        if has_classes and config.method.n_classes is None:
            raise InputError(
                "with y, n_clusters must be the number of novel classes; got None (fit without y "
                "finds a number of clusters)"
            )
        return ConfigDict(config_json(config)), name

    def __getstate__(self) -> dict[str, Any]:
        """Raises a `TypeError` once fitted: a copy would need the workdir of this estimator."""
        if hasattr(self, "labels_"):
            raise TypeError("a fitted ImageClusterer is kept by save and read by load, not pickled")
        return dict(super().__getstate__())

    @property
    def results_(self) -> dict[str, Any]:
        """Content of `results.json`."""
        return page.results_of(self._fitted())

    def _set_run(self, run: Run) -> Self:
        """Sets the fitted attributes from a finished run."""
        self._run = run
        self._encoder = None
        self.files_ = run.names
        self.changes_ = run.events
        self.labels_ = run.titles(run.labels).copy()
        self.distances_ = run.distances.astype(np.float64)
        self.outliers_ = run.outliers
        self.linkage_ = run.linkage
        self.tree_ = run.tree
        self.probabilities_ = run.probabilities
        counted = np.unique(run.labels[~run.outliers])
        self.n_clusters_ = int((counted >= len(run.known_classes or ())).sum())
        return self

    def _printing(self) -> contextlib.AbstractContextManager[None]:
        """Prints progress if `verbose`."""
        return _PRINTING.entered(logs.printing()) if self.verbose else contextlib.nullcontext()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Prints progress if `verbose`, in calls that import much.

        The filters of warnings stay as they are, which imports change, and so do the handlers of
        the root logger: with one of Orbax's, an application's `basicConfig` would do nothing.
        """
        handlers = logging.root.handlers[:]
        try:
            with warnings.catch_warnings(), self._printing():
                yield
        finally:
            logging.root.handlers[:] = handlers


_PRINTING = logs.Shared()  # of all calls that print, in whatever thread


def _training_images(X: Images, config: ConfigDict) -> Dataset:
    """Loads the images of `X` and records their source in the config's section `data`."""
    section = config.data
    paths, values = datasets.located(X)
    section.dir = config_paths.normalized(paths)
    if section.name != "features":
        is_file = section.dir is None or section.dir.endswith((".npy", ".npz"))
        section.name = "arrays" if is_file else "folder"
    parsed = parse_section(DataConfig, "data", section)
    with checks.named({"data.dir": "X"}):
        return datasets.load(parsed, values)


class EmbeddingClusters(_OfRun):
    """The clusters of a finished run of the command `cluster`, as a person has corrected them.

    Args:
        run: the run.

    Attributes:
        run: the record of the run.
        ids_: the id of each row; None: rows are numbered.
        labels_: int64 `[n]`, the cluster of each row, -1 for none.
        n_clusters_: number of clusters.
        probabilities_: float64 `[n]`, of the cluster of each row, or None without a tree.
        names_: a cluster -> the name that a person has given it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ids_ = run.names
        self.labels_ = run.labels.copy()
        self.n_clusters_ = len(np.unique(run.labels[run.labels != NO_CLUSTER]))
        self.probabilities_ = run.probabilities
        self.names_ = dict(run.named)

    def _fitted(self) -> Run:
        return self.run

    def _rows(self, X: ArrayLike) -> NDArray:
        return self.run.checked(X)


def load(path: str | os.PathLike) -> ImageClusterer | EmbeddingClusters:
    """Loads the clusters of a saved folder or of the workdir of any finished run.

    They are a fitted `ImageClusterer`; for a run of the command `cluster`, which has embeddings in
    place of images, `EmbeddingClusters`, whose `predict`, `predict_proba`, `assign`, `cut` and
    `labels_` mean the same.

    Raises:
        ValueError: `path` has no finished run.
    """
    if workdirs.is_of_embeddings(workdirs.of_run(path)):
        return EmbeddingClusters(records.read(path))
    return ImageClusterer.load(path)
