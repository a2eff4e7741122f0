"""Which copies of photos are found, and which different pictures are taken for copies.

    python -m experiments.duplicates DIR --seed=0

DIR holds photos, in subfolders. A folder is made of 400 of them as PNG and of five copies of the
first 60; `cluster-jax images` clusters it, and `duplicates.csv` says which copies it found. Beside
it, 200 pairs of pictures are compared that differ outside the central square, or in one line of
text on an equal ground, as if the features had brought all of them together. Each draw adds its
entry to `duplicates.json`, of which `duplicates.md` is written.
"""

import argparse
import csv
import pathlib
import random
import tempfile
import warnings
from collections.abc import Callable

from PIL import Image, ImageDraw

from cluster_jax.cli import images as command
from cluster_jax.core import io
from cluster_jax.core.config import load_config
from cluster_jax.data import datasets
from cluster_jax.data.images import DataConfig
from cluster_jax.report import pictures
from experiments import tables

FILE = pathlib.Path(__file__).parent / "duplicates.json"
PHOTOS, COPIED, PAIRS = 400, 60, 200


def _turned(image: Image.Image, path: pathlib.Path) -> None:
    """Stored a quarter turn to the left, upright by its EXIF tag."""
    exif = Image.Exif()
    exif[0x112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=90, exif=exif)


def _resized(share: float, quality: int) -> Callable[[Image.Image, pathlib.Path], None]:
    def save(image: Image.Image, path: pathlib.Path) -> None:
        sides = [max(1, round(side * share)) for side in image.size]
        image.resize(sides).save(path, quality=quality)

    return save


COPIES: dict[str, Callable[[Image.Image, pathlib.Path], None]] = {
    "JPEG of quality 80": lambda image, path: image.save(path, quality=80),
    "JPEG of quality 60": lambda image, path: image.save(path, quality=60),
    "95 % of the size": _resized(0.95, 80),
    "half of the size": _resized(0.5, 85),
    "turned by EXIF": _turned,
}
WORDS = (
    "Call mum", "Bank: paid 12.40", "Meeting at 9", "Train late", "Invoice 41", "Note of May 3",
    "Total 77.10", "See you soon",
)  # fmt: skip
SCREENS = ((1080, 2340), (1080, 1920), (720, 1600), (1170, 2532))
PAGES = (*SCREENS, (800, 600), (1280, 720), (2480, 3508))
GROUNDS = {"white": "black", "black": "white", "#f0f0e6": "black", "#1e1e3c": "white"}


def found_copies(photos: list[pathlib.Path], folder: pathlib.Path) -> dict[str, int]:
    """Copies of each kind that are in one group with their photo, and groups of several photos."""
    made = folder / "photos"
    made.mkdir()
    for number, photo in enumerate(photos):
        with Image.open(photo) as file:
            image = file.convert("RGB")
        image.save(made / f"{number:03d}.png")
        for kind, save in enumerate(COPIES.values() if number < COPIED else ()):
            save(image, made / f"{number:03d}_{kind}.jpg")
    command.main([str(made), f"--out={folder}/run"])
    with (folder / "run" / "duplicates.csv").open() as file:
        group = {row["image"]: row["group"] for row in csv.DictReader(file)}
    counts = {
        name: sum(
            group.get(f"{i:03d}_{kind}.jpg", "copy") == group.get(f"{i:03d}.png", "photo")
            for i in range(COPIED)
        )
        for kind, name in enumerate(COPIES)
    }
    members: dict[str, set[str]] = {}
    for name, label in group.items():
        members.setdefault(label, set()).add(name[:3])
    return counts | {"groups of several photos": sum(len(of) > 1 for of in members.values())}


def different_pairs(photos: list[pathlib.Path], draw: random.Random, folder: pathlib.Path) -> int:
    """How many of 200 pairs of different pictures count as the same."""
    made = folder / "pairs"
    made.mkdir()
    for i in range(PAIRS):
        is_screen, suffix = i < PAIRS // 2, draw.choice(("png", "jpg"))
        width, height = draw.choice(SCREENS if is_screen else PAGES)
        if is_screen:  # Another line above or below the central square of one photo.
            with Image.open(draw.choice(photos)) as file:
                ground = file.convert("RGB").resize((width, height))
            size, place = width // 16, (width // 10, int(height * draw.choice((0.05, 0.1, 0.88))))
            box = (0, place[1] - 10, width, place[1] + size + 20)
            ImageDraw.Draw(ground).rectangle(box, fill="white")
            ink = "black"
        else:
            color, ink = draw.choice([*GROUNDS.items()])
            ground = Image.new("RGB", (width, height), color)
            size = width // draw.choice((40, 25, 18, 12))
            place = (draw.randint(20, width // 3), draw.randint(20, int(height * 0.8)))
        for side, words in zip("ab", draw.sample(WORDS, 2), strict=True):
            image = ground.copy()
            ImageDraw.Draw(image).text(place, words, fill=ink, font_size=size)
            image.save(made / f"{i:03d}{side}.{suffix}")
    data = DataConfig("folder", str(made), None, "label", 32, "bicubic", None, 100, 0)
    dataset = datasets.load(data)
    shown = (pictures.read(dataset, i) for i in range(2 * PAIRS))
    return sum(pictures.alike(a, b) for a, b in zip(shown, shown, strict=True) if a and b)


def page(draws: dict[str, dict]) -> str:
    """The page of all draws."""
    lines = [
        "# Near-duplicates",
        "",
        f"Each draw: {PHOTOS} photos and five copies of {COPIED} of them, clustered by "
        "`cluster-jax images`; a copy is found if `duplicates.csv` has it in one group with its "
        f"photo. Beside them, {PAIRS} pairs of different pictures, compared as if their features "
        "had brought them together: half are a photo with another line of text above or below its "
        "central square, half a line of text on an equal ground. The constants of the comparison "
        "were chosen on other draws, before this script was written, and not changed afterwards. "
        "The last column counts the pairs that are taken for the same.",
        "",
    ]
    columns = (
        "photos, seed",
        "encoder",
        *COPIES,
        "all copies",
        "groups of several photos",
        "different pairs",
    )
    rows = []
    for name, row in draws.items():
        found = [row["found"][kind] for kind in COPIES]
        every = COPIED * len(COPIES)
        rows.append(
            (
                name,
                row["encoder"],
                *(f"{n} of {COPIED}" for n in found),
                f"{sum(found)} of {every}",
                row["found"]["groups of several photos"],
                f"{row['different']} of {PAIRS}",
            )
        )
    lines.append(tables.markdown(columns, rows))
    sentences = {tables.sentence(row["origin"]): 0 for row in draws.values()}
    return "\n".join([*lines, "", *sentences, ""])


def main() -> None:
    """Runs one draw and writes the page of all."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    files = sorted(p for p in given.dir.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    photos = draw.sample(files, min(PHOTOS, len(files)))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry = {
            "found": found_copies(photos, pathlib.Path(folder)),
            "different": different_pairs(photos, draw, pathlib.Path(folder)),
            "encoder": load_config("images").encoder,
            "origin": tables.origin("python -m experiments.duplicates DIR --seed=SEED"),
        }
    draws = io.read_json(FILE) if FILE.exists() else {}
    draws[f"{given.dir.name}, {given.seed}"] = entry
    io.write_json(FILE, draws)
    FILE.with_suffix(".md").write_text(page(draws))


if __name__ == "__main__":
    main()
