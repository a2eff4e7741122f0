"""BYOL + NRCC on CIFAR-10: NRCC Table 3 (ACC 0.938, number of clusters unknown).

    python -m cluster_jax.main --config=configs/nrcc_cifar10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Intended for one GPU or a TPU slice;
ResNet-34, 1000 epochs of the training split. On a CPU, use fewer images and a narrow network:

    --config.data.limit=5000 --config.network.name=resnet18 --config.network.width=16

From the paper: 1000 epochs, batch 256, SGD with rate 0.05 x batch / 256 and ten times that for the
predictor, cosine, tau 0.1, lambda 0.1, SGHMC's four constants, 256-d embedding. From NCC and the
official code, where the paper gives no value: CIFAR stem, momentum 0.9, weight decay 5e-4, EMA
0.996, heads of 4096, a predictor that starts from N(0, 0.01^2), crop, jitter, gray and flip without
blur, UMAP of 10 neighbors ("k as 5" in section 3.6.1 may mean these, or those of the accuracy); not
its positive sampling of NCC's sigma 0.001, which the paper does not mention. Guesses: the strengths
of crop (at least 0.2 of the area) and jitter; UMAP's min_dist 0 and cosine distance; t-SNE's
perplexity 10 (eval.n_neighbors).
Deviations: 50 epochs of warm-up, as in NCC and the official code; the paper prints 50 updates,
which is --config.optimizer.warmup="50 steps". The paper trains and scores on all 60,000 images; set
data.split=train+test for that.
Biases and BatchNorm do not decay; in NCC's CIFAR configurations they do.
The published SGHMC step is at least 96 % noise in amplitude; set nrcc.sghmc.normalize_gradient for
a sampler that follows its gradient.
"""

from cluster_jax.core.config import derived

get_config = derived("base", data={"name": "cifar10", "split": "train"})
