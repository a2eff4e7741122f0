"""Images/s of a frozen EfficientNet-Lite beside PyTorch, both on all cores, taking turns.

The same weights and the same 64 generated images of 224 pixels, from uint8 on the host to features
on the host, as when a folder is embedded. PyTorch runs eagerly, as its users run it; its network is
that of the package efficientnet-lite-pytorch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cluster_jax.core import devices
from cluster_jax.nets import backbone
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.norm import BatchNorm
from cluster_jax.nets.pretrained import lite
from experiments.benchmark import _measure

NETWORK = "efficientnet_lite0"
BATCH, SIDE, REPEATS, SEED = 64, 224, 7, 0


def measure() -> dict[str, Any]:
    """Images/s of both, their ratio in each round, and the largest difference of features."""
    import torch

    images = np.random.default_rng(SEED).integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    sides = {"cluster_jax": ours(NETWORK), "torch": _torch()}
    own, theirs = (embed(images) for embed in sides.values())  # also compiles
    calls = {name: functools.partial(embed, images) for name, embed in sides.items()}
    times = _measure.alternate(calls, REPEATS)
    return {
        "images_per_second": {
            name: _measure.spread([BATCH / t for t in values]) for name, values in times.items()
        },
        "ratio": _measure.ratios(times["torch"], times["cluster_jax"]),
        "largest_difference": float(np.abs(own - theirs).max()),
        "torch": torch.__version__,
    }


def ours(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """The network `name`: images uint8 `[b, H, W, 3]` -> features float32 `[b, 1280]`."""
    norm = functools.partial(BatchNorm, False, None, None, None)
    built = backbone.make(name, width=32, stem=None)
    module = built.module(Layers(norm, norm, frozen=0, dtype=None))
    params, stats = lite.load(name)
    variables = {"params": params, "batch_stats": stats}
    forward = jax.jit(lambda v, x: module.apply(v, (x.astype(np.float32) - 127) / 128))
    return lambda images: np.asarray(forward(variables, images))


def _torch() -> Callable[[np.ndarray], np.ndarray]:
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(devices.cores())
    network = EfficientNet.from_name(NETWORK.replace("_", "-"), image_size=SIDE)
    path = lite.file_of(NETWORK)
    network.load_state_dict(torch.load(path, weights_only=True))
    network.eval()

    def embed(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            x = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128
            return network.extract_features(x).mean((2, 3)).numpy()

    return embed
