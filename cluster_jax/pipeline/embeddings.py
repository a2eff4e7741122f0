"""A finished run of the command `cluster`: the clusters of embeddings, and those of new ones."""

import dataclasses
import functools
import hashlib
import os
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import ArrayLike, NDArray

from cluster_jax.clustering import smooth
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import Assignment
from cluster_jax.clustering.placing import ByTree, Placing, from_arrays, to_arrays, voters
from cluster_jax.core import buckets, io
from cluster_jax.core.arrays import blocks, numeric
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import tables
from cluster_jax.data.tables import Table
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.report import assignments, decisions
from cluster_jax.report.decisions import Clusters, Decisions

# In `clusterer.npz`: what tells rows that are known from new ones; the clusters of all rows.
CONTENTS, FOUND = "contents", "found"


def read_rows(
    run: "EmbeddingClusters", path: str, array: str | None = None, ids: str | None = None
) -> Table:
    """Reads new rows of a run, of the same columns and ids; see `tables.read_rows`.

    Raises:
        InputError: the file cannot be used.
    """
    stored = run.results["provenance"]
    columns, is_table = stored["feature_columns"], path.lower().endswith(tables.SUFFIXES)
    if is_table and columns is not None and array is None:
        return tables.read_rows(path, None, ids or stored["ids"], columns)
    return tables.read_rows(path, array, ids)


def contents(features: NDArray) -> NDArray:
    """Hashes each row `[n, d]` as float32, uint8 `[n, 16]`."""
    digests = (
        hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        for rows in blocks(*features.shape)
        for row in np.ascontiguousarray(features[rows], np.float32)
    )
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(features), 16)


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingClusters:
    """The clusters of n embeddings, as a person has corrected them, and how new ones get theirs.

    Attributes:
        workdir: folder of the run.
        results: content of `results.json`.
        found: int32 `[n]`, the clusters as they were found.
        decisions: what a person has decided about them.
        clusterer: what places new rows; None after t-SNE, whose map has no place for them.
        rows: int `[m]`, of the n rows those that it has labels of.
        tree: float64 `[l - 1, 4]`, the tree of its leaves in SciPy's form; None without one.
    """

    workdir: epath.Path
    results: dict[str, Any]
    found: NDArray
    decisions: Decisions
    clusterer: Placing | None
    rows: NDArray
    tree: NDArray | None

    @functools.cached_property
    def computed(self) -> Clusters:
        """The clusters as they were found, with the names of the rows, read from their table."""
        return decisions.clustered(assignments.read_workdir(self.workdir))[1]

    @property
    def labels_(self) -> NDArray:
        """Cluster of each row, int64 `[n]`, -1 for none."""
        if self.decisions == Decisions():
            return self.found.astype(np.int64)
        return self.decisions.labels(self.computed)

    @property
    def names_(self) -> dict[int, str]:
        """A cluster -> the name that a person has given it."""
        return dict(self.decisions.named)

    def cut(self, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Returns labels int64 `[n]` at another cut of the tree (`SmoothTree.cut`), or `labels_`.

        Groups at another cut are those of the clusters that were found, before any correction.

        Raises:
            ValueError: the run has no tree, or `k` or `level` is out of range.
        """
        if k is None and level is None:
            return self.labels_
        tree = self._of_tree("cut")
        assert self.tree is not None
        return trees.cut(self.tree, tree.labels, tree.leaves, k=k, level=level)

    def predict(self, X: ArrayLike, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Returns clusters of rows of `X` float `[m, d]`, as in `labels_` or `cut`, int64 `[m]`."""
        return self.locate(X, k=k, level=level).labels

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Computes each cluster's probability, as `np.unique(labels_)`, for rows: float64 `[m, c]`.

        Raises:
            ValueError: the rows are invalid, or the run has no tree.
        """
        return self._of_tree("give probabilities").probabilities(self._new(X), self._labels)

    def locate(
        self, X: ArrayLike, *, k: int | None = None, level: float | None = None
    ) -> Assignment:
        """Returns clusters of the rows of `X` float `[m, d]`, how sure they are, and what is novel.

        Rows do not affect each other.

        Raises:
            ValueError: the rows are invalid, the run cannot place new ones, or see `cut`.
        """
        x = self._new(X)
        assert self.clusterer is not None
        is_cut = k is not None or level is not None
        return self.clusterer.place(x, self.cut(k=k, level=level) if is_cut else self._labels)

    @property
    def rows_of_likeness(self) -> NDArray:
        """Rows `[m, r]`, those of `rows`, whose Euclidean distances say which rows are alike."""
        assert self.clusterer is not None
        if isinstance(self.clusterer, ByTree):
            return self.clusterer.smoother.sharp[self.clusterer.leaves]
        return self.clusterer.voters.rows

    @property
    def _labels(self) -> NDArray | None:
        """Those of `rows` if a person has corrected some; None: as they were found."""
        return None if self.decisions == Decisions() else self.labels_[self.rows]

    def _new(self, X: ArrayLike) -> NDArray:
        if self.clusterer is None:
            raise InputError(
                f"{self.workdir} used t-SNE, whose map has no place for new rows; run its command "
                "again with --reduce=umap"
            )
        x = numeric(X, "X", smooth.LARGEST)
        expected = self.results["provenance"]["columns"]
        if x.shape[1] != expected:
            raise InputError(
                f"X must have {counted(expected, 'column')} like the embeddings of "
                f"{self.workdir}; got {x.shape[1]}"
            )
        return x

    def _of_tree(self, what: str) -> ByTree:
        if not isinstance(self.clusterer, ByTree):
            method = self.results["config"]["method"]
            raise InputError(f"method must be 'tree' to {what}; {self.workdir} has '{method}'")
        return self.clusterer


def write(
    workdir: epath.Path,
    features: NDArray,
    clustering: Clustering,
    options: ClusterOptions,
    labels: NDArray,
    sample: NDArray | None,
) -> None:
    """Writes `clusterer.npz`.

    Args:
        workdir: folder of the run.
        features: `[n, d]`, those that were clustered, or a sample of them.
        clustering: their clusters; of a tree they are those of all rows.
        options: of the clustering.
        labels: int `[n]`, the clusters of all rows.
        sample: int `[n]`, the rows of the sample; None: they are all rows.
    """
    tree = clustering.tree
    training_rows = (
        voters(features, str(options.metric)) if tree is None else tree.clusterer_.voters
    )
    placed_by = clusters.clusterer(
        clustering,
        training_rows,
        method=options.method,
        reduce=options.reduce,
        n_neighbors=options.n_neighbors,
    )
    stored = {} if placed_by is None else to_arrays(placed_by)
    stored[FOUND] = labels.astype(np.int32)
    if tree is not None:
        stored |= {"tree": tree.linkage_, "rows": np.arange(len(tree.labels_))}
        if sample is None:
            stored[CONTENTS] = contents(features)
    else:
        stored["rows"] = np.arange(len(features)) if sample is None else sample
    io.write_arrays(workdir / workdirs.CLUSTERER, stored, compressed=False)


def is_run(workdir: epath.PathLike) -> bool:
    """Returns whether a folder has a run of the command `cluster`."""
    if not isinstance(workdir, str | os.PathLike):
        return False
    file = buckets.path(workdir) / workdirs.CONFIG
    return file.exists() and "eval" not in workdirs.read_values(file)


def read(workdir: epath.PathLike) -> EmbeddingClusters:
    """Reads a finished run.

    Raises:
        InputError: the run is not finished, a file of it is damaged, or an older version wrote it.
    """
    workdir = buckets.path(workdir)
    results = workdirs.finished_results(workdir)
    if results is None:
        raise InputError(
            f"the run in {workdir} is not finished; run its command again with --workdir={workdir}"
        )
    if not (workdir / workdirs.CLUSTERER).exists():
        raise workdirs.older_version(workdir)
    stored = io.read_arrays(workdir / workdirs.CLUSTERER)
    if FOUND not in stored:
        raise workdirs.older_version(workdir)
    found = stored.pop(FOUND)
    rows, tree, _ = stored.pop("rows"), stored.pop("tree", None), stored.pop(CONTENTS, None)
    placed_by = from_arrays(stored) if stored else None
    run = EmbeddingClusters(workdir, results, found, Decisions(), placed_by, rows, tree)
    if decisions.DECISIONS not in buckets.names(workdir):
        return run
    return dataclasses.replace(run, decisions=decisions.read_workdir(workdir, run.computed))
