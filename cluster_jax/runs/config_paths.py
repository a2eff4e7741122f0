"""Paths in the config of a run, which lead to where its files are now."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

# Sections and key of each value of a config that may be a local path, beside those of the stages.
_PATHS = [("data", "dir"), ("data", "labels"), ("encoder",), ("init_from",), ("network", "weights")]


def normalized(path: str | None) -> str | None:
    """Returns local paths, one a line, as absolute ones, each once, without blank lines.

    "~" is expanded. None stays as it is, and so does a text that has "://" anywhere.

    Example:
        >>> normalized("/photos/../x/"), normalized("gs://bucket/photos/")
        ('/x', 'gs://bucket/photos/')
    """
    if path is None or "://" in path:
        return path
    lines = (os.path.expanduser(line) for line in path.split("\n") if line)
    return "\n".join(dict.fromkeys(map(os.path.abspath, lines)))


def paths_of(config: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Returns the local paths in a config by the names of their sections and key.

    They are `data.dir`, which may be several, one a line; `data.labels` if it is a file;
    `network.weights`, also of a stage, and `encoder` if they are a `.safetensors` file; and
    `init_from`.

    Args:
        config: the whole config of a run of images, as JSON values.

    Example:
        >>> stages = {"first": {"network": {"weights": "a.safetensors"}}}
        >>> paths_of({"init_from": "run", "stages": stages})
        {('init_from',): 'run', ('stages', 'first', 'network', 'weights'): 'a.safetensors'}
    """
    found = dict[tuple[str, ...], str]()
    of_stages = (("stages", stage, "network", "weights") for stage in config.get("stages") or ())
    for path in (*_PATHS, *of_stages):
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, str) or "://" in value or value in ("", "folders"):
            continue
        is_name = value.startswith("hf:") or not value.endswith(".safetensors")
        if path[-1] not in ("weights", "encoder") or not is_name:
            found[path] = value
    return found


def with_paths(
    config: Mapping[str, Any], paths: Mapping[tuple[str, ...], str | None]
) -> dict[str, Any]:
    """Returns a copy of a config with other paths, by their keys as in `paths_of`."""
    copy = dict(config)
    for (key, *below), path in paths.items():
        copy[key] = with_paths(copy[key], {tuple(below): path}) if below else path
    return copy


def with_absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a config with absolute paths."""
    return with_paths(config, {key: normalized(path) for key, path in paths_of(config).items()})


def with_located(
    config: Mapping[str, Any], workdir: epath.Path, images: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a copy of a config whose paths lead to where their files are now.

    A path is the stored one. If nothing is there, it may have moved together with the workdir: then
    it is the path at the same place relative to the workdir, if something is there, or if the path
    was in the folder of the workdir, which has moved. The config of a run of embeddings, which has
    no `images.json`, stays as it is.

    Args:
        config: the stored config of the run.
        workdir: the folder of the run now.
        images: content of its `images.json`, which has the path of the workdir at that time.
    """
    before = images.get("workdir")
    if before is None:
        return dict(config)
    now = os.path.abspath(workdir)
    around = os.path.dirname(before) + os.sep

    def moved(line: str) -> str:
        beside = os.path.normpath(os.path.join(now, os.path.relpath(line, before)))
        has_moved = now != before and line.startswith(around)
        if not os.path.exists(line) and (os.path.exists(beside) or has_moved):
            return beside
        return line

    paths = paths_of(config).items()
    located = {key: "\n".join(map(moved, path.split("\n"))) for key, path in paths}
    return with_paths(config, located)


def is_at(path: str, place: str) -> bool:
    """Returns whether a file is in a folder or in a zip, or is the file at this place."""
    return path == place or path.startswith(place + os.sep)


def relocated(names: Sequence[str], before: str, now: str) -> tuple[str, ...]:
    """Returns the names of images for their new places.

    Args:
        names: paths relative to the folder of `before`, see `folder.root`.
        before: folders and files, one a line, as `data.dir`.
        now: the new places of these, in the same order.
    """
    from cluster_jax.data import folder  # Loads much, as above.

    if before == now:
        return tuple(names)
    old, new = str(folder.root(before)), str(folder.root(now))
    lines = dict(zip(before.split("\n"), now.split("\n"), strict=True))

    def moved(name: str) -> str:
        path = os.path.normpath(os.path.join(old, name))
        for line, there in lines.items():
            if is_at(path, line):
                return os.path.relpath(there + path[len(line) :], new)
        return name

    return tuple(map(moved, names))
