"""A raw photo for tests: a DNG with the mosaic of a sensor, and with a preview or without one."""

import io
import struct

import numpy as np
from PIL import Image

# Type of a TIFF's entry -> its format for `struct`.
_FORMATS = {1: "B", 3: "H", 4: "I", 5: "II", 10: "ii"}
_ONES, _UNIT = [(1, 1)] * 3, [(int(i % 4 == 0), 1) for i in range(9)]


def write(path, image: Image.Image, preview: bool = True, orientation: int = 1) -> None:
    """Writes the raw photo of an RGB image of even sides."""
    (width, height), jpeg = image.size, io.BytesIO()
    image.save(jpeg, "JPEG", quality=95)
    values = np.asarray(image).astype("<u2") * 16
    mosaic = values[..., 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = values[::2, ::2, 0], values[1::2, 1::2, 2]

    def directories(at_jpeg: int, at_mosaic: int, second: int) -> list[list]:
        size = [(256, 4, [width]), (257, 4, [height]), (278, 4, [height]), (284, 3, [1])]
        camera = [
            (271, 2, b"Acme\0"), (272, 2, b"Acme 1\0"), (274, 3, [orientation]),
            (50706, 1, [1, 4, 0, 0]), (50708, 2, b"Acme 1\0"), (50721, 10, _UNIT),
            (50728, 5, _ONES), (50778, 3, [21]),
        ]  # fmt: skip
        of_mosaic = [
            *size, (254, 4, [0]), (258, 3, [16]), (259, 3, [1]), (262, 3, [32803]),
            (273, 4, [at_mosaic]), (277, 3, [1]), (279, 4, [mosaic.nbytes]), (33421, 3, [2, 2]),
            (33422, 1, [0, 1, 1, 2]), (50717, 4, [4095]),
        ]  # fmt: skip
        of_jpeg = [
            *size, (254, 4, [1]), (258, 3, [8, 8, 8]), (259, 3, [7]), (262, 3, [6]),
            (273, 4, [at_jpeg]), (277, 3, [3]), (279, 4, [len(jpeg.getvalue())]),
            (330, 4, [second]),
        ]  # fmt: skip
        return [camera + of_jpeg, of_mosaic] if preview else [camera + of_mosaic]

    lengths = [len(_directory(entries, 0)) for entries in directories(0, 0, 0)]
    second, at_jpeg = 8 + lengths[0], 8 + sum(lengths)
    at_mosaic = at_jpeg + len(jpeg.getvalue())
    content = b"II*\0" + struct.pack("<I", 8)
    for entries in directories(at_jpeg, at_mosaic, second):
        content += _directory(entries, len(content))
    path.write_bytes(content + jpeg.getvalue() + mosaic.tobytes())


def _directory(entries: list, start: int) -> bytes:
    """A directory of a TIFF that begins at byte `start`, and the values that it refers to."""
    head, values = struct.pack("<H", len(entries)), b""
    for tag, kind, value in sorted(entries, key=lambda entry: entry[0]):
        content = value if kind == 2 else b"".join(_packed(kind, part) for part in value)
        if len(content) > 4:
            at = start + 6 + 12 * len(entries) + len(values)
            values += content + b"\0" * (len(content) % 2)
            content = struct.pack("<I", at)
        head += struct.pack("<HHI", tag, kind, len(value)) + content.ljust(4, b"\0")
    return head + struct.pack("<I", 0) + values


def _packed(kind: int, part) -> bytes:
    return struct.pack("<" + _FORMATS[kind], *(part if isinstance(part, tuple) else (part,)))
