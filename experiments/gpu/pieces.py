"""Files cut into pieces that are small enough to carry, and joined again, checked by SHA-256."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

from cluster_jax.core import io
from cluster_jax.core.checks import InputError

MANIFEST = "manifest.json"
PIECE_MB = 50.0


def split(content: bytes, folder: pathlib.Path, about: Mapping[str, Any], piece_mb: float) -> None:
    """Writes `content` as pieces of at most `piece_mb` megabytes (10^6 bytes), and a manifest.

    Args:
        content: the bytes.
        folder: is created; must not hold another manifest.
        about: what the bytes are, JSON values, kept in the manifest.
        piece_mb: greater than 0.

    Raises:
        InputError: the folder holds pieces already.
    """
    if (folder / MANIFEST).exists():
        raise InputError(f"the folder of the pieces must be empty; got {folder}, which has some")
    folder.mkdir(parents=True, exist_ok=True)
    size = max(1, int(piece_mb * 1e6))
    pieces = []
    for number, start in enumerate(range(0, max(len(content), 1), size)):
        part = content[start : start + size]
        name = f"piece-{number:03d}"
        io.write(folder / name, part)
        pieces.append({"name": name, "bytes": len(part), "sha256": _digest(part)})
    whole = {"bytes": len(content), "sha256": _digest(content)}
    # Last, so that a folder with a manifest is complete.
    io.write_json(folder / MANIFEST, {"about": about, "whole": whole, "pieces": pieces})


def join(folder: pathlib.Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes that `split` wrote, and what they are.

    Raises:
        InputError: the manifest or a piece is missing, or has changed.
    """
    manifest = _manifest(folder)
    parts = []
    for piece in manifest["pieces"]:
        path = folder / piece["name"]
        if not path.exists():
            raise InputError(
                f"all {len(manifest['pieces'])} pieces must be in {folder}; {piece['name']} is "
                "missing: carry it too"
            )
        part = path.read_bytes()
        if _digest(part) != piece["sha256"]:
            raise InputError(
                f"{path} must have the SHA-256 {piece['sha256'][:12]}...; got "
                f"{_digest(part)[:12]}...: carry it again"
            )
        parts.append(part)
    content = b"".join(parts)
    if _digest(content) != manifest["whole"]["sha256"]:
        raise InputError(f"the pieces in {folder} must be those of its manifest; they are not")
    return content, manifest["about"]


def about(folder: pathlib.Path) -> dict[str, Any]:
    """What the pieces in a folder are.

    Raises:
        InputError: the manifest is missing or damaged.
    """
    return _manifest(folder)["about"]


def amend(folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Replaces entries of what the pieces in a folder are."""
    manifest = _manifest(folder)
    io.write_json(folder / MANIFEST, {**manifest, "about": {**manifest["about"], **about}})


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{path} must exist beside the pieces; got none")
    try:
        manifest = io.read_json(path)
    except ValueError as error:
        raise InputError(f"{path} must be JSON; got {error}: carry it again") from error
    if not isinstance(manifest, dict) or not {"about", "whole", "pieces"} <= set(manifest):
        raise InputError(f"{path} must have about, whole and pieces; got others: carry it again")
    return manifest


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
