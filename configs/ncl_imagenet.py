"""NCL on ImageNet: NCL Table 4 (ACC 0.907 on 30 novel classes, their number given).

    python -m cluster_jax.main --config=configs/ncl_imagenet.py --config.data.dir=DIR

The data are as in `nrcc_imagenet`. Trains two stages: cross-entropy on 882 labeled classes, then
discovery of 30 others. Intended for one host with several GPUs or TPU chips.

From the paper: ResNet-18, initialized by cross-entropy on the labeled classes alone, without
rotation; discovery trains the last block and the heads; batch 512; SGD with rate 0.1, divided by
ten every 30 of 90 epochs; omega 10 with a ramp of 50 epochs, k_1 = |M| / C^u / 2 =
34, where the paper's queue gives 33; all else as in `ncl_cifar10`.
Deviations beside those of `ncl_cifar10`: the labeled classes are the first 882, not those of
earlier papers, and the novel ones a random 30 of the other 118; the paper has three such subsets
and does not print them. Another one is a config with another seed.
Guesses: 90 epochs at the same rate for the first stage; crop, jitter and blur as in
`nrcc_imagenet`.
"""

import random

from ml_collections import ConfigDict

from cluster_jax.core.config import derived

LABELED, NOVEL, CLASSES = 882, 30, 1000
SOME = random.Random(0).sample(range(LABELED, CLASSES), NOVEL)
SUPERVISED = {"method": {"name": "supervised"}, "network": {"frozen": None}}
SUPERVISED |= {"train": {"labeled_batch_size": 512, "duration": "90 epochs"}}

get_config = derived(
    "ncl_cifar10",
    data={"like": "nrcc_imagenet", "classes": (*range(LABELED), *sorted(SOME))},
    augment={"like": "nrcc_imagenet"},
    novel={"classes": LABELED, "test_split": "validation"},
    network={"stem": "imagenet"},
    method={"n_classes": NOVEL, "consistency_weight": 10.0, "neighbors": 34},
    optimizer={"lr_decay_every": "30 epochs"},
    train={"batch_size": 512, "labeled_batch_size": 256, "duration": "90 epochs"},
    eval={"kmeans": {"n_clusters": NOVEL}},
    stages=ConfigDict({"supervised": SUPERVISED}),
)
