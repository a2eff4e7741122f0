"""SimCLR on features of images: neighbors as positives, a small head, no given number of clusters.

    python -m cluster_jax.main --config=configs/simclr_features.py --config.data.dir=x.npz

x.npz, .npy or .csv holds features `[n, d]` by any network, or `[n, v, d]` with v views of each
image (`cluster-jax embed` makes them). A view of a row is a random point between it and one of its
10 nearest neighbors; with cached views it starts from one of them. Rows are scaled to length one.
Training takes one to two minutes on two CPU cores; the search for neighbors compares all pairs of
rows, 3 s for 8,000 and minutes for 100,000.

Temperature, optimizer and number of steps are those of `nrcc_digits`; the size of the head and the
views were not tuned.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("base")
    config.data.name = "features"

    config.network.name = "mlp"
    config.network.width = 512
    config.network.stem = config_dict.placeholder(str)
    config.network.projector = ConfigDict({"hidden": 512, "out": 128})
    config.network.predictor = None

    config.method = ConfigDict(
        {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False}
    )
    config.nrcc.update(weight=0.0, temperature=0.5, branch="online")

    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.base_batch_size = config_dict.placeholder(int)
    config.optimizer.weight_decay = 1e-4
    config.optimizer.predictor_lr_multiplier = 1.0  # AdamW scales each parameter by itself
    config.optimizer.warmup = "100 steps"

    config.train.batch_size = 256
    config.train.duration = "1500 steps"
    config.train.checkpoint_every = 500

    config.eval.features = "projection"
    config.eval.reduce.n_neighbors = 15
    return config
