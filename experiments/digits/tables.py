"""The methods on scikit-learn's digits, which no paper uses (see `experiments.registry`).

Every row is the digits config of its method as it is, at the scale `config`. NRCC's third view is
drawn by SGHMC, as in the paper, or replaced: by plain noise, by one more augmentation of the image,
or, as there is no NRCC in SimCLR's row, by nothing.
"""

from experiments.registry import Variant, table

nrcc = Variant("nrcc_digits")
PROTOCOL = ""
TABLES = {
    "methods": table(0, "The methods on scikit-learn's digits", "ACC NMI clusters their-ACC 5-NN", "digits", [
        ("SimCLR", nrcc.but({"nrcc.weight": 0.0}), "kmeans"),
        ("SimCLR + NRCC, SGHMC", nrcc, "kmeans"),
        ("SimCLR + NRCC, noise", nrcc.but({"nrcc.sampler": "noise"}), "kmeans"),
        ("SimCLR + NRCC, augmentation", nrcc.but({"nrcc.sampler": "augment"}), "kmeans"),
        ("BYOL", Variant("byol_digits"), "kmeans"),
        ("NCC", Variant("ncc_digits"), "kmeans"),
        ("CueCo", Variant("cueco_digits"), "kmeans"),
        ("Kernel-InfoNCE", Variant("kernel_infonce_digits"), "kmeans"),
    ]),
}  # fmt: skip
