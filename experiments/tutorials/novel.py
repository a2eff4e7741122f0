"""Novel classes: labels for some classes, none for the others

About a minute on a CPU. You know some kinds of images and have labels for them; the others hold
kinds without a label. NCL learns from both and sorts the unlabeled images into novel classes.
"""

# %%
import numpy as np
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.metrics import accuracy

features, digits = load_digits(return_X_y=True)

# %% [markdown]
# ## What is known
#
# The digits 0 to 4 are labeled, 5 to 9 are not: their label is -1. It is assumed that no unlabeled
# image belongs to a known class.

# %%
labels = np.where(digits < 5, digits, -1)
print(f"{np.sum(labels >= 0)} labeled rows of 5 classes, {np.sum(labels < 0)} without a label")

# %% [markdown]
# ## Fit
#
# `fit(X, y)` takes images, or features with a config of features. The number of novel classes must
# be given. The training is short here; the config's own is longer.

# %%
overrides = {
    "data.name": "features",
    "train.duration": "200 steps",
    "optimizer.warmup": "20 steps",
    "eval.reduce.method": "pca",
}
clusterer = ImageClusterer("ncl_features", overrides=overrides, n_clusters=5, verbose=False)
clusterer.fit(features.astype(np.float32), labels)

# %% [markdown]
# ## Classes
#
# Each row has the known class of its label, or a novel class.

# %%
print(*np.unique(clusterer.labels_), sep=", ")
unlabeled = labels < 0
found = np.unique(clusterer.labels_[unlabeled], return_inverse=True)[1]
print(f"accuracy of the novel classes {accuracy(digits[unlabeled], found):.1f}")

# %% [markdown]
# New images get a known or a novel class from `predict`; `locate` also says which are unlike all
# training images. For a folder of photos, `ImageClusterer(n_clusters=5).fit("photos", y)` embeds
# with the pretrained network first.
