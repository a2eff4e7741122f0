"""BYOL + NRCC on ImageNet-1k: NRCC Table 10 (AMI 0.574, number of clusters unknown).

    python -m cluster_jax.main --config=configs/nrcc_imagenet.py --config.data.dir=DIR

Run the same command on every host of a Cloud TPU pod. DIR is a folder or bucket with the data set
prepared by TFDS as array_record or, with --config.data.name=folder, a folder of images;
--config.data.classes="(153, 200)" takes the images of these classes alone. Intended for a
slice of 16 chips of TPU v5e (64 images per chip and step).

From the paper: ResNet-50, 200 epochs, 224 pixels, rate 0.05 x batch / 256 and ten times that for
the predictor, tau 0.1, lambda 0.1, SGHMC's four constants.
From NCC's paper, where this one gives no value: weight decay 1e-4, EMA 0.996, blur.
Guess: the strengths of crop (at least 0.2 of the area) and jitter.
Deviations, each with the value that is printed, beside those of `nrcc_cifar10`:
  - train.batch_size, 1024 for 16 chips: 256 (Appendix), at four times the steps.
  - optimizer.warmup, 10 epochs: "50 steps".
  - Images are decoded to the central square of 256 pixels, after resizing the short side to 256,
    and random crops are taken from that square; the paper takes them from the whole image.
"""

from cluster_jax.core.config import derived

AUGMENT = {"size": 224, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

get_config = derived(
    "base",
    data={"name": "imagenet2012", "split": "train", "image_size": 256},
    augment={**AUGMENT, "blur": {"probability": 0.5, "kernel": 23}},
    network={"name": "resnet50", "stem": "imagenet"},
    nrcc={"like": "nrcc_cifar10"},
    optimizer={"weight_decay": 1e-4, "warmup": "10 epochs"},
    train={"batch_size": 1024, "duration": "200 epochs", "checkpoint_every": 2500},
)
