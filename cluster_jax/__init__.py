"""Contrastive deep clustering of images without labels, in JAX and Flax.

The estimators are here; their parts are functions in the packages `losses`, `samplers`, `nets`,
`methods`, `clustering` and `metrics`. Each name is loaded where it is first used: importing
`GridShift` loads neither JAX nor UMAP.

Beneath, `data` loads, `training` has the step, the loop and its checkpoints (with the signals of a
preemption), `evaluation` clusters, `runs` has the record of a run and what writes it (`runs.run`),
`report` its page, and `cli` the commands. CONTRIBUTING.md tells where else something is.

.. include:: ../README.md
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
