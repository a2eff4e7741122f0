"""BYOL + NRCC on ImageNet-Dogs: NRCC Table 10 (ACC 0.726, number of clusters unknown).

    python -m cluster_jax.main --config=configs/nrcc_imagenet_dogs.py --config.data.dir=DIR

DIR is ImageNet-1k as in nrcc_imagenet, of which the 15 classes of dogs are taken. Other backbones
of Table 10: --config.network.name=resnet50, and nrcc_imagenet_dogs_vit; classes of other subsets:
experiments/sets.yaml. Intended for one GPU or a TPU slice.

From the paper: ResNet-34 without the changes for CIFAR, 224 pixels, training images alone.
Everything else is as in nrcc_cifar10.
Deviation: random crops are taken from the central square of 256 pixels; the paper takes them from
the whole image.
"""

from cluster_jax.core.config import derived

# Numbers of the classes, in the order of their WordNet IDs.
DOGS = (153, 156, 161, 174, 197, 207, 215, 216, 218, 224, 227, 230, 236, 254, 260)
DATA = {"name": "imagenet2012", "classes": DOGS, "image_size": 256}
AUGMENT, NETWORK = {"size": 224}, {"stem": "imagenet"}
get_config = derived("nrcc_cifar10", data=DATA, augment=AUGMENT, network=NETWORK)
