"""Embeddings: clusters of features that you already have

Seconds on a CPU, nothing to download. Any rows of numbers will do: features of a network, of text,
of sound. Here they are the pixels of scikit-learn's digits, 64 numbers each.
"""

# %%
import numpy as np
from sklearn.datasets import load_digits

from cluster_jax import SmoothTree
from cluster_jax.metrics import accuracy

features, digits = load_digits(return_X_y=True)
fitted, new = slice(0, 1500), slice(1500, None)

# %% [markdown]
# ## How many clusters
#
# `SmoothTree` is a scikit-learn estimator that finds the number of clusters. Its verdict says how
# far to trust the number: "clear", "unclear" (a best guess), or "one_cluster".

# %%
tree = SmoothTree().fit(features[fitted])
print(tree.n_clusters_, "clusters:", tree.verdict_)
print("sizes", *np.bincount(tree.labels_))

# %% [markdown]
# There are more clusters than digits, because people write a digit in more than one way. With
# labels, you can score the clusters.

# %%
print(f"accuracy {accuracy(digits[fitted], tree.labels_):.2f}")

# %% [markdown]
# ## How sure each row is
#
# A probability is the share of the cluster among the row, its neighbors and theirs. It is low
# between two clusters. `second_labels_` is the most probable other cluster. On new photos of
# classes that the network knows, the probabilities are close to the share that is right; on others
# they [are too high](../number_of_clusters/probabilities.md).

# %%
sure = tree.probabilities_ > 0.9
print(f"{sure.mean():.0%} of the rows are surer than 0.9")
i = int(np.argmin(tree.probabilities_))
print(f"row {i}: cluster {tree.labels_[i]} or {tree.second_labels_[i]}")

# %% [markdown]
# ## Coarser and finer
#
# The clusters are one level of a tree. `cut` returns another level: it merges similar clusters, or
# splits them, until there are as many as you ask for. Merged clusters have the number of the
# largest of them.

# %%
for k in (2, 5, 10):
    groups = tree.cut(n_clusters=k)
    numbers, sizes = np.unique(groups, return_counts=True)
    print(f"{k} groups of", *sizes, "rows; their numbers:", *numbers)
print(f"accuracy of 10 groups {accuracy(digits[fitted], groups):.2f}")

# %% [markdown]
# ## New rows
#
# `predict` assigns each new row to a cluster. The other rows of the call have no influence.

# %%
placed = tree.predict(features[new])
print(f"accuracy of {len(placed)} new rows {accuracy(digits[new], placed):.2f}")

# %% [markdown]
# ## From the shell
#
# `cluster-jax cluster` does the same with a file: `.npy`, `.npz`, `.csv`, or `.parquet`.

# %%
np.save("x.npy", features)

# %% [markdown]
# ```bash
# cluster-jax cluster --features=x.npy --workdir=out
# ```
#
# It writes into the folder `out`: `report.html`, with a map; `assignments.csv`, with the
# cluster of each row, its probability, and the most probable other cluster; and `results.json`.
#
# This command assigns new rows, and writes `out/predictions.csv`:
#
# ```bash
# cluster-jax predict --workdir=out --features=x.npy
# ```
#
# In Python, `cluster_jax.load("out")` reads the folder, and has the methods `predict` and `cut` of
# the tree above.
