"""SimCLR on features of images: neighbors as positives, a small head, no given number of clusters.

    python -m cluster_jax.main --config=configs/simclr_features.py --config.data.dir=x.npz

x.npz, .npy or .csv holds features `[n, d]` by any network, or `[n, v, d]` with v views of each
image (`cluster-jax embed` makes them). A view of a row is a random point between it and one of its
10 nearest neighbors; with cached views it starts from one of them. Rows are scaled to length one.
Training took 68 to 151 s on one busy CPU core for 1,500 to 10,000 rows (experiments/features.py);
the search for neighbors compares all pairs of rows.

k-means is spherical, by the cosine of the loss, and the best of 50 runs: by the Euclidean one, or
with 10 runs, much of what the training gains is lost (experiments/features.md).

Temperature, optimizer (at half the rate) and number of steps are those of `nrcc_digits`; rate, size
of the head and views were not tuned.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("base")
    config.data.name = "features"

    digits = load_config("nrcc_digits")
    config.network.name = "mlp"
    config.network.width = 512
    config.network.stem = config_dict.placeholder(str)
    config.network.projector = ConfigDict({"hidden": 512, "out": 128})
    config.network.predictor = None

    config.method = digits.method
    config.nrcc.update(weight=0.0, temperature=digits.nrcc.temperature, branch="online")

    config.optimizer = digits.optimizer
    config.optimizer.learning_rate = 1e-3

    config.train.batch_size = 256
    config.train.duration = "1500 steps"
    config.train.checkpoint_every = 500

    config.eval.features = "projection"
    config.eval.method = "tree"  # your own features: no paper's figure is to be repeated
    config.eval.reduce.n_neighbors = 15
    config.eval.kmeans.update(n_init=50, metric="spherical")
    return config
