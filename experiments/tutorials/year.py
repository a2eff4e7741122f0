"""A year of photos: the same groups in twelve updates

Two and a half minutes on two CPU cores; nothing is trained and nothing is downloaded. The photos
are crops of photographs in the public domain, which come with scikit-image (`pip install
scikit-image`). Each month brings some of the kinds that are there; in April and in September a new
kind appears.
"""

# %%
import pathlib

import numpy as np
import skimage.data
from PIL import Image

from cluster_jax import ImageClusterer
from cluster_jax.runs import states, update

rng = np.random.default_rng(0)
folder = pathlib.Path("year")
folder.mkdir(exist_ok=True)


def take(month, **counts):
    """Adds photos of a month: so many crops of each photograph."""
    for name, count in counts.items():
        photo = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        for i in range(count):
            side = int(min(photo.size) * rng.uniform(0.5, 0.8))
            x, y = (int(rng.integers(0, size - side)) for size in photo.size)
            crop = photo.crop((x, y, x + side, y + side)).resize((224, 224))
            crop.save(folder / f"{month}_{name}_{i:02d}.png")


# %% [markdown]
# ## The photos so far
#
# In the shell, `cluster-jax images year --workdir=run`.

# %%
take("00", chelsea=14, coffee=14, rocket=14, moon=14)
model = ImageClusterer(workdir="run", verbose=False).fit("year")
print(f"{model.n_clusters_} groups in {len(model.labels_)} photos")

# %% [markdown]
# ## January to June
#
# Each month, `cluster-jax update --workdir=run` reads the folder again. In April the first photos
# of an astronaut appear. In June one photo was deleted, and one was renamed.

# %%
for month in ("01", "02", "03", "04", "05", "06"):
    take(month, chelsea=2, coffee=2, rocket=1, moon=1, astronaut=9 if month == "04" else 0)
    if month == "06":
        (folder / "00_coffee_00.png").unlink()
        (folder / "00_coffee_01.png").rename(folder / "cup.png")
    print(f"{month}:", update.update_photos("run")[0])

# %% [markdown]
# ## Corrections
#
# The page `run/report.html` saves your names and corrections as a file, and `cluster-jax report run
# --corrections=FILE` applies it. For a name you do not need the page: `cluster-jax report run
# --name=NUMBER=NAME`. Here we name the group of the cat.

# %%
now = ImageClusterer.load("run")
cat = now.labels_[now.files_.index("00_chelsea_00.png")]
print(states.correct("run", names={str(cat): "Chelsea"})[0].splitlines()[0])

# %% [markdown]
# ## July to December
#
# In September the first photos of grass appear. The name stays with its group.

# %%
for month in ("07", "08", "09", "10", "11", "12"):
    take(month, chelsea=2, coffee=1, astronaut=2, moon=1, grass=9 if month == "09" else 0)
    print(f"{month}:", update.update_photos("run")[0])

# %% [markdown]
# ## The year
#
# `run/changes.csv` lists what the last update has changed, photo by photo. `cluster-jax update
# --workdir=run --undo` undoes it, and can be repeated.

# %%
print(pathlib.Path("run/changes.csv").read_text())
now = ImageClusterer.load("run")
print(f"{now.n_clusters_} groups in {len(now.labels_)} photos")
group = dict(zip(now.files_, now.labels_.tolist(), strict=True))
first = zip(model.files_, model.labels_.tolist(), strict=True)
moved = [name for name, label in first if group.get(name, label) != label]
print(f"{len(moved)} of the first photos are in another group now")
