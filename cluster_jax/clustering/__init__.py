r"""Clustering of embeddings, with and without a given number of clusters.

**`SmoothTree`** finds the number of clusters in any embedding; choose it first. Rows are projected
to the principal axes that exceed noise, whitened by the differences of neighbors, and averaged
twice over their k nearest neighbors, ten but in small sets,

$$x_i \leftarrow \frac{1}{k + 1} \Big( x_i + \sum_{j \in N(i)} x_j \Big),$$

which contracts dense regions. For each number of clusters, a cut of Ward's tree starts k-means on
the averaged rows; the number with the highest silhouette, of the rows before and after averaging
together, wins. How far the silhouette of the rows *before* averaging exceeds that of a Gaussian of
the same covariance is the verdict: "one_cluster" below 0.1, "clear" from 0.3 of the largest
possible excess, between them "unclear", a best guess. `cut` gives
coarser and finer groups of one tree, `predict` places new rows by a vote of their neighbors.
Copies of rows change nothing, and more rows than can be compared are condensed first.
The algorithm is the project's own; its parts are named in `cluster_jax.clustering.smooth_tree`.

**`GridShift`** after `reduce` is NRCC's way (section 3.6): UMAP to three dimensions, then mean
shift on a grid of cells of side $h$. All occupied cells move to the weighted mean of the $3^d$
cells around them, and cells that meet merge; the last ones are the modes:

$$\mu_c \leftarrow \frac{\sum_{b \in B(c)} w_b \, \mu_b}{\sum_{b \in B(c)} w_b}$$

Choose it to follow the paper, or for millions of points in few dimensions: its time is linear.
Its answer depends on the map. Deviations: `bandwidth="auto"`, which selects $h$ without labels, is
ours; and cells move until none does, where GridShift's authors stop after the first step without a
merge (`stop="no_merge"`).

**`kmeans`** needs the number of clusters. It is Euclidean or spherical, starts by k-means++, and
runs on all devices of a mesh, as NCC's E-step does. Choose it for a known number or millions of
rows of many dimensions. `kmeans_blocks` reads rows that do not fit into memory block by block.

A clusterer of one's own is a Python file with a function `fit`, see `custom`.

`label_spreading` spreads labels over the graph of nearest neighbors (Zhou et al. 2004), `sinkhorn`
balances the sizes of classes, `nearest` searches neighbors, and `linkage_of_means` with `cut_tree`
merges clusters by the similarity of their means.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
