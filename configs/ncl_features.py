r"""NCL on features of images, some with known classes.

    python -m cluster_jax.main --config=configs/ncl_features.py --config.data.dir=x.npz \
        --config.novel.classes=5 --config.method.n_classes=5

x.npz has features `[n, d]` and `labels`; classes 0 to 4 are known, the rows of the
others are sorted into 5 novel classes. See `simclr_features` for the data and the views. The
rotation stage is left out, as it needs pixels: the features are pretrained. The method is that of
`ncl_images_scratch`, its novel head on clusters included (experiments/log.md);
--config.method.head=pairs is the paper's.
"""

from cluster_jax.core.config import derived

SUPERVISED = {"batch_size": 64, "labeled_batch_size": 64, "duration": "500 steps"}

get_config = derived(
    "simclr_features",
    network={"projector": None},
    method={"like": "ncl_images_scratch"},
    optimizer={"like": "ncl_images_scratch"},
    train={"labeled_batch_size": 64, "batch_size": 128, "duration": "1000 steps"},
    eval={"features": "backbone"},
    stages={"supervised": {"method": {"name": "supervised"}, "train": SUPERVISED}},
)
