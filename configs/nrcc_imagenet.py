"""BYOL + NRCC on ImageNet-1k: NRCC Table 10 (AMI 0.574, number of clusters unknown).

    python -m cluster_jax.main --config=configs/nrcc_imagenet.py --config.data.dir=DIR

Run the same command on every host of a Cloud TPU pod. DIR is a folder or bucket with the data set
prepared by TFDS as array_record or, with --config.data.name=folder, a folder of images;
--config.data.classes=imagenet_dogs takes the images of a list of classes alone. Intended for a pod
slice of at least 32 chips (about 32 images per chip and step).

From the paper: ResNet-50, 200 epochs, 224 pixels, tau 0.1, lambda 0.1, SGHMC's four constants.
From NCC's paper, where this one gives no value: base rate 0.4 for 256 images times batch / 256,
weight decay 1e-4, EMA 0.996, blur. Guesses: batch 1024, 10 epochs of warm-up.
Guess: the strengths of crop (at least 0.2 of the area) and jitter.
Deviation: images are decoded to the central square of 256 pixels, after resizing the short side to
256, and random crops are taken from that square; --config.data.crop=host takes them from the whole
image, as the paper does.
"""

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("base")
    config.data.name = "imagenet2012"
    config.data.split = "train"
    config.data.image_size = 256
    config.augment.size = 224
    config.augment.mean = (0.485, 0.456, 0.406)
    config.augment.std = (0.229, 0.224, 0.225)
    config.augment.blur.update(probability=0.5, kernel=23)

    config.network.name = "resnet50"
    config.network.stem = "imagenet"

    config.optimizer.learning_rate = 0.4
    config.optimizer.weight_decay = 1e-4
    config.optimizer.warmup = "10 epochs"

    config.train.batch_size = 1024
    config.train.duration = "200 epochs"
    config.train.checkpoint_every = 2500
    return config
