# The public names, which `lazy_loader` reads.

from . import (
    clustering as clustering,
    losses as losses,
    methods as methods,
    metrics as metrics,
    nets as nets,
    samplers as samplers,
)
from .clustering.gridshift import GridShift as GridShift
from .clustering.smooth_tree import SmoothTree as SmoothTree
from .clustering.tree import cut_tree as cut_tree
from .encoding.encoder import Encoder as Encoder
from .estimators import ImageClusterer as ImageClusterer, load as load

__version__: str
