"""InfoNCE + NRCC on Fashion-MNIST, 70,000 images of clothes of 28 x 28 pixels, from nothing.

    python -m cluster_jax.main --config=configs/nrcc_fashion_mnist.py --config.data.dir=DIR

DIR holds the TFDS set `fashion_mnist`; --config.data.name=arrays takes an .npz file of `images` and
`labels` instead. Training took five to eight minutes on one CPU core. No paper uses this data set;
for results see experiments/log.md.

No setting was chosen by labels of this set. Network, temperature, lambda and optimizer are those of
`nrcc_digits`. Augmentation and embedding were chosen by the silhouette of k-means, with k given, on
the UMAP map of the embedding, in trainings of 300 steps without NRCC on 10,000 images: the highest
of eight augmentations and two embeddings.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config, base = load_config("nrcc_digits"), load_config("base")
    config.note = "The network, losses and optimizer of nrcc_digits were tuned on the digits."
    config.data.name = "fashion_mnist"
    config.data.split = "train+test"
    config.augment = base.augment
    config.augment.size = 28
    config.augment.crop = ConfigDict({"scale": (0.6, 1.0), "ratio": (3 / 4, 4 / 3)})
    config.augment.jitter.update(brightness=0.6, contrast=0.6)
    config.augment.grayscale = 0.0
    config.augment.noise = 0.08
    config.network.width = 16
    config.train.duration = "800 steps"
    config.eval.method = "tree"
    return config
