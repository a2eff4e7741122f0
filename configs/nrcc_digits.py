"""InfoNCE + NRCC on scikit-learn's digits: the default config, no download.

    python -m cluster_jax.main --config=configs/nrcc_digits.py

1,797 images of 8 x 8 pixels; takes three to ten minutes on 2 CPU cores. The paper does not use
this data set, so there is no published result to compare with; for results see
experiments/log.md, "Trainings".

The network, the augmentation, the temperature, lambda, the number of steps, the choice of the
projection as the embedding and UMAP's 15 neighbors were tuned on the labels of the digits, as the
provenance of a run states. GridShift's bandwidth is found without labels.
"""

from cluster_jax.core.config import derived

AFFINE = {"rotation": 0.3, "scale": 0.18, "shift": 1.0, "shear": 0.3}
AUGMENT = {"size": 8, "crop": None, "flip": 0.0, "jitter": {"probability": 0.0}, "grayscale": 0.0}
NETWORK = {"name": "small", "width": 24, "stem": None, "predictor": None}
OPTIMIZER = {"name": "adamw", "learning_rate": 2e-3, "base_batch_size": None}
# AdamW scales each parameter by itself.
OPTIMIZER |= {"weight_decay": 1e-4, "predictor_lr_multiplier": 1.0, "warmup": "100 steps"}

get_config = derived(
    "base",
    note="The settings of nrcc_digits were tuned on the labels of the digits.",
    augment={**AUGMENT, "affine": AFFINE, "noise": 0.08},
    network={**NETWORK, "projector": {"hidden": 256, "out": 128}},
    method={"name": "simclr", "temperature": 0.5, "positive_in_denominator": False},
    nrcc={"like": "nrcc_cifar10", "weight": 0.5, "temperature": 0.5, "branch": "online"},
    optimizer=OPTIMIZER,
    train={"duration": "1500 steps", "checkpoint_every": 500},
    eval={"features": "projection", "n_neighbors": 15},
)
