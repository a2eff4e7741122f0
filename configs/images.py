"""SimCLR on images of your own: the default of `ImageClusterer`, meant for a laptop's CPU.

    python -m cluster_jax.main --config=configs/images.py --config.data.dir=DIR

DIR is a folder of images, at least 128 of them. It takes about six minutes on two cores, whatever
their number: 1,500 steps of 128 images at 32 pixels. With an accelerator take nrcc_imagenet, or
raise data.image_size, augment.size, network.width and train.duration.

Network, optimizer and steps are those of nrcc_digits without NRCC, which would double the time;
nrcc.weight=0.5 adds it. The augmentation is that of the base. Not tuned on photographs, but for one
choice, the projection as the embedding. On 3,000 of them in 10 classes (300 of each class of
Imagenette) k-means with the number given has ACC 0.35, on the pixels 0.22, and GridShift says that
it has no clear answer: so few images, so small, do not make a network that knows things.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("base")
    config.data.name = "folder"
    config.data.image_size = 40
    config.augment.size = 32

    config.network.name = "small"
    config.network.width = 24
    config.network.stem = config_dict.placeholder(str)
    config.network.projector = ConfigDict({"hidden": 256, "out": 128})
    config.network.predictor = None

    config.method = ConfigDict(
        {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False}
    )
    config.nrcc.weight = 0.0
    config.nrcc.branch = "online"

    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.base_batch_size = config_dict.placeholder(int)
    config.optimizer.weight_decay = 1e-4
    config.optimizer.predictor_lr_multiplier = 1.0  # AdamW scales each parameter by itself
    config.optimizer.warmup = "100 steps"

    config.train.batch_size = 128
    config.train.duration = "1500 steps"
    config.train.checkpoint_every = 500

    config.eval.features = "projection"
    config.eval.reduce.n_neighbors = 15
    return config
