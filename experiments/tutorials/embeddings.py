"""Embeddings: clusters of features that you have already

Seconds on a CPU, nothing to download. Any rows of numbers do: features of a network, of text, of
sound. Here they are the pixels of scikit-learn's digits, 64 numbers each.
"""

# %%
import numpy as np
from sklearn.datasets import load_digits

from cluster_jax import SmoothTree
from cluster_jax.metrics import accuracy

features, digits = load_digits(return_X_y=True)
known, new = features[:1500], features[1500:]

# %% [markdown]
# ## How many clusters
#
# `SmoothTree` is a scikit-learn estimator that needs no number of clusters and no map. Its verdict
# says how far to trust the number: "clear", "no clear answer" (a best guess), or "one cluster".

# %%
tree = SmoothTree().fit(known)
print(tree.n_clusters_, "clusters:", tree.verdict_)
print("sizes", np.bincount(tree.labels_))

# %% [markdown]
# The digits have ten classes, which the tree was not told. Where labels exist, they tell how good
# the clusters are.

# %%
print(f"accuracy {accuracy(digits[:1500], tree.labels_):.2f}")

# %% [markdown]
# ## How sure each row is
#
# A probability is the share of votes of a row's neighbors. Low ones are rows between two clusters.

# %%
print(f"{np.mean(tree.probabilities_ > 0.9):.0%} of the rows are surer than 0.9")

# %% [markdown]
# ## Coarser and finer
#
# The clusters are one cut of a tree. `cut(k=)` gives another number of groups of the same tree, so
# that coarser groups are unions of finer ones.

# %%
for k in (2, 5, 10):
    groups = tree.cut(k=k)
    print(f"{k:2d} groups of {np.bincount(groups)} rows")
print(f"accuracy of 10 groups {accuracy(digits[:1500], groups):.2f}")

# %% [markdown]
# ## New rows
#
# `predict` places new rows among the clusters, each independently of the others.

# %%
placed = tree.predict(new)
print(f"accuracy of {len(new)} new rows {accuracy(digits[1500:], placed):.2f}")

# %% [markdown]
# ## From the shell
#
# `cluster-jax cluster --features=x.npy` does the same with a file (`.npy`, `.npz`, `.csv`, `.tsv`)
# and writes `assignments.csv`, `results.json` and a report; `--method` chooses GridShift or
# k-means.
