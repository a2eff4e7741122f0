"""Images unlike photos: train a network on them

Two minutes on two CPU cores, nothing to download. A network that was trained on photos says little
of handwriting, microscopy or scans, so this page trains one on the images themselves, the digits of
scikit-learn, without labels. All files go to `runs/tutorial`; run again, the page resumes there and
trains nothing twice.
"""

# %%
import pathlib

import numpy as np
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer, load
from cluster_jax.metrics import partition

OVERRIDES = {"train.duration": "600 steps"}  # the config's own 1500 give cleaner clusters
FOLDER = pathlib.Path("runs/tutorial")

# %% [markdown]
# ## The data
#
# An array of images is uint8 `[n, height, width]` or `[n, height, width, channels]`, or floats in
# [0, 1]. A folder of image files works as well: pass its path instead. We keep the last 197 images
# aside to play the part of images that arrive later.

# %%
digits = load_digits()
images = (digits.images * (255 / 16)).round().astype(np.uint8)
train_images, new_images = images[:1600], images[1600:]
true_labels, new_true_labels = digits.target[:1600], digits.target[1600:]
print(f"{len(train_images)} images of {train_images.shape[1:]} pixels, {len(new_images)} new ones")

# %% [markdown]
# ## Train and cluster
#
# The config `nrcc_digits` trains a small network by InfoNCE with NRCC; for photos leave `config`
# out. `overrides` takes any key of `configs/base.py`. No number of clusters is given: UMAP maps
# the features to three dimensions and GridShift finds the modes and their number there.

# %%
clusterer = ImageClusterer(
    config="nrcc_digits",
    overrides=OVERRIDES,
    workdir=FOLDER / "run",
    verbose=False,
).fit(train_images)

# %% [markdown]
# ## Look at the clusters
#
# `labels_` has the cluster of each image, and `distances_` the distance to the center of the
# cluster. The nearest images are the most typical ones. `outliers_` marks the images of clusters
# that are too small to count.

# %%
print(f"Found {clusterer.n_clusters_} clusters and {clusterer.outliers_.sum()} outliers.")
clusters, sizes = np.unique(clusterer.labels_[~clusterer.outliers_], return_counts=True)
for cluster, size in zip(clusters, sizes, strict=True):
    members = np.flatnonzero(clusterer.labels_ == cluster)
    typical = members[np.argsort(clusterer.distances_[members])[:8]]
    print(f"cluster {cluster:3d}: {size:4d} images; most typical are digits", true_labels[typical])

# %% [markdown]
# Labels were not used so far. With labels, you can score the clusters.

# %%
scores = partition.scores(true_labels, clusterer.labels_)
print(f"GridShift: ACC {scores['acc']:.3f}, NMI {scores['nmi']:.3f}")

# %% [markdown]
# ## Choose the number of clusters yourself
#
# GridShift finds the number of clusters, and cannot be given one. `SmoothTree` can. The images and
# the workdir are the same, so nothing is trained again: the stored features are clustered anew.

# %%
ten_clusters = ImageClusterer(**clusterer.get_params())
ten_clusters.set_params(n_clusters=10, overrides={**OVERRIDES, "eval.method": "tree"})
ten_clusters.fit(train_images)
scores = partition.scores(true_labels, ten_clusters.labels_)
print(f"ten clusters of the tree: ACC {scores['acc']:.3f}, NMI {scores['nmi']:.3f}")

# %% [markdown]
# ## Assign new images
#
# `predict` embeds new images by the trained network, and assigns each to a cluster. The other
# images of the call have no influence. `assign` also returns distances, and marks images that are
# unlike all training images, here an image of noise.

# %%
new_labels = ten_clusters.predict(new_images)
scores = partition.scores(new_true_labels, new_labels)
print(f"{len(new_images)} new images: ACC {scores['acc']:.3f}")

noise = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
for name, batch in {"digits": new_images, "noise": noise}.items():
    share = ten_clusters.assign(batch).is_novel.mean()
    print(f"{name}: {share:.0%} flagged as unlike the training images")

# %% [markdown]
# ## Report, save, load
#
# The report is one HTML file that opens offline: a map of the images, a contact sheet of each
# cluster, sizes, and the tree. A saved folder holds all that new images need; nothing is pickled.

# %%
print("report:", ten_clusters.report(FOLDER / "report.html"))
if not (FOLDER / "saved").exists():
    ten_clusters.save(FOLDER / "saved")
restored = load(FOLDER / "saved")
assert (restored.predict(new_images) == new_labels).all()
print("saved: ", FOLDER / "saved")
