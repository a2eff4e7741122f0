"""Random walks over the commands of a run of images in memory, which are read once and never again.

Pictures, thumbnails and words come from the store, whatever a person decides.
"""

import collections
import io as streams

import numpy as np
import pytest
from PIL import Image

import cluster_jax
from cluster_jax.runs import run as records
from tests import toy
from tests.runs.test_photo_walk import KINDS, Walk, drawn, key_of
from tests.runs.walks import walk

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning"),
    pytest.mark.usefixtures("one_device", "shallow_lite"),
]

QUICK = {"data.image_size": 32, "eval.batch_size": 2, "eval.reduce": "pca"}
STEPS = (
    *("correct", "correct", "old_page", "two_files", "mind", "again", "keep", "name", "divide"),
    *("undo", "undo", "number", "nothing", "place", "killed", "killed", "locked"),
)


class ArrayWalk(Walk):
    """A run of an array, or of a sequence of PIL images; some images are there twice."""

    def __init__(self, home, seed):
        self.home, self.rng = home / "home", np.random.default_rng(seed)
        self.home.mkdir()
        self.count, self.has_labels, self.folders, self.excluded = 0, False, [], []
        self.decided, self.names, self.pages, self.past = {}, {}, [], []
        files = [
            drawn(self.rng, kind)
            for kind in range(KINDS)
            for _ in range(int(self.rng.integers(7, 12)))
        ]
        files += [files[i] for i in self.rng.choice(len(files), 3, replace=False)]
        pictures = [Image.open(streams.BytesIO(file)) for file in files]
        self.contents = [key_of(picture.tobytes()) for picture in pictures]
        pixels = np.stack([np.asarray(picture) for picture in pictures])
        self.colors = dict(zip(self.contents, pixels.mean(axis=(1, 2)), strict=True))
        self.images = pixels if seed % 2 else pictures
        self.fit()
        self.check()

    def fit(self, n_clusters=None):
        """The call that made the run, perhaps with another number of groups."""
        model = cluster_jax.ImageClusterer(
            overrides=QUICK, workdir=self.run, n_clusters=n_clusters, verbose=False
        )
        return model.fit(self.images)

    def there(self):
        return collections.Counter(self.contents)

    def keys(self, run):
        return [self.contents[row] for row in run.columns["row"].tolist()]

    def clusters(self):
        found = collections.defaultdict(list)
        keys = self.keys(records.read(self.run))
        for key, row in zip(keys, toy.table(self.run), strict=True):
            found[key].append(int(row["cluster"]))
        return {key: sorted(labels) for key, labels in found.items()}

    def changed(self, *flags, most=0.35, past=None):
        """Nothing changes but by a person."""

    def acts(self):
        return {"number": lambda: self.fit(3)}

    def number(self, command=None):
        had = records.read(self.run).options.n_clusters
        count = int(self.rng.choice([n for n in range(2, 6) if n != had]))
        self.remember()
        self.fit(count)
        alive = {label for labels in self.clusters().values() for label in labels}
        self.decided = {key: to for key, to in self.decided.items() if to in (*alive, -1)}
        assert len(alive - {-1}) == count or self.decided
        self.check()

    def nothing(self):
        before = self.digests()
        self.fit(records.read(self.run).options.n_clusters)
        assert self.digests() == before

    def place(self):
        """Each image of the run is placed where it is."""
        before, now = self.digests(), self.clusters()
        placed = cluster_jax.load(self.run).predict(self.images).tolist()
        assert self.digests() == before
        pairs = zip(self.contents, placed, strict=True)
        same = [label in now[key] for key, label in pairs if len({*now[key]}) == 1]
        assert np.mean(same) >= 0.9


@pytest.mark.parametrize("seed", [1, 2])
def test_a_walk_of_images_in_memory(tmp_path, seed):
    walk(ArrayWalk(tmp_path, seed), STEPS, seed, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_walks_of_images_in_memory(tmp_path, seed):
    walk(ArrayWalk(tmp_path, seed), STEPS, seed, 20)


def test_equal_pixels_alone_are_exact_copies_in_memory(tmp_path):
    """Thumbnails of two images that hardly differ may be equal, and only they are left later."""
    pixels = toy.images(24, channels=3)[0].repeat(12, axis=1).repeat(12, axis=2)
    pixels[1] = pixels[0]
    pixels[1, 0, 0] ^= 1
    pixels[3] = pixels[2]
    options = {"overrides": {**QUICK, "data.image_size": 96}, "verbose": False}
    for count in (None, 4):
        model = cluster_jax.ImageClusterer(workdir=tmp_path / "run", n_clusters=count, **options)
        found = model.fit(pixels)._run.duplicates
        assert found.images[found.is_exact].tolist() == [2, 3]
