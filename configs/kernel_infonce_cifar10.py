"""Kernel-InfoNCE on CIFAR-10: Kernel-InfoNCE Table 1 (linear probe 91.7 % after 400 epochs).

    python -m cluster_jax.main --config=configs/kernel_infonce_cifar10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Intended for one GPU or a TPU slice.

From the paper: ResNet-50, projector 2048 to 128 (256 for the concatenation, see
experiments/kernel_infonce), LARS with momentum 0.9 and weight decay 1e-6, batch 256, 400 epochs,
Laplacian plus Gaussian kernel; a linear probe of 100 epochs, rate 0.3 to 0, batch 64, weight decay
1e-6, on the test set. The learning rate, temperatures and weights were found by a search and are
not published: here the rate is SimCLR's for LARS, and the Gaussian corresponds to SimCLR's tau of
0.5.
Guesses: CIFAR stem, SimCLR's augmentation for CIFAR, without blur (the paper has "the default" of
PyTorch Lightning), 10 epochs of warm-up and a cosine (it has "LambdaLR"); of MoCo's form
(method.queue) the loss in both directions.
Deviation: biases and BatchNorm neither decay nor have LARS's adaptation; the paper names no
exception.
Not comparable: the probe trains on rows scaled to a common length, so that its rate is not the
paper's, and on views without augmentation.
"""

from cluster_jax.core.config import derived

get_config = derived(
    "nrcc_cifar10",
    novel={"test_split": "test"},
    augment={"crop": {"scale": (0.08, 1.0)}, "jitter": {"saturation": 0.4}},
    network={"name": "resnet50", "projector": {"hidden": 2048, "out": 128}, "predictor": None},
    method={"like": "kernel_infonce_digits"},
    nrcc={"weight": 0.0, "branch": "online"},
    optimizer={"like": "cueco_cifar10", "name": "lars", "weight_decay": 1e-6},
    train={"duration": "400 epochs"},
    eval={"linear_probe": {"batch_size": 64}},
)
