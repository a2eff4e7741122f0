# The public names, which `lazy_loader` reads.

from .barlow import barlow_twins as barlow_twins
from .byol import byol as byol, byol_views as byol_views
from .cc import (
    cluster_contrast as cluster_contrast,
    entropy_deficit as entropy_deficit,
)
from .cueco import (
    centroid_contrast as centroid_contrast,
    variance_loss as variance_loss,
)
from .ncl import (
    HardNegatives as HardNegatives,
    Mixing as Mixing,
    Targets as Targets,
    hard_negatives as hard_negatives,
)
from .infonce import (
    clip as clip,
    info_nce as info_nce,
    info_nce_queue as info_nce_queue,
    info_nce_views as info_nce_views,
)
from .kernel_infonce import (
    Kernel as Kernel,
    kernel_clip as kernel_clip,
    kernel_info_nce_queue as kernel_info_nce_queue,
    kernel_info_nce_views as kernel_info_nce_views,
)
from .ncc import (
    positive_samples as positive_samples,
    proto_cl as proto_cl,
    proto_cl_views as proto_cl_views,
    prototypes as prototypes,
)
from .ncl import (
    consistency as consistency,
    cross_entropy as cross_entropy,
    neighborhood_contrast as neighborhood_contrast,
    pairwise_bce as pairwise_bce,
    ramp as ramp,
    similar as similar,
    supervised_contrast as supervised_contrast,
    target_weights as target_weights,
)
from .nrcc import nrcc as nrcc, nrcc_views as nrcc_views
from .swav import (
    sinkhorn_codes as sinkhorn_codes,
    swapped_prediction as swapped_prediction,
)
from .pcl import (
    concentrations as concentrations,
    prototype_contrast as prototype_contrast,
)
