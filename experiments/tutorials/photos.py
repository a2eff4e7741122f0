"""Photos: from a folder to groups, and a place for new ones

Half a minute on two CPU cores; nothing is trained. Use a folder of your own, or, to follow this
page exactly, the crops that the second cell makes of nine photographs in the public domain (CC0),
which come with scikit-image (`pip install scikit-image`).
"""

# %%
import pathlib

import numpy as np
import skimage.data
from PIL import Image

from cluster_jax import ImageClusterer

# %%
PHOTOS = ("astronaut", "brick", "camera", "chelsea", "coffee", "grass", "gravel", "moon", "rocket")
rng = np.random.default_rng(0)
for name in PHOTOS:
    photo = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    for i in range(25):
        side = int(min(photo.size) * rng.uniform(0.5, 0.8))
        x, y = (int(rng.integers(0, size - side)) for size in photo.size)
        folder = pathlib.Path("photos" if i < 24 else "new-photos")
        folder.mkdir(exist_ok=True)
        photo.crop((x, y, x + side, y + side)).resize((224, 224)).save(
            folder / f"{name}_{i:02d}.png"
        )

# %% [markdown]
# ## Groups
#
# A pretrained network, which comes with the package, embeds each photo; the groups and their number
# are found in these features. Names of files are not used, those of subfolders for scores only.

# %%
clusterer = ImageClusterer(verbose=False).fit("photos")
sizes = np.bincount(clusterer.labels_)
print(f"{clusterer.n_clusters_} groups of {len(clusterer.labels_)} photos:", sizes)

# %% [markdown]
# ## Look at them
#
# `files_` are the photos in the order of `labels_`, and `distances_` says how far each is from the
# center of its group: the nearest ones are typical. One row per group:


# %%
def contact_sheet(rows, side=56):
    sheet = Image.new("RGB", (side * max(map(len, rows)), side * len(rows)), "white")
    for y, row in enumerate(rows):
        for x, file in enumerate(row):
            photo = Image.open(pathlib.Path("photos") / file).convert("RGB").resize((side, side))
            sheet.paste(photo, (side * x, side * y))
    return sheet


rows = []
for group in range(clusterer.n_clusters_):
    members = np.flatnonzero(clusterer.labels_ == group)
    typical = members[np.argsort(clusterer.distances_[members])[:8]]
    rows.append([clusterer.files_[i] for i in typical])
contact_sheet(rows)

# %% [markdown]
# ## Fewer groups
#
# The groups are a cut of a tree; `cut(k=)` gives coarser or finer ones of the same tree.

# %%
print("in 4 groups:", np.bincount(clusterer.cut(k=4)))

# %% [markdown]
# ## New photos
#
# `locate` places new photos and says which are unlike all others; `nearest` finds similar ones.

# %%
placed = clusterer.locate("new-photos")
print("groups of the new photos:", placed.labels)
print("unlike all others:", placed.is_novel.sum())
similar = clusterer.nearest("new-photos", n=5)
contact_sheet([list(files) for files in similar.files[:3]])

# %% [markdown]
# ## Report and folders
#
# The report is one HTML file that opens offline: the groups beside their map, a large view of each
# photo, selection by lasso, corrections, near-duplicates. `export` writes a folder per group.

# %%
print("report:", clusterer.report("report.html"))
clusterer.export("groups")
print("folders:", len(list(pathlib.Path("groups").iterdir())))
