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
Deviations, each with the value that is printed:
  - optimizer.warmup, 50 epochs as in NCC and the official code: "50 steps" (Appendix, "the initial
    50 updates").
  - data.split, the training images: train+test; the paper trains and scores on all 60,000.
  - nrcc.initial_view, the image's own view a (Figure 5), whose gradient the method has already:
    "random", any view of the batch (Algorithm 1).
  - nrcc.reference, the projection of the other view, which is there already: (16) compares with the
    image x_i itself, which is "clean" and costs a forward pass.
  - nrcc.sghmc, the new momentum and a clipped gradient: see the comment on the constants.
  - eval.features, the 512 columns of the backbone, f in section 3.6.2: the 256 columns of the
    embedding by which section 3.6.1 judges a collapse are "projection".
  - Biases and BatchNorm do not decay; in NCC's CIFAR configurations they do.
The published SGHMC step is at least 96 % noise in amplitude; set nrcc.sghmc.normalize_gradient for
a sampler that follows its gradient.
"""

from ml_collections.config_dict import placeholder

from cluster_jax.core.config import derived

# The published constants. SGHMC (18): steps zeta, factor d2 of the gradient, share d1 of the
# momentum that is lost in a step, factor d3 of the Gaussian noise, and which momentum moves the
# view, that after its update or the "old" one. Three things are not as printed: the position
# follows the new momentum, as in the authors' code, since by the old one a single step is noise
# without any gradient; the gradient is clipped, as there; and the potential (16) is a line below a
# similarity of -0.99, where it has a pole. As printed are momentum="old" and clip=None.
SGHMC = {"iterations": 1, "step_size": 0.05, "friction": 0.1, "noise": 0.99, "momentum": "new"}
# Proposals of the sampler, steps of each, and the length of a step.
HMC = {"iterations": 1, "leapfrog_steps": 1, "step_size": 0.05}
NRCC = {
    # lambda, of the regularizer in the loss; 0 turns NRCC off. Most configs of the digits take 0.5,
    # SwAV's, which collapses with it, 0.05
    "weight": 0.1,
    "temperature": 0.1,  # of the regularizer, tau
    "anchor_layer": "projection",  # embeddings that are the anchors; or "prediction"
    "include_own_view": False,  # whether an image's own sampled view is among its negatives
    # Network that embeds the sampled view: the moving average; or "online", the trained one, which
    # methods without an average need; or "target_predictor", the predictor after the average
    "branch": "target",
    # Of the third view; or "hmc", "monte_carlo", "noise", "augment", or a module of your own
    "sampler": "sghmc",
    "initial_view": "own",  # what the sampler starts at; or "random", any view of the batch
    "reference": "other_view",  # what the potential compares with; or "clean", not augmented
    # Shorter side in pixels at which the view is sampled; None: that of the network's input
    "resolution": placeholder(int),
    "potential": "inverse",  # (16) of the paper; or "log_inverse_square", its official code
    # Largest entry of the gradient; None: any. Whether to scale it to a root mean square of 1
    "sghmc": {**SGHMC, "clip": 1.0, "normalize_gradient": False},
    "hmc": {**HMC, "clip": placeholder(float), "normalize_gradient": False},
    # Proposals, and the standard deviation of one
    "monte_carlo": {"iterations": 1, "step_size": 0.067},
    "noise": {"scale": 0.067},  # standard deviation of the sampler "noise"
}

get_config = derived("base", data={"name": "cifar10", "split": "train"}, nrcc=NRCC)
