"""Photos: from a folder to groups, and a place for new ones

Half a minute on two CPU cores; nothing is trained and nothing is downloaded. Put your own photos
into the folders `photos` and `new-photos`, and leave out the second cell. Or run the second cell,
which fills the folders with crops of nine photographs in the public domain; they come with
scikit-image (`pip install scikit-image`).
"""

# %%
import pathlib

import numpy as np
from PIL import Image

from cluster_jax import ImageClusterer

rng = np.random.default_rng(0)

# %%
import skimage.data

PHOTOS = ("astronaut", "brick", "camera", "chelsea", "coffee", "grass", "gravel", "moon", "rocket")
for folder in ("photos", "new-photos"):
    pathlib.Path(folder).mkdir(exist_ok=True)
for name in PHOTOS:
    photo = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    for i in range(25):
        side = int(min(photo.size) * rng.uniform(0.5, 0.8))
        x, y = (int(rng.integers(0, size - side)) for size in photo.size)
        crop = photo.crop((x, y, x + side, y + side)).resize((224, 224))
        crop.save(f"photos/{name}_{i:02d}.png" if i < 24 else f"new-photos/{name}.png")

# %% [markdown]
# ## Groups
#
# A pretrained network, which comes with the package, embeds each photo. The groups and their number
# are found in these features. The names of files and folders are not used.

# %%
clusterer = ImageClusterer(verbose=False).fit("photos")
print(f"{clusterer.n_clusters_} groups in {len(clusterer.labels_)} photos")
print("sizes:", np.bincount(clusterer.labels_))
print("verdict:", clusterer.results_["metrics"]["tree"]["verdict"])

# %% [markdown]
# The verdict says how far to trust the number of groups: "clear", "unclear" (a best guess)
# or "one_cluster".
#
# ## Look at them
#
# `files_` are the photos in the order of `labels_`, and `distances_` says how far each is from the
# center of its group: the nearest ones are typical. One row per group:


# %%
def contact_sheet(rows, side=56):
    sheet = Image.new("RGB", (side * max(map(len, rows)), side * len(rows)), "white")
    for y, row in enumerate(rows):
        for x, file in enumerate(row):
            sheet.paste(Image.open(file).convert("RGB").resize((side, side)), (side * x, side * y))
    return sheet


rows = []
for group in range(clusterer.n_clusters_):
    members = np.flatnonzero(clusterer.labels_ == group)
    typical = members[np.argsort(clusterer.distances_[members])[:8]]
    rows.append([f"photos/{clusterer.files_[i]}" for i in typical])
contact_sheet(rows)

# %% [markdown]
# ## Names
#
# Each group gets suggested names: the classes of ImageNet that the network finds most probable.
# They are good for what is a class of ImageNet, such as a cup or a cat, and at best a hint for the
# rest.

# %%
for group, names in clusterer.results_["suggested_names"].items():
    print(group, ", ".join(names))

# %% [markdown]
# ## Fewer groups
#
# The groups are one level of a tree. `cut` returns another level. Here it merges the most similar
# groups until four are left, each with the number of the largest one in it.

# %%
numbers, sizes = np.unique(clusterer.cut(n_clusters=4), return_counts=True)
print("in 4 groups:", sizes, "with the numbers", numbers)

# %% [markdown]
# ## New photos
#
# `assign` finds the groups of new photos. A list of files keeps its order; those of a folder are in
# the order of their names, where `2.jpg` comes before `10.jpg`. `is_novel` marks photos that are
# unlike all photos of the fit. It is a hint, and also marks about one in twenty photos of known
# kinds: here the picture of noise, but also the coffee. `nearest` finds the most similar photos: a
# new photo on the left, the nearest ones beside it.

# %%
noise = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
Image.fromarray(noise).save("new-photos/zz_noise.png")
new = sorted(pathlib.Path("new-photos").iterdir())
placed = clusterer.assign(new)
for file, group, is_novel in zip(new, placed.labels, placed.is_novel, strict=True):
    print(f"{file.name:14} group {group}", "(unlike all others)" if is_novel else "")
similar = clusterer.nearest(new, n=7)
contact_sheet([[n, *(f"photos/{f}" for f in fs)] for n, fs in zip(new, similar.files, strict=True)])

# %% [markdown]
# ## Report and folders
#
# The report is one HTML file that opens offline, with the groups, their map, and near-duplicates;
# there you name groups and correct them. `export` writes a folder of each group. `save` writes a
# run, which assigns new photos later: `cluster_jax.load("run").predict("more-photos")`.

# %%
clusterer.report("report.html")
clusterer.export("groups")
clusterer.save("run")
print(len(list(pathlib.Path("groups").iterdir())), "folders")

# %% [markdown]
# ## From the shell
#
# ```bash
# cluster-jax images photos --workdir=shell-run --open
# cluster-jax predict --workdir=shell-run --images=new-photos
# ```
