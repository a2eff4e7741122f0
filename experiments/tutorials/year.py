"""A year of photos: the same groups in twelve updates

Two and a half minutes on two CPU cores; nothing is trained and nothing is downloaded. The photos
are crops of photographs in the public domain, which come with scikit-image (`pip install
scikit-image`). Each month brings some of the kinds that are there; in April and in September a new
kind appears.
"""

# %%
import json
import pathlib

import numpy as np
import skimage.data
from PIL import Image

from cluster_jax import ImageClusterer
from cluster_jax.report import assignments, decisions
from cluster_jax.runs import corrections, history, updates

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
# In the shell, `cluster-jax images year --out=run`.

# %%
take("00", chelsea=14, coffee=14, rocket=14, moon=14)
model = ImageClusterer(workdir="run", verbose=False).fit("year")
print(f"{model.n_clusters_} groups in {len(model.labels_)} photos")

# %% [markdown]
# ## January to June
#
# Each month, `cluster-jax update --workdir=run` takes in the photos that are there now. In April
# there are the first photos of an astronaut, in June one photo was deleted and one renamed.

# %%
for month in ("01", "02", "03", "04", "05", "06"):
    take(month, chelsea=2, coffee=2, rocket=1, moon=1, astronaut=9 if month == "04" else 0)
    if month == "06":
        (folder / "00_coffee_00.png").unlink()
        (folder / "00_coffee_01.png").rename(folder / "cup.png")
    print(f"{month}:", updates.update_photos("run")[0])

# %% [markdown]
# ## What you say
#
# The page `run/report.html` saves what you name and move as a file, and `cluster-jax report run
# --corrections=FILE` applies it. Here the file is written by a program: the group of the cat gets
# a name.

# %%
_, found = decisions.clustered(assignments.read_workdir("run"))
cat = int(found.labels[found.names.index("00_chelsea_00.png")])
said = decisions.Decisions(named={cat: "Chelsea"})
pathlib.Path("corrections.csv").write_text(decisions.to_csv(said, found))
print(corrections.correct("run", ["corrections.csv"])[0].splitlines()[0])

# %% [markdown]
# ## July to December
#
# In September grass is new. The name stays with its group.

# %%
for month in ("07", "08", "09", "10", "11", "12"):
    take(month, chelsea=2, coffee=1, astronaut=2, moon=1, grass=9 if month == "09" else 0)
    print(f"{month}:", updates.update_photos("run")[0])

# %% [markdown]
# ## The year
#
# `run/history.jsonl` has a line for each update, and `cluster-jax report run@0 run` compares the
# groups of the first photos with those of December.

# %%
for line in map(json.loads, pathlib.Path("run/history.jsonl").read_text().splitlines()):
    print(f"update {line['update']:2}: {line['new']:2} new, {line['photos']} photos,", end=" ")
    print(f"{line['clusters']} groups")
compared = history.compare("run@0", "run")
print(f"{len(compared.moved)} of the first photos are in another group now")
