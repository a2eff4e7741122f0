r"""Clustering of embeddings, with and without a given number of clusters.

**`SmoothTree`** finds the number of clusters in any embedding; choose it first. Rows are projected
to the principal axes above noise, whitened by the differences of neighbors, and averaged twice over
their k nearest neighbors (ten, fewer in small sets),

$$x_i \leftarrow \frac{1}{k + 1} \Big( x_i + \sum_{j \in N(i)} x_j \Big),$$

which contracts dense regions. For each number of clusters, k-means of the averaged rows starts from
a cut of Ward's tree. The number with the highest silhouette is chosen, averaged over the rows
before and after smoothing, if it is high enough above that of Gaussian rows of the same covariance.
Two clusters are apart if rows are rare between them. A cluster that has parts that are apart is
replaced by them. The verdict is "clear" if all clusters are apart, "one_cluster" if there is one
that has no parts, and otherwise "unclear", a best guess. `cut` gives coarser and finer groups of
one tree, `predict` assigns new rows. Equal rows count once, and too many rows to compare all pairs
are condensed first.
The algorithm is the project's own, see `cluster_jax.clustering.tree_fit` and `verdict`.

**`GridShift`** after `reduce` is NRCC's way (section 3.6): UMAP to three dimensions, then mean
shift on a grid of cells of side $h$. All occupied cells move to the weighted mean of the $3^d$
cells around them, and cells that meet merge; the last ones are the modes:

$$\mu_c \leftarrow \frac{\sum_{b \in B(c)} w_b \, \mu_b}{\sum_{b \in B(c)} w_b}$$

Choose it to follow the paper, or for millions of points in few dimensions: its time is linear. The
clusters depend on the map. Deviations from the paper: `bandwidth="auto"` chooses $h$ without
labels; and cells move until none moves any more, where the authors stop after the first step
without a merge (`stop="no_merge"`).

**`kmeans`** needs the number of clusters. It is Euclidean or spherical, starts by k-means++, and
runs on all devices of a mesh, as NCC's E-step does. Choose it for a known number or millions of
rows of many dimensions. `kmeans_blocks` reads rows that need not fit into memory, in blocks.

A user-defined clusterer is a Python file with a function `fit`, see `custom`.

`label_spreading` spreads labels over the graph of nearest neighbors (Zhou et al. 2004), `sinkhorn`
balances the sizes of classes, and `linkage_of_means` with `cut_tree` merges clusters by the
similarity of their means.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
