"""SwAV on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/swav_digits.py

No paper uses this data set, so there is no published result to compare with. Network, augmentation,
optimizer and number of steps are those of `nrcc_digits`, which were tuned on the labels of the
digits. The number of prototypes does not follow the number of classes. SwAV + NRCC is
--config.nrcc.weight=0.05. Seed 0 on 2 CPU cores (AMD EPYC, JAX 0.10.2; 418ae8f and b558445):
k-means ACC 0.956, with --config.nrcc.weight=0.05 0.952; with 0.5, the weight of the other methods,
the embedding collapses (0.396).

From the paper: the temperature, epsilon, Sinkhorn's iterations, the frozen first epoch, and six
small crops. Their area is larger than the paper's 5 to 14 %, which of 8 x 8 pixels would be a few.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "swav", "n_prototypes": 64, "temperature": 0.1, "epsilon": 0.05}
METHOD |= {"iterations": 3, "freeze": "1 epoch"}
METHOD |= {"small": {"count": 6, "size": None, "scale": (0.25, 0.6)}}
get_config = derived("nrcc_digits", method=METHOD, nrcc={"weight": 0.0})
