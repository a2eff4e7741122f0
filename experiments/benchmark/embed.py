"""Images/s of the default encoder, EfficientNet-Lite2, beside PyTorch and ONNX Runtime.

On all cores, taking turns, with the same weights and the same 64 generated images of 224 pixels,
from uint8 on the host to features on the host, as when a folder is embedded. PyTorch runs eagerly,
as its users run it; its network is that of the package efficientnet-lite-pytorch, which ONNX
Runtime runs as exported. The other networks of the guide run alone, with random weights.
"""

import importlib.metadata
import io
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cluster_jax.core import devices
from cluster_jax.core import mesh as meshes
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.nets import network, pretrained
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import Preprocessing
from experiments.benchmark import _measure

BATCH, SIDE, REPEATS, SEED = 64, 224, 5, 0
# Network -> its width, its stem.
OTHERS = {
    "resnet50": (64, "imagenet"),
    "vit_small_patch14": (384, None),
    "vit_base_patch16": (768, None),
    "vit_base_patch16_siglip": (768, None),
    "vit_base_patch32_clip": (768, None),
}
PREPROCESSING = Preprocessing(pretrained.LITE2_MEAN, pretrained.LITE2_STD, SIDE)


def measure() -> dict:
    """Images/s, their ratios in each round, and the largest difference of features."""
    images = np.random.default_rng(SEED).integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    theirs, session = _torch()
    sides = {"ours": ours(), "torch": theirs, "onnxruntime": session}
    calls = {name: partial(forward, images) for name, forward in sides.items()}
    # Which also compiles.
    rows = {name: call() for name, call in calls.items()}
    times = _measure.alternate(calls, REPEATS)
    others = {name: partial(random(name), images) for name in OTHERS}
    for call in others.values():
        call()
    rates = times | _measure.alternate(others, REPEATS)
    peers = ("torch", "onnxruntime")
    return {
        "images_per_second": {
            name: _measure.spread([BATCH / t for t in values]) for name, values in rates.items()
        },
        "ratio": {peer: _measure.ratios(times[peer], times["ours"]) for peer in peers},
        "largest_difference": max(float(np.abs(rows["ours"] - rows[peer]).max()) for peer in peers),
        "versions": {peer: importlib.metadata.version(peer) for peer in peers},
    }


def ours() -> Callable[[np.ndarray], np.ndarray]:
    """Our network: images uint8 `[b, 224, 224, 3]` -> features float32 `[b, 1280]`."""
    section = NetworkConfig(**pretrained.overrides("lite2"))
    return _embedding(Encoder.of_weights(section, PREPROCESSING))


def random(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """A network of `OTHERS` with random weights, as `ours`."""
    section = NetworkConfig(name, *OTHERS[name])
    shape = SIDE, SIDE, 3
    params, stats = network.make(section).init(jax.random.key(SEED), jnp.zeros((1, *shape)))
    return _embedding(Encoder(section, params, stats, shape, PREPROCESSING))


def _embedding(encoder: Encoder) -> Callable[[np.ndarray], np.ndarray]:
    mesh = meshes.make()
    encode, rows = encoder.on(mesh), meshes.sharded(mesh)
    return lambda images: np.asarray(encode(jax.device_put(images, rows)))


def _torch() -> tuple[Callable, Callable]:
    """PyTorch's network, and ONNX Runtime's."""
    import onnxruntime
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(devices.cores())
    network = EfficientNet.from_name("efficientnet-lite2", image_size=SIDE)
    network.load_state_dict(torch.load(pretrained.lite2_file(), weights_only=True))
    network.eval()

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network.extract_features(x).mean((2, 3))

    module, file = Features().eval(), io.BytesIO()
    example = torch.zeros(BATCH, 3, SIDE, SIDE)
    several = {"x": {0: "images"}}
    torch.onnx.export(
        module, (example,), file, dynamo=False, input_names=["x"], dynamic_axes=several
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = devices.cores()
    session = onnxruntime.InferenceSession(file.getvalue(), options)

    def inputs(images: np.ndarray) -> torch.Tensor:
        return (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128

    def embed(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(inputs(images)).numpy()

    return embed, lambda images: session.run(None, {"x": inputs(images).numpy()})[0]
