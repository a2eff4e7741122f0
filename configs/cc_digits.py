"""CC on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/cc_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation, optimizer and number of steps are those of `nrcc_digits`, which
were tuned on the labels of the digits. The number of clusters, 10, is given, as in the paper. CC +
NRCC is --config.nrcc.weight=0.5.

From the paper: both temperatures. Its ResNet-34 on images of 224 pixels and Adam with the constant
rate 3e-4 for 1,000 epochs are for larger sets.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "cc", "n_clusters": 10, "temperature": 0.5, "cluster_temperature": 1.0}
get_config = derived("nrcc_digits", method=METHOD, nrcc={"weight": 0.0})
