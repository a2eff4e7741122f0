r"""Kernel-InfoNCE on Tiny-ImageNet: Kernel-InfoNCE Table 1, its largest set.

    python -m cluster_jax.main --config=configs/kernel_infonce_tiny_imagenet.py \
        --config.data.dir=DIR

DIR has the images of Tiny-ImageNet's training split, a folder for each of its 200 classes, of 64
pixels. Intended for one host with GPUs or TPU chips.

All else is as in `kernel_infonce_cifar10`, from the paper and by guess.
Deviation: the linear probe is scored on a fifth of the training images, because the validation
images lie in one folder.
"""

from cluster_jax.core.config import derived

DATA, NOVEL = {"name": "folder", "split": None, "image_size": 64}, {"test_split": None}
get_config = derived("kernel_infonce_cifar10", data=DATA, novel=NOVEL, augment={"size": 64})
