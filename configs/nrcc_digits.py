"""InfoNCE + NRCC on scikit-learn's digits: the default config, no download.

    python -m cluster_jax.main --config=configs/nrcc_digits.py

1,797 images of 8 x 8 pixels; takes about two minutes on 2 CPU cores. The paper does not use this
data set, so there is no published result to compare with; for results see README.md, "Measured".

The network, the augmentation, the temperature, lambda, the number of steps, the choice of the
projection as the embedding and UMAP's 15 neighbors were tuned on the labels of the digits, as the
provenance of a run states. GridShift's bandwidth is found without labels.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("base")
    config.note = "The settings of nrcc_digits were tuned on the labels of the digits."
    config.data.name = "digits"
    config.augment.size = 8
    config.augment.crop = None
    config.augment.flip = 0.0
    config.augment.jitter.probability = 0.0
    config.augment.grayscale = 0.0
    config.augment.affine.update(rotation=0.3, scale=0.18, shift=1.0, shear=0.3)
    config.augment.noise = 0.08

    config.network.name = "small"
    config.network.width = 24
    config.network.stem = config_dict.placeholder(str)
    config.network.projector = ConfigDict({"hidden": 256, "out": 128})
    config.network.predictor = None

    config.method = ConfigDict(
        {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False}
    )
    config.nrcc.weight = 0.5
    config.nrcc.temperature = 0.5
    config.nrcc.branch = "online"

    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
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
