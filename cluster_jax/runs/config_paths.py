"""Paths in the config of a run, which lead to where its files are now."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

# Sections and key of each value of a config that may be a local path, beside those of the stages.
_PATHS = [("data", "dir"), ("data", "labels"), ("encoder",), ("init_from",), ("network", "weights")]
_SAMPLE = 200  # photos by which a folder is told from another one


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
    config: Mapping[str, Any],
    workdir: epath.Path,
    images: Mapping[str, Any],
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns a copy of a config whose paths lead to where their files are now.

    A path is the stored one. If nothing is there, it may have moved together with the workdir: then
    it is the path at the same place relative to the workdir, if something is there, or if the path
    was in the folder of the workdir, which has moved. Others may have come to the old place since:
    of two folders of photos it is the one at that place if more photos of the run are in it. The
    config of a run of embeddings, which has no `images.json`, stays as it is.

    Args:
        config: the stored config of the run.
        workdir: the folder of the run now.
        images: content of its `images.json`, which has the path of the workdir at that time.
        names: paths of the images, relative to the folder of `data.dir`, see `folder.root`.
    """
    before = images.get("workdir")
    if before is None:
        return dict(config)
    now = os.path.abspath(workdir)
    around = os.path.dirname(before) + os.sep

    def moved(line: str, photos: Sequence[str]) -> str:
        """Returns where a path leads now; `photos` are absolute paths of some photos then."""
        beside = os.path.normpath(os.path.join(now, os.path.relpath(line, before)))
        has_moved = now != before and line.startswith(around)
        if not os.path.exists(line):
            return beside if has_moved or os.path.exists(beside) else line
        inside = [path[len(line) :] for path in photos if has_moved and is_at(path, line)]
        old, new = (sum(os.path.exists(f + rest) for rest in inside) for f in (line, beside))
        return beside if new > old else line

    paths = paths_of(config)
    place = paths.get(("data", "dir"))
    some = names[:: 1 + len(names) // _SAMPLE]
    photos = _absolute(some, place) if place is not None and now != before else ()
    located = dict[tuple[str, ...], str]()
    for key, path in paths.items():
        of_photos = photos if key == ("data", "dir") else ()
        located[key] = "\n".join(moved(line, of_photos) for line in path.split("\n"))
    return with_paths(config, located)


def _absolute(names: Sequence[str], dir: str) -> Sequence[str]:
    """Returns absolute paths of images, whose names are relative to the folder of `data.dir`."""
    from cluster_jax.data import folder  # Loads much, as above.

    root = str(folder.root(dir))
    return [os.path.normpath(os.path.join(root, name)) for name in names]


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
