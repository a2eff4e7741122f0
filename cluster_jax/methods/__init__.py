r"""Training methods: one file per method; the file name is its name in a config.

| method | idea | paper |
|---|---|---|
| `simclr` | InfoNCE of two views in a batch | NRCC (1)-(3), Kernel-InfoNCE (8) |
| `moco` | InfoNCE against a queue of keys of a momentum network | |
| `byol`, `simsiam` | predict the other view's projection, without negatives | NRCC (4), Table 9 |
| `barlow` | decorrelate the columns of the projections | NRCC, Table 9 |
| `kernel_infonce` | InfoNCE with exponential kernels and mixtures | Kernel-InfoNCE |
| `ncc` | BYOL, positive sampling, and contrast of prototypes in an EM loop | NCC |
| `cueco` | momentum contrast with centroids updated online | CueCo |
| `ncl`, `rotation`, `supervised` | novel class discovery in three stages | NCL |

`with_nrcc` adds NRCC's regularizer to any method of two views (section `nrcc` of a config).

A method is a `TwoView` (two views and a loss of their projections) or a `Method` (functions `init`,
`loss` and `after`). `build(name, config, context)` builds it. All methods share one training step,
and the loss of the global batch has the same gradient on any number of devices. To add a method,
write one file here with a `Config` and a function `make`, and one config; see CONTRIBUTING.md.
"""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.methods.base import (
        Aux as Aux, Encoded as Encoded, Method as Method, MethodContext as MethodContext,
        SamplerInputs as SamplerInputs, TwoView as TwoView, as_method as as_method, build as build,
        names as names, parse as parse,
    )
    from cluster_jax.methods.wrappers.nrcc import (
        HMCConfig as HMCConfig, MonteCarloConfig as MonteCarloConfig, NoiseConfig as NoiseConfig,
        NRCCConfig as NRCCConfig, SGHMCConfig as SGHMCConfig, with_nrcc as with_nrcc,
    )
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
