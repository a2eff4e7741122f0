"""Arguments of `ImageClusterer.fit`: the config of the run, and the images."""

import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, override, override_all, parse_section
from cluster_jax.data import datasets
from cluster_jax.data.datasets import DataConfig, Dataset
from cluster_jax.pipeline.config import config_json

_LISTED = 5  # unreadable files that a warning names


def build_config(
    source: str | os.PathLike | Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    n_clusters: int | None,
    has_classes: bool,
) -> tuple[ConfigDict, str]:
    """The config with the overrides, and its name.

    Args:
        source: see `ImageClusterer`, like the next two.
        overrides: config values by dotted key.
        n_clusters: number of clusters or of novel classes.
        has_classes: whether classes of images are given.

    Raises:
        InputError: a value is invalid, or classes are given to a config that uses none, or none to
            one that needs them.
    """
    if source is None:
        source = "ncl_images" if has_classes else "images"
    if isinstance(source, str | os.PathLike):
        config, name = load_config(str(source)), pathlib.Path(source).stem
    else:
        config, name = ConfigDict(config_json(source)), "images"
    override_all(config, overrides or {})
    if n_clusters is not None:
        if not isinstance(n_clusters, numbers.Integral):
            raise InputError(f"n_clusters must be None or a whole number; got {n_clusters!r}")
        is_tree = config.eval.method == "tree" and not has_classes
        override(config, "eval.k" if is_tree else "eval.kmeans.k", n_clusters)
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
    if has_classes and n_clusters is not None:
        override(config, "method.classes", n_clusters)
    if has_classes and config.method.classes is None:
        raise InputError(
            "with y, n_clusters must be the number of novel classes; got None (fit without y "
            "finds a number of clusters)"
        )
    return ConfigDict(config_json(config)), name


def training_images(X: str | os.PathLike | ArrayLike, config: ConfigDict) -> Dataset:
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


def skipped_files(skipped: Sequence[tuple[str, str]]) -> str:
    """The warning about files without a row, with the names of the first few."""
    names = ", ".join(name for name, _ in skipped[:_LISTED])
    more = f" and {len(skipped) - _LISTED:,} more" if len(skipped) > _LISTED else ""
    files = "file" if len(skipped) == 1 else "files"
    return f"{len(skipped):,} {files} could not be read and have no row: {names}{more}"
