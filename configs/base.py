"""All config keys, with the settings that the papers share. Other configs start from this one.

Durations are strings: "1500 steps" or "200 epochs". A comment says what a key is, and what None
means where it may be None. The sections `method` and `nrcc` are described in full in
`cluster_jax/methods`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

VALUES = {
    "seed": 0,  # of all randomness
    "note": "",  # recorded in results.json, for example how the settings were chosen
    "data.name": "digits",  # "folder", "arrays", "features", or the name of a TFDS set
    "data.dir": placeholder(str),  # folder or file; of TFDS its data directory
    "data.split": placeholder(str),  # of a TFDS set, "train" or "train+test"
    "data.label": "label",  # feature of TFDS with the labels for scoring
    # Labels of a folder, for scores only: "folders", its subfolders; or a file, CSV of image, label
    "data.labels": "folders",
    # Side of the square that images are resized to; None: that of pretrained weights, or as it is
    "data.image_size": placeholder(int),
    "data.interpolation": "bicubic",  # of the resizing; None: that of pretrained weights
    "data.limit": placeholder(int),  # images of a random subset; None: all
    # Numbers of the classes to take, or None for all
    "data.classes": placeholder(tuple),
    "data.cache_mb": 2048.0,  # largest set that is kept decoded in memory, in 10^6 bytes
    "data.threads": 32,  # that decode images which are not kept in memory, on each host
    "data.max_corrupt_fraction": 0.05,  # largest fraction of unreadable files
    "data.exclude": (),  # globs of files and folders that are left out of a folder
    "augment.size": 32,  # side of a view in pixels; None: that of pretrained weights
    # Of each channel; None: that of pretrained weights, or measured on the images
    "augment.mean": placeholder(tuple),
    # Standard deviation of each channel; None: as for the mean
    "augment.std": placeholder(tuple),
    "augment.crop.scale": (0.2, 1.0),  # lowest and highest fraction of the area
    "augment.crop.ratio": (3 / 4, 4 / 3),  # lowest and highest width / height
    "augment.flip": 0.5,  # probability of a horizontal flip
    "augment.jitter.probability": 0.8,  # of color jitter
    "augment.jitter.brightness": 0.4,  # largest deviation of its factor from 1
    "augment.jitter.contrast": 0.4,  # likewise
    "augment.jitter.saturation": 0.2,  # likewise
    "augment.jitter.hue": 0.1,  # largest rotation in turns, at most 0.5
    "augment.grayscale": 0.2,  # probability of a gray view
    # The probability of blur and solarize may be a pair, for views a and b.
    "augment.blur.probability": 0.0,  # of Gaussian blur
    "augment.blur.sigma": (0.1, 2.0),  # lowest and highest standard deviation in pixels
    "augment.blur.kernel": 9,  # its size in pixels, odd
    "augment.solarize.probability": 0.0,  # of inverting the values above the threshold
    "augment.solarize.threshold": 0.5,  # on the scale [0, 1]
    "augment.affine.rotation": 0.0,  # largest angle in radians
    "augment.affine.scale": 0.0,  # largest deviation of the magnification from 1
    "augment.affine.shift": 0.0,  # largest translation in pixels
    "augment.affine.shear": 0.0,  # largest one, y per x
    "augment.noise": 0.0,  # standard deviation of Gaussian noise, on the scale [0, 1]
    "augment.more": (),  # modules of your own, whose augmentations follow, in this order
    # None, or a frozen network that embeds the images, on whose features the run trains, as in
    # configs/ncl_images.py: "lite2", a .safetensors file, or "hf:ORG/NAME"
    "encoder": placeholder(str),
    # Views of features, in place of `augment` where the data are features: points between an image
    # and one of this many nearest images; 0: the features themselves
    "feature_views.neighbors": 10,
    # Novel class discovery, and the images held out for its test, or for that of the linear probe.
    # Number of known classes, the first ones of data.classes or by name; None: no known classes
    "novel.classes": placeholder(int),
    "novel.test_split": placeholder(str),  # TFDS split of the test; None: none
    "novel.holdout": 0.0,  # fraction of every class that is held out
    "novel.holdout_seed": 0,  # of the images that are held out
    # Earlier training stages, in order: name -> the sections in which they differ
    "stages": ConfigDict(),
    # Workdir of a run, from whose network to start; None: from the start
    "init_from": placeholder(str),
    # "resnet18", "resnet34", "resnet50", "efficientnet_lite2", "small", "vit_small_patch16" etc.,
    # or a module of your own
    "network.name": "resnet34",
    "network.width": 64,  # channels of the first layer; of a ViT, columns of a token
    "network.stem": "cifar",  # or "imagenet", of a ResNet; None for other networks
    "network.projector.hidden": 4096,  # columns of its hidden layer
    "network.projector.out": 256,  # columns of the projection
    "network.predictor.hidden": 4096,  # columns of its hidden layer
    # Standard deviation of its initial weights; None: LeCun's
    "network.predictor.init_std": 0.01,
    # "efficientnet_lite2", a .safetensors file or "hf:ORG/NAME"; None: random
    "network.weights": placeholder(str),
    # Last block that is not trained, such as "stage5"; None: the whole backbone is trained
    "network.frozen": placeholder(str),
    # BatchNorm over all devices, "sync", or over groups of `group` images, "local" or "shuffle"
    "network.norm": "sync",
    "network.group": placeholder(int),  # None for "sync"
    "network.dtype": "auto",  # bfloat16 on TPU and GPU, float32 on CPU
    # A file of cluster_jax/methods, or a module of your own, whose `Config` has the other keys
    "method.name": "byol",
    "method.decay": 0.996,  # of the target network's moving average at the first step
    "method.final_decay": 0.996,  # the same at the last step
    # None, or what another method adds to the objective of this one, if it has two views: a section
    # of `name`, "cc", "pcl" or "ncc", and the keys of the `TermConfig` in that method's file
    "term": placeholder(ConfigDict),
    # None, or the regularizer that NRCC adds to a method of two views: a section with the keys of
    # configs/nrcc_cifar10.py
    "nrcc": placeholder(ConfigDict),
    "optimizer.name": "sgd",  # with momentum; or "lars", "adamw", or a module of your own
    "optimizer.learning_rate": 0.05,  # its peak, for base_batch_size images
    # The rate is multiplied by train.batch_size * train.accumulate / base_batch_size; None: not
    "optimizer.base_batch_size": 256,
    "optimizer.weight_decay": 5e-4,  # coefficient
    "optimizer.momentum": 0.9,  # of AdamW: beta_1
    # Rate of the predictor, in units of the others
    "optimizer.predictor_lr_multiplier": 10.0,
    # Largest norm of the whole gradient, to which a longer one is scaled; None: any
    "optimizer.clip_norm": placeholder(float),
    "optimizer.warmup": "50 epochs",  # duration of the linear rise of the rate
    # What follows the warm-up: a cosine or a line to 0, "linear_schedule", "constant_schedule",
    # "piecewise_constant_schedule", or a module of your own
    "optimizer.schedule": "cosine_decay_schedule",
    # Duration between divisions of the rate by ten by the piecewise schedule; None for the others
    "optimizer.lr_decay_every": placeholder(str),
    "train.batch_size": 256,  # images of a step, on all devices together
    # Steps whose mean gradient makes one update of the parameters
    "train.accumulate": 1,
    "train.remat": False,  # whether gradients compute blocks again, for less memory
    # Images of known classes among them; None: batches have no labels
    "train.labeled_batch_size": placeholder(int),
    "train.duration": "1000 epochs",  # of the training
    "train.log_every": 50,  # steps between lines of the log
    "train.checkpoint_every": 1000,  # steps between checkpoints
    "train.keep_checkpoints": 2,  # number of the latest ones that are kept
    "train.prefetch": 2,  # batches that are prepared ahead
    "train.on_collapse": "warn",  # "stop": also ends the training
    # What is clustered, by the network that the method keeps; or "projection"
    "eval.features": "backbone",
    # What finds the clusters: the papers' "gridshift", or "tree", as the command `cluster` does:
    # clusters of smoothed features, a tree of groups, probabilities, and a verdict
    "eval.method": "gridshift",
    "eval.n_clusters": placeholder(int),  # number of clusters of the tree; None: found
    "eval.batch_size": 512,  # images of a forward pass of the embedding, on all devices together
    # Rows that GridShift clusters, and the others follow; None: all, on several hosts 50,000
    "eval.sample": placeholder(int),
    # The map, which GridShift clusters; for the tree it is only drawn.
    "eval.reduce": "umap",  # or "tsne", "pca", "none"
    "eval.n_components": 3,  # its dimensions
    "eval.n_neighbors": 10,  # of UMAP; the perplexity of t-SNE
    "eval.metric": "cosine",  # of the features; or "euclidean"
    # Of GridShift, the side of a grid cell; or a number, as text
    "eval.bandwidth": "auto",
    "eval.n_init": 10,  # runs of k-means, of which the best is kept
    # Number of its clusters; None: that of the labels, or without labels as found
    "eval.kmeans.n_clusters": placeholder(int),
    "eval.kmeans.metric": "euclidean",  # or "spherical"
    "eval.knn": (5, 20, 100),  # numbers of neighbors of the k-NN accuracy; (): it is skipped
    "eval.metrics": (),  # modules of your own that score features and clusters
    # A linear classifier on the frozen features, scored on held-out images.
    "eval.linear_probe.epochs": 100,  # of its training
    "eval.linear_probe.learning_rate": 0.3,  # of its training
    "eval.linear_probe.weight_decay": 1e-6,  # of its training
    "eval.linear_probe.batch_size": 256,  # images of a step
    "eval.linear_probe.holdout": 0.2,  # fraction of the images to score on
}


def get_config() -> ConfigDict:
    """The base config."""
    config: dict = {}
    for key, value in VALUES.items():
        *sections, name = key.split(".")
        section = config
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return ConfigDict(config)
