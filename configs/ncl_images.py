"""NCL on images of your own, some of known classes: what `ImageClusterer.fit(X, y)` runs.

    python -m cluster_jax.main --config=configs/ncl_images.py --config.data.dir=DIR
        --config.novel.classes=3 --config.method.classes=5

DIR has a folder for each class; by name the first 3 are known, what is in the others is to be
sorted into 5 novel classes. At least 64 images of known classes and 64 others.

Network, size and augmentation are those of `images`, the losses and their constants those of
`ncl_digits` but for lambda. With it, 0.45, one pair in five counts as similar on CIFAR-10, right
for five novel classes of one size. Even so the novel head finds nothing there, while k-means on the
features does (experiments/ncl/cifar10.py): on photos look at the k-means clusters first.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax import settings


def get_config():
    """The config."""
    config = settings.load("images")
    digits = settings.load("ncl_digits")
    config.network.projector = None
    config.network.frozen = digits.network.frozen
    config.method = digits.method
    config.method.classes = config_dict.placeholder(int)
    config.method.threshold = 0.45
    config.method.ramp = "200 steps"
    config.method.contrast_from = "20 steps"
    config.method.hng.start = "60 steps"
    config.optimizer.learning_rate = digits.optimizer.learning_rate
    config.optimizer.warmup = "50 steps"
    config.train.update(labelled_rows=64, duration="1000 steps")
    config.eval.features = "backbone"
    config.stages = ConfigDict(
        {
            "rotation": {
                "method": {"name": "rotation"},
                "network": {"frozen": None},
                "train": {"labelled_rows": None, "duration": "500 steps"},
            },
            "supervised": {
                "method": {"name": "supervised"},
                "train": {"batch_size": 64, "labelled_rows": 64, "duration": "500 steps"},
            },
        }
    )
    return config
