"""Novel classes: labels for some classes, none for the others

A minute on two CPU cores, nothing to download. Some kinds of images have labels; others are there,
too, and nobody has named them. NCL learns from both and sorts the unlabeled images into novel
classes.
"""

# %%
import numpy as np
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.metrics import accuracy

features, digits = load_digits(return_X_y=True)
features, new_features = features[:1500].astype(np.float32), features[1500:].astype(np.float32)
digits, new_digits = digits[:1500], digits[1500:]

# %% [markdown]
# ## What is known
#
# The digits 0 to 4 are labeled; -1 stands for "no label". It is assumed that no unlabeled image
# belongs to a known class. Names of classes may be strings, too.

# %%
labels = np.where(digits < 5, digits, -1)
print(f"{np.sum(labels >= 0)} labeled rows of 5 classes, {np.sum(labels < 0)} without a label")

# %% [markdown]
# ## Fit
#
# `fit(X, y)` takes images, or features if the config is one for features. Here the 64 pixels are
# the features. You must give the number of novel classes. The config trains five times as long as
# here.

# %%
overrides = {
    "data.name": "features",
    "train.duration": "200 steps",
    "optimizer.warmup": "20 steps",
    "eval.reduce": "pca",
}
clusterer = ImageClusterer("ncl_features", overrides=overrides, n_clusters=5, verbose=False)
clusterer.fit(features, labels)

# %% [markdown]
# ## Classes
#
# Labeled rows keep their class; each unlabeled row has a novel one.

# %%
for name, size in zip(*np.unique(clusterer.labels_, return_counts=True), strict=True):
    print(f"{name:8} {size:4} rows")
unlabeled = labels < 0
found = np.unique(clusterer.labels_[unlabeled], return_inverse=True)[1]
print(f"accuracy of the novel classes: {accuracy(digits[unlabeled], found):.2f}")

# %% [markdown]
# ## New images
#
# `predict` gives them known and novel classes alike; `assign` also says which are unlike all
# images of the fit.

# %%
placed = clusterer.predict(new_features)
known = new_digits < 5
right = placed[known] == new_digits[known].astype(str)
print(f"new rows of known classes: {right.mean():.2f} get theirs")
is_novel = np.char.startswith(placed[~known], "novel")
print(f"new rows of unknown classes: {is_novel.mean():.2f} get a novel one")

# %% [markdown]
# ## Photos
#
# For a folder of photos, `ImageClusterer(n_clusters=5).fit(photos, y)` embeds them first by the
# pretrained network, where `photos` is a list of files and `y` has an entry for each. (The files of
# a folder are in the order of their names, where `2.jpg` comes before `10.jpg`.) The command takes
# a folder for each class. The first five by name are known (`novel.classes`), and the images of the
# others are divided into five novel classes (`method.n_classes`):
#
# ```bash
# cluster-jax train --config=ncl_images --config.data.dir=DIR \
#   --config.novel.classes=5 --config.method.n_classes=5
# ```
