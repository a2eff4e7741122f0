"""SimCLR on features of images: neighbors as positives, a small head, no given number of clusters.

    python -m cluster_jax.main --config=configs/simclr_features.py --config.data.dir=x.npz

x.npz, .npy or .csv holds features `[n, d]` by any network (`cluster-jax embed` makes them). A view
of a row is a random point between it and one of its 10 nearest neighbors. Rows are scaled to length
one.
Training took 68 to 151 s on one busy CPU core for 1,500 to 10,000 rows of Lite0's features;
the search for neighbors compares all pairs of rows.

k-means is spherical, by the cosine of the loss, and the best of 50 runs: by the Euclidean one, or
with 10 runs, much of what the training gains is lost, as was seen on Lite0's features.

Temperature, optimizer (at half the rate) and number of steps are those of `nrcc_digits`; rate, size
of the head and views were not tuned.
"""

from cluster_jax.core.config import derived

get_config = derived(
    "nrcc_digits",
    note="",
    data={"name": "features"},
    augment={"like": "base"},
    network={"name": "mlp", "width": 512, "projector": {"hidden": 512}},
    nrcc={"weight": 0.0},
    optimizer={"learning_rate": 1e-3},
    # Your own features: no paper's figure is to be repeated.
    eval={"method": "tree", "n_init": 50, "kmeans": {"metric": "spherical"}},
)
