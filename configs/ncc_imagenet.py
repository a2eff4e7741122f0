"""NCC on ImageNet-1k: NCC Table 3 (AMI 0.525, number of clusters given).

    python -m cluster_jax.main --config=configs/ncc_imagenet.py --config.data.dir=DIR

Run the same command on every host of a Cloud TPU pod; the data are as in nrcc_imagenet. Intended
for a pod slice of at least 32 chips.

From the paper: ResNet-50, 200 epochs, base rate 0.4 for 256 images, weight decay 1e-4, blur, EMA
0.996, 1,000 clusters, tau 0.5, lambda 0.1, the projection as the embedding.
Deviations, each with the value of the paper, beside those of `ncc_cifar10`:
  - Both directions of the loss: one.
  - train.batch_size, 1024: 256, as for the other sets. method.warmup and optimizer.warmup, 10
    epochs: 50.
  - method.update_every, 5 epochs, because an E-step embeds all images: 1 epoch.
  - augment, crop of at least 0.2 of the area and jitter as in `nrcc_imagenet`: SimCLR's.
  - Images are scored as their central square of 224 pixels, of a short side of 256: the paper
    resizes both sides to 256. Random crops are from the square of 256 pixels.
The authors' configuration differs from their paper and was not followed: LARS with rate 0.3 and
weight decay 1e-6, EMA 0.99 to 1 by a cosine, lambda 0.001.
"""

from cluster_jax.core.config import derived

METHOD = {"like": "ncc_cifar10", "n_clusters": 1000}
METHOD |= {"warmup": "10 epochs", "update_every": "5 epochs"}
EVAL = {"like": "ncc_cifar10"}
OPTIMIZER = {"learning_rate": 0.4}
get_config = derived(
    "nrcc_imagenet", method=METHOD, nrcc={"weight": 0.0}, optimizer=OPTIMIZER, eval=EVAL
)
