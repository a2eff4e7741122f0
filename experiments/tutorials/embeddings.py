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
# `SmoothTree` is a scikit-learn estimator that needs neither the number of clusters nor a map. Its
# verdict says how far to trust the number: "clear", "unclear" (a best guess), or
# "one_cluster".

# %%
tree = SmoothTree().fit(features[fitted])
print(tree.n_clusters_, "clusters:", tree.verdict_)
print("sizes", *np.bincount(tree.labels_))

# %% [markdown]
# The digits have ten classes, which the tree was not told: written by many hands, a digit has more
# than one shape. Where labels exist, they say how good the clusters are.

# %%
print(f"accuracy {accuracy(digits[fitted], tree.labels_):.2f}")

# %% [markdown]
# ## How sure each row is
#
# A probability is the share of votes of a row's neighbors; of new photos about that share
# [belongs to its cluster](../log.md#frozen-features-and-clusters). Rows between two clusters
# have low ones, and `second_labels_` names the second likeliest cluster.

# %%
sure = tree.probabilities_ > 0.9
print(f"{sure.mean():.0%} of the rows are surer than 0.9")
i = int(np.argmin(tree.probabilities_))
print(f"row {i}: cluster {tree.labels_[i]} or {tree.second_labels_[i]}")

# %% [markdown]
# ## Coarser and finer
#
# The clusters are one cut of a tree. `cut(n_clusters=)` takes another number of groups from the
# same tree: coarser groups are unions of finer ones.

# %%
for k in (2, 5, 10):
    groups = tree.cut(n_clusters=k)
    print(f"{k} groups of", *np.bincount(groups), "rows")
print(f"accuracy of 10 groups {accuracy(digits[fitted], groups):.2f}")

# %% [markdown]
# ## New rows
#
# `predict` places each new row among the clusters, whatever the other rows of the call are.

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
# The folder `out` gets a report with a map by UMAP, `assignments.csv` with cluster, probability and
# second likeliest cluster of each row, and `results.json`.
#
# New rows get their clusters from the folder: in Python by `cluster_jax.load("out")`, whose
# `predict`, `predict_proba`, `locate` and `cut` are those of the tree above, or by the command,
# which writes `out/predictions.csv`:
#
# ```bash
# cluster-jax predict --workdir=out --features=x.npy
# ```
#
# The probability of a row is the share of each cluster among the rows around it, for the rows of
# the run and for new ones alike; `is_novel` tells rows that are unlike all rows of the run. What a
# person corrects in the report, `cluster-jax report out --corrections=FILE` applies, and new rows
# follow.
