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

from cluster_jax.core.config import derived

AUGMENT = {"like": "base", "size": 28, "grayscale": 0.0, "noise": 0.08}
AUGMENT |= {"crop": {"scale": (0.6, 1.0)}, "jitter": {"brightness": 0.6, "contrast": 0.6}}

get_config = derived(
    "nrcc_digits",
    note="The network, losses and optimizer of nrcc_digits were tuned on the digits.",
    data={"name": "fashion_mnist", "split": "train+test"},
    augment=AUGMENT,
    network={"width": 16},
    train={"duration": "800 steps"},
    eval={"method": "tree"},
)
