"""NCC on ImageNet-1k: NCC Table 3 (AMI 0.525, number of clusters given).

    python -m cluster_jax.main --config=configs/ncc_imagenet.py --config.data.dir=DIR

Run the same command on every host of a Cloud TPU pod; the data are as in nrcc_imagenet. Intended
for a pod slice of at least 32 chips.

From the paper: ResNet-50, 200 epochs, base rate 0.4 for 256 images, weight decay 1e-4, blur, EMA
0.996, 1,000 clusters, tau 0.5, lambda 0.1, the projection as the embedding.
Deviations: both directions of the loss, where the paper has one; batch 1024, 10 epochs of warm-up,
crop and jitter as in nrcc_imagenet, where NCC uses SimCLR's crop and jitter; an E-step only every 5
epochs, because it embeds all images.
The authors' configuration differs from their paper and was not followed: LARS with rate 0.3 and
weight decay 1e-6, EMA 0.99 to 1 by a cosine, lambda 0.001.
"""

from cluster_jax.core.config import derived

METHOD = {"like": "ncc_cifar10", "n_clusters": 1000}
METHOD |= {"warmup": "10 epochs", "update_every": "5 epochs"}
EVAL = {"features": "projection"}
get_config = derived("nrcc_imagenet", method=METHOD, nrcc={"weight": 0.0}, eval=EVAL)
