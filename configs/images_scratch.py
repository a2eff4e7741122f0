"""SimCLR on your own images from nothing, on a laptop CPU: where pretraining does not fit or count.

    python -m cluster_jax.main --config=configs/images_scratch.py --config.data.dir=DIR

DIR is a folder of at least 128 images. Training takes about six minutes on two cores for any number
of images: 1,500 steps of 128 images at 32 pixels. With an accelerator use nrcc_imagenet, or
increase data.image_size, augment.size, network.width and train.duration.

Network, optimizer and steps are those of nrcc_digits without NRCC, which would double the time;
nrcc.weight=0.5 adds it. The augmentation is that of the base config. Only one choice was tuned on
photographs: the projection as the embedding. Expect little of it: by an earlier version (641e211c),
k-means with the given number of clusters had an ACC of 0.35 on 3,000 photographs of the ten classes
of Imagenette, and 0.22 on their pixels, because so few and small images teach no good features.
"""

from cluster_jax.core.config import derived

get_config = derived(
    "nrcc_digits",
    note="",
    # Subfolders, which would be labels, are often dates.
    data={"name": "folder", "image_size": 40, "labels": None},
    augment={"like": "base"},
    nrcc={"like": "nrcc_cifar10", "weight": 0.0, "branch": "online"},
    train={"batch_size": 128},
    # Your own images: no paper's figure is to be repeated. UMAP would compile for seconds.
    eval={"method": "tree", "reduce": "tsne"},
)
