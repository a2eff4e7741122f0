r"""NCL on your own images, some with known classes: the config of `ImageClusterer.fit(X, y)`.

    python -m cluster_jax.main --config=configs/ncl_images.py --config.data.dir=DIR \
        --config.novel.classes=3 --config.method.n_classes=5

DIR has a folder for each class. The first 3 by name are known; the images in the others are sorted
into 5 novel classes. Needs at least 64 images of known classes and 64 others.

The frozen EfficientNet-Lite2 of `images` embeds each image once, and NCL trains a head on these
features as in `ncl_features`, without the rotation stage, which needs pixels: the network has seen
ImageNet-1k with its labels, so novel classes are novel to the head only. `ncl_images_scratch`
trains from nothing.
"""

from cluster_jax.core.config import derived

# The subfolders are the known classes.
DATA, AUGMENT = {"like": "simclr_images", "labels": "folders"}, {"like": "simclr_images"}
get_config = derived(
    "ncl_features", data=DATA, augment=AUGMENT, encoder="lite2", eval={"batch_size": 64}
)
