"""The rows of the tables on digits: name -> config."""

from typing import Any

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config

MORE_SEEDS = {"predictor": (0, 1, 2, 3, 4)}


def methods() -> dict[str, ConfigDict]:
    """All methods, with the same network, images, augmentation, optimizer, and number of steps."""
    with_nrcc = load_config("nrcc_digits")
    without_nrcc = with_nrcc.copy_and_resolve_references()
    without_nrcc.nrcc.weight = 0.0
    return {
        "SimCLR": without_nrcc,
        "SimCLR + NRCC": with_nrcc,
        "BYOL": load_config("byol_digits"),
        "SimSiam": load_config("simsiam_digits"),
        "Barlow Twins": load_config("barlow_digits"),
        "MoCo": load_config("moco_digits"),
        "Kernel-InfoNCE, Laplacian + Gaussian": load_config("kernel_infonce_digits"),
        "NCC": load_config("ncc_digits"),
        "CueCo": load_config("cueco_digits"),
    }


def ncc() -> dict[str, ConfigDict]:
    """NCC Table 4 without its CC and PCL rows: positive sampling (PS) and parts of ProtoCL."""
    all_methods = methods()
    return {
        "MoCo": all_methods["MoCo"],
        "SimSiam": all_methods["SimSiam"],
        "BYOL": all_methods["BYOL"],
        "BYOL + PS": _with("ncc_digits", weight=0.0),
        "BYOL + ProtoCL": _with("ncc_digits", sigma=0.0),
        "BYOL + PS + alignment": _with("ncc_digits", part="alignment"),
        "BYOL + PS + uniformity": _with("ncc_digits", part="uniformity"),
        "NCC": all_methods["NCC"],
    }


def cueco() -> dict[str, ConfigDict]:
    """CueCo Table 3: ablation of the three losses."""
    return {
        "L1": _with("cueco_digits", weights=_weights(centroid=0.0, variance=0.0)),
        "L1 + L2": _with("cueco_digits", weights=_weights(variance=0.0)),
        "L1 + L3": _with("cueco_digits", weights=_weights(centroid=0.0)),
        "L1 + L2 + L3": load_config("cueco_digits"),
    }


def kernels() -> dict[str, ConfigDict]:
    """Kernels exp(-d^gamma / tau) with tau = gamma / 2, which have equal slopes at distance 1."""
    return {
        "gamma 0.5": _kernel(0.5),
        "gamma 1 (Laplacian)": _kernel(1.0),
        "gamma 2 (Gaussian, SimCLR)": _kernel(2.0),
        "1 and 2, mixed kernels": load_config("kernel_infonce_digits"),
        "1 and 2, mixed losses": _with("kernel_infonce_digits", mixture="loss"),
        "1 and 2, halves of the vector": _with("kernel_infonce_digits", halves=True),
    }


def predictor() -> dict[str, ConfigDict]:
    """Initial weights of the predictor: LeCun's, and the N(0, 0.01^2) of NCC's and NRCC's code."""
    table = {}
    for title, name in (("BYOL", "byol_digits"), ("NCC", "ncc_digits")):
        for start, std in (("LeCun normal", None), ("N(0, 0.01)", 0.01)):
            config = load_config(name)
            config.network.predictor = ConfigDict({"hidden": 256, "init_std": std})
            table[f"{title}, {start}"] = config
    return table


TABLES = {
    "methods": methods,
    "ncc": ncc,
    "cueco": cueco,
    "kernels": kernels,
    "predictor": predictor,
}


def _with(name: str, **values: Any) -> ConfigDict:
    config = load_config(name)
    config.method.update(values)
    return config


def _weights(**changed: float) -> dict[str, float]:
    return load_config("cueco_digits").method.weights.to_dict() | changed


def _kernel(gamma: float) -> ConfigDict:
    config = load_config("kernel_infonce_digits")
    method = config.method.to_dict() | {
        "gammas": (gamma,),
        "temperatures": (gamma / 2,),
        "mixture": config_dict.placeholder(str),
        "weight": config_dict.placeholder(float),
    }
    config.method = ConfigDict(method)
    return config
