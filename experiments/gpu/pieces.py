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
        InputError: the manifest or a piece is missing, or a piece has changed.
    """
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder / MANIFEST} must exist beside the pieces; got none")
    manifest = io.read_json(folder / MANIFEST)
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


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
