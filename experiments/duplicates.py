"""How well near-duplicates are found: planted ones among photographs, over several thresholds.

python -m experiments.duplicates --images=DIR --planted=NEW_DIR --workdir=DIR [--out=FILE.json]

DIR: a folder of class folders. Of each class the first 100 photographs are taken; every tenth of
them also as a copy, as JPEG of quality 60, with 5 % cut off two sides, and at 70 % of its size. The
config `images_scratch` is trained for 600 steps on all of them. Ten minutes on one core.
"""

import argparse
import csv
import pathlib
import shutil

import numpy as np
from PIL import Image

from cluster_jax.core import io
from cluster_jax.core.config import load_config
from cluster_jax.evaluation import duplicates
from cluster_jax.pipeline import run as pipeline
from experiments import tables

PER_CLASS, EVERY, STEPS = 100, 10, 600
PARTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
KINDS = ("jpeg60", "resize70", "crop95")


def plant(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies photographs by class and plants variants, named `STEM__KIND`."""
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        new = target / folder.name
        new.mkdir(parents=True)
        for i, file in enumerate(sorted(folder.iterdir())[:PER_CLASS]):
            shutil.copy(file, new / file.name)
            if i % EVERY:
                continue
            image = Image.open(file).convert("RGB")
            width, height = image.size
            smaller = (round(width * 0.7), round(height * 0.7))
            cut = (round(width * 0.05), round(height * 0.05), width, height)
            shutil.copy(file, new / f"{file.stem}__copy.jpg")
            image.save(new / f"{file.stem}__jpeg60.jpg", quality=60)
            image.crop(cut).save(new / f"{file.stem}__crop95.png")
            image.resize(smaller, Image.Resampling.BILINEAR).save(
                new / f"{file.stem}__resize70.png"
            )


def measure(features: np.ndarray, files: list[str]) -> list[dict]:
    """Precision and recall over pairs of images at parts of the usual distance.

    Exact copies are left out. Recall of a kind: the pairs of an original and its variant.
    """
    names = [pathlib.Path(file).stem.partition("__") for file in files]
    kept = [i for i, (_, _, kind) in enumerate(names) if kind != "copy"]
    stems = np.array([names[i][0] for i in kept])
    kinds = np.array([names[i][2] for i in kept])
    rows = features[kept].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    first, second = np.triu_indices(len(rows), 1)
    similarity = (rows @ rows.T)[first, second]
    same = stems[first] == stems[second]
    distance = (1 - duplicates.near_threshold(rows)) / duplicates.NEARNESS
    table = []
    for part in PARTS:
        found = similarity > 1 - part * distance
        row = {
            "part": part,
            "similarity": 1 - part * distance,
            "precision": float(same[found].mean()) if found.any() else None,
            "recall": float(found[same].mean()),
            "wrong_pairs": int((found & ~same).sum()),
        }
        for kind in KINDS:
            pair = {"", kind}
            planted = [
                {a, b} == pair for a, b in zip(kinds[first[same]], kinds[second[same]], strict=True)
            ]
            row[kind] = float(found[same][planted].mean())
        table.append(row)
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--images", "--planted", "--workdir"):
        parser.add_argument(flag, type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    flags = parser.parse_args()
    if not flags.planted.exists():
        plant(flags.images, flags.planted)
    config = load_config("images_scratch")
    config.data.dir, config.train.duration = str(flags.planted), f"{STEPS} steps"
    results = pipeline.run_pipeline(config, flags.workdir, "images")
    with (flags.workdir / "assignments.csv").open() as file:
        files = [row["image"] for row in csv.DictReader(file)]
    features = io.read_arrays(flags.workdir / "embedding.npz")["projection"]
    table = measure(features, files)
    cells = [["" if v is None else f"{v:.4g}" for v in row.values()] for row in table]
    print(tables.markdown(table[0], cells))
    if flags.out is not None:
        provenance = results["provenance"]
        io.write_json(
            flags.out, {"images": flags.images.name, "provenance": provenance, "pairs": table}
        )


if __name__ == "__main__":
    main()
