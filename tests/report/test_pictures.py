"""Copies of whole pictures in files: nothing is called equal that is not."""

import io
import itertools
import threading

import numpy as np
from PIL import ExifTags, Image, ImageDraw

from cluster_jax.data import images
from cluster_jax.data.images import Dataset
from cluster_jax.report import assignments, duplicates, pictures
from tests.data.test_folder import load
from tests.rows import every_row


def photo(seed=0, width=320, height=240):
    """Waves of several lengths, disks, and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / height
    waves = [np.sin(k * (x * a + y * b)) for k, a, b in rng.uniform(1, 30, (3, 3)) * [1, 0.1, 0.1]]
    values = 128 + 50 * np.stack(waves, -1) + rng.normal(0, 6, (height, width, 3))
    image = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = rng.integers(0, width), rng.integers(0, height)
        box = (left, top, left + height // 6, top + height // 6)
        draw.ellipse(box, fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def write(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def folder(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return load(tmp_path, image_size=16)


def alike(dataset):
    """Names of each pair -> whether both pictures show the same."""
    read = [pictures.read(dataset, i) for i in range(dataset.size)]
    pairs = itertools.combinations(range(dataset.size), 2)
    return {
        (dataset.sources[i], dataset.sources[j]): pictures.show_same(read[i], read[j])
        for i, j in pairs
    }


TURNED = Image.Exif()
TURNED[ExifTags.Base.Orientation] = 6


@every_row(
    ("copy", "is_same"),
    [
        (lambda image: write(image, "BMP"), True),
        (lambda image: write(image, "WEBP", lossless=True), True),
        (lambda image: write(image.convert("RGBA")), True),
        (lambda image: write(image.transpose(Image.Transpose.ROTATE_90), exif=TURNED), True),
        (lambda image: write(image, "JPEG", quality=60), True),
        (lambda image: write(image.resize((304, 228)), "JPEG", quality=80), True),
        (lambda image: write(image.resize((160, 120)), "WEBP", quality=80), True),
        (
            lambda image: write(
                image.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=85, exif=TURNED
            ),
            True,
        ),
        (lambda image: write(image.crop((8, 0, 320, 240))), False),
        (lambda image: write(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), False),
        (lambda image: write(image.convert("L")), False),
        (lambda image: write(image, "GIF", save_all=True, append_images=[photo(5)]), False),
    ],
)
def test_copies_of_a_photo(tmp_path, copy, is_same):
    dataset = folder(tmp_path, {"a.png": write(photo()), "b.png": copy(photo())})
    assert alike(dataset) == {("a.png", "b.png"): is_same}


def _note(text, size, ground, words=(40, 60)):
    image = Image.new("RGB", size, ground)
    ink = "black" if ground in ("white", "ivory") else "white"
    ImageDraw.Draw(image).text(words, text, fill=ink, font_size=size[0] // 25)
    return image


@every_row("ground", ["white", "black", "ivory"])
@every_row("size", [(1080, 1920), (800, 600)])
@every_row("form", ["PNG", "JPEG"])
def test_a_line_of_text_makes_a_difference(tmp_path, ground, size, form):
    files = {
        f"{i}.png": write(_note(text, size, ground), form)
        for i, text in enumerate(["Invoice 41 of May", "Reminder of the train"])
    }
    assert alike(folder(tmp_path, files)) == {("0.png", "1.png"): False}


def test_pictures_that_differ_outside_of_the_central_square(tmp_path):
    """Screens with another clock, clips with other words above; the network sees the same."""
    files = {}
    for i in range(4):
        image = photo(3, 540, 1170)
        draw = ImageDraw.Draw(image)
        draw.rectangle([100, 75, 440, 250], fill="white")
        draw.text((150, 100), f"1{i}:4{i}", fill="black", font_size=90)
        files[f"{i}.png"] = write(image)
    dataset = folder(tmp_path, files)
    assert not any(alike(dataset).values())
    assert (dataset.images == dataset.images[0]).all()
    assert duplicates.find(dataset, np.ones((4, 3))).n_groups == 0


def test_the_table_says_which_to_keep(tmp_path):
    image, exif = photo(), Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2023:07:14 18:02:11"
    files = {f"{i}.png": write(photo(10 + i)) for i in range(6)}
    files |= {
        "b.jpg": write(image, "JPEG", quality=95),
        "a.jpg": write(image, "JPEG", quality=95),
        "dated.jpg": write(image, "JPEG", quality=60, exif=exif),
        "small.png": write(image.resize((160, 120))),
    }
    dataset = folder(tmp_path, files)
    features = np.random.default_rng(0).normal(size=(10, 8))
    rows = [dataset.sources.index(name) for name in ("a.jpg", "b.jpg", "dated.jpg", "small.png")]
    features[rows] = features[rows[0]] + 1e-3 * features[rows]
    found = duplicates.find(dataset, features)
    table = assignments.duplicates_csv(dataset.sources, found).splitlines()
    assert [line.rpartition(",")[0] for line in table] == [
        "group,kind,image,width,height,bytes,taken,keep",
        f"0,exact,a.jpg,320,240,{len(files['a.jpg'])},,1",
        f"0,exact,b.jpg,320,240,{len(files['a.jpg'])},,0",
        f"0,near,dated.jpg,320,240,{len(files['dated.jpg'])},2023-07-14T18:02:11,0",
        f"0,near,small.png,160,120,{len(files['small.png'])},,0",
    ]


def test_ties_are_kept_by_date_then_by_name():
    facts = np.zeros(6, images.FACTS)
    facts["width"], facts["height"] = 8, [8, 8, 8, 8, 8, 9]
    facts["bytes"] = [5, 5, 5, 7, 7, 1]
    facts["taken"] = ["", "2020-01-01T00:00:00", "2019-01-01T00:00:00", "", "", ""]
    keep = duplicates._to_keep(np.array([0, 0, 0, 1, 1, 1]), facts, [""] * 6)
    assert keep.tolist() == [False, False, True, False, False, True]
    keep = duplicates._to_keep(np.array([0, 0, 0, 1, 1, 2]), facts, [""] * 6)
    assert keep.tolist() == [False, False, True, True, False, True]


def test_the_original_is_kept_of_what_was_made_of_it():
    """Not the one that a tag has made larger by some bytes, nor the turned or the edited one."""
    files = {
        "trip/IMG_7.jpg": (4000, 3000, 3_000_000, "2023"),
        "trip/IMG_7_turned.jpg": (3000, 4000, 3_900_000, "2023"),
        "tagged.jpg": (800, 600, 90_017, ""),
        "first.jpg": (800, 600, 90_004, "2021"),
        "IMG_12.jpg": (640, 480, 50_000, ""),  # IMG_1 is another photo's number.
        "IMG_1.jpg": (640, 480, 30_000, ""),
        "sent.jpg": (1600, 1200, 100_000, "2020"),
        "sent (1).jpg": (1600, 1200, 300_000, "2022"),
        "large.jpg": (1000, 800, 10, ""),
        "cropped.jpg": (900, 800, 999_999, "2020"),
    }
    facts = np.zeros(10, images.FACTS)
    for i, values in enumerate(files.values()):
        facts["width"][i], facts["height"][i], facts["bytes"][i], facts["taken"][i] = values
    keep = duplicates._to_keep(np.arange(10) // 2, facts, list(files))
    assert [name for name, kept in zip(files, keep, strict=True) if kept] == [
        "trip/IMG_7.jpg", "first.jpg", "IMG_12.jpg", "sent (1).jpg", "large.jpg",
    ]  # fmt: skip


def test_damaged_files_are_no_copies(tmp_path):
    dataset = folder(tmp_path, {"a.png": write(photo()), "b.png": write(photo(1))})
    (tmp_path / "b.png").write_bytes(b"gone")
    assert pictures.read(dataset, 1) is None
    assert duplicates.find(dataset, np.ones((2, 3))).n_groups == 0


def test_images_that_are_streamed_are_not_fetched_in_their_own_threads():
    """`fetch` waits for threads that would wait for it, if all of them compared pictures."""
    rng, threads = np.random.default_rng(0), set()
    values = rng.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    values[4:] = values[:4]

    def fetch(indices):
        threads.add(threading.current_thread())
        return np.stack(images.map_indices(lambda i: values[i], indices))

    dataset = Dataset("stream", 8, (16, 16, 3), None, fetch)
    found = duplicates.find(dataset, values.reshape(8, -1).astype(float) + rng.normal(size=(8, 1)))
    assert found.n_groups == 4
    assert threads == {threading.current_thread()}
