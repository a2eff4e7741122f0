"""Kinds of damage that a file can have."""

import random


def flip(file, where=None, rng=random):
    """One bit of one byte."""
    content = bytearray(file.read_bytes())
    where = rng.randrange(len(content)) if where is None else where % len(content)
    content[where] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


KINDS = {
    # Where a bit always counts: that of a number may change its last digit alone.
    "flip": lambda file: flip(file, file.stat().st_size // 2, random.Random(0)),
    "truncated": _truncate,
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "text": lambda file: file.write_text("not what it was"),
    "pickle": lambda file: file.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."),
}
