"""All config keys, with the settings that the papers share. Other configs start from this one.

Durations are strings: "1500 steps" or "200 epochs".
"""

from ml_collections import ConfigDict, config_dict


def get_config():
    """The base config."""
    config = ConfigDict()
    config.seed = 0
    config.note = ""  # recorded in results.json, for example how the settings were chosen
    _add_images(config)
    _add_training(config)
    _add_evaluation(config)
    return config


def _add_images(config):
    """Images, augmentation, known classes, earlier stages."""
    config.data = ConfigDict()
    config.data.name = "digits"  # "folder", "arrays", "features", or the name of a TFDS set
    config.data.dir = config_dict.placeholder(str)
    config.data.split = config_dict.placeholder(str)
    config.data.label = "label"  # feature of a TFDS data set with the labels for scoring
    # None: that of pretrained weights, or the native size
    config.data.image_size = config_dict.placeholder(int)
    config.data.interpolation = "bicubic"  # None: that of pretrained weights
    config.data.limit = config_dict.placeholder(int)  # None: all images
    # Their numbers, or a list: "imagenet_10", "imagenet_dogs", "imagenet_50", "imagenet_100",
    # "imagenet_200", "tiny_imagenet"; None: all
    config.data.classes = config_dict.placeholder(object)
    config.data.cache_mb = 2048.0
    # What random crops are taken from: the "square" of image_size; "host": the whole image, by the
    # host, as in the papers, for streamed folders and TFDS sets.
    config.data.crop = "square"
    config.data.max_corrupt_fraction = 0.05  # largest fraction of unreadable files

    config.augment = ConfigDict()
    config.augment.size = 32  # None: that of pretrained weights
    # None: those of pretrained weights, or measured on the images
    config.augment.mean = config_dict.placeholder(tuple)
    config.augment.std = config_dict.placeholder(tuple)
    config.augment.crop = ConfigDict({"scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3)})
    config.augment.flip = 0.5
    config.augment.jitter = ConfigDict(
        {"probability": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}
    )
    config.augment.grayscale = 0.2
    config.augment.blur = ConfigDict({"probability": 0.0, "sigma": (0.1, 2.0), "kernel": 9})
    # The probability of blur and solarize may be a pair, for views a and b. Flags and overrides
    # accept a pair only if the config has one already; otherwise set it in a config file.
    config.augment.solarize = ConfigDict({"probability": 0.0, "threshold": 0.5})
    config.augment.affine = ConfigDict({"rotation": 0.0, "scale": 0.0, "shift": 0.0, "shear": 0.0})
    config.augment.noise = 0.0

    # None, or a frozen network that embeds the images; the run trains on its features: a section of
    # `name`, `width`, `stem` and `weights` as in `network`, and `views`, see configs/ncl_images.py.
    config.embedder = config_dict.placeholder(ConfigDict)

    # Views of features, in place of `augment` where the data are features.
    config.feature_views = ConfigDict()
    config.feature_views.cached = config_dict.placeholder(int)  # None: all that the data have
    config.feature_views.neighbors = 10
    config.feature_views.step = 1.0
    config.feature_views.noise = 0.0
    config.feature_views.dropout = 0.0

    # Novel class discovery: number of labeled classes (the first ones), and the images held out for
    # the test: a TFDS split, or a fraction of every class.
    config.novel = ConfigDict()
    config.novel.classes = config_dict.placeholder(int)  # None: no labels
    config.novel.test_split = config_dict.placeholder(str)
    config.novel.holdout = 0.0
    config.novel.holdout_seed = 0
    # Earlier training stages, in order: name -> the sections in which they differ.
    config.stages = ConfigDict()
    config.init_from = config_dict.placeholder(str)  # workdir of a run: start from its network


def _add_training(config):
    """Network, method, NRCC, optimizer, training."""
    config.network = ConfigDict()
    config.network.name = "resnet34"
    config.network.width = 64
    config.network.stem = "cifar"
    config.network.projector = ConfigDict({"hidden": 4096, "out": 256})
    config.network.predictor = ConfigDict({"hidden": 4096, "init_std": 0.01})
    # "efficientnet_lite0", a .safetensors file or "hf:ORG/NAME"; None: random
    config.network.weights = config_dict.placeholder(str)
    config.network.frozen = config_dict.placeholder(str)  # None: train the whole backbone
    config.network.norm = "sync"  # "local", "shuffle": groups of `group` images
    config.network.group = config_dict.placeholder(int)
    config.network.dtype = "auto"  # bfloat16 on TPU and GPU, float32 on CPU

    config.method = ConfigDict({"name": "byol", "decay": 0.996, "final_decay": 0.996})
    config.nrcc = nrcc()

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.05
    config.optimizer.base_batch_size = 256
    config.optimizer.weight_decay = 5e-4
    config.optimizer.momentum = 0.9
    config.optimizer.predictor_lr_multiplier = 10.0
    config.optimizer.warmup = "50 epochs"
    config.optimizer.lr_decay_every = config_dict.placeholder(str)  # None: cosine decay to 0

    config.train = ConfigDict()
    config.train.batch_size = 256
    config.train.labeled_batch_size = config_dict.placeholder(int)  # None: batches have no labels
    config.train.duration = "1000 epochs"
    config.train.log_every = 50
    config.train.checkpoint_every = 1000
    config.train.keep_checkpoints = 2
    config.train.prefetch = 2
    config.train.on_collapse = "warn"  # "stop": also ends the training


def _add_evaluation(config):
    """Embedding and clustering."""
    config.eval = ConfigDict()
    config.eval.features = "backbone"
    # What finds the clusters: the papers' "gridshift", or "tree", as the command `cluster` does:
    # clusters of smoothed features, a tree of groups, probabilities, and a verdict.
    config.eval.method = "gridshift"
    config.eval.k = config_dict.placeholder(int)  # number of clusters of the tree; None: found
    config.eval.batch_size = 512
    config.eval.reduce = ConfigDict(
        {
            "method": "umap",
            "n_components": 3,
            "n_neighbors": 10,
            "min_dist": 0.0,
            "metric": "cosine",
        }
    )
    config.eval.gridshift = ConfigDict(
        {"bandwidth": "auto", "stop": "fixed_point", "max_iter": 500}
    )
    config.eval.kmeans = ConfigDict(
        {"k": config_dict.placeholder(int), "n_init": 10, "metric": "euclidean"}
    )
    config.eval.knn = (5, 20, 100)
    config.eval.linear_probe = ConfigDict(
        {
            "epochs": 100,
            "learning_rate": 0.3,
            "weight_decay": 1e-6,
            "batch_size": 256,
            "holdout": 0.2,
        }
    )


def nrcc():
    """NRCC's published constants; a weight of 0 turns NRCC off.

    Symbols in (18): friction d1, step_size d2, noise d3, iterations zeta.
    """
    return ConfigDict(
        {
            "weight": 0.1,
            "temperature": 0.1,
            "anchor_layer": "projection",
            "include_own_view": False,
            "branch": "target",
            "sampler": "sghmc",
            "initial_view": "own",
            "reference": "other_view",
            "resolution": config_dict.placeholder(int),
            "potential": "inverse",
            "sghmc": {
                "iterations": 1,
                "step_size": 0.05,
                "friction": 0.1,
                "noise": 0.99,
                "momentum": "new",
                "clip": 1.0,
                "normalize_gradient": False,
            },
            "hmc": {
                "iterations": 1,
                "leapfrog_steps": 1,
                "step_size": 0.05,
                "clip": config_dict.placeholder(float),
                "normalize_gradient": False,
            },
            "monte_carlo": {"iterations": 1, "step_size": 0.067},
            "noise": {"scale": 0.067},
        }
    )
