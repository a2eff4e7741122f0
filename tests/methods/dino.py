"""DINO as a method outside of the package, written with the links of the README.

Caron et al. (2021), "Emerging Properties in Self-Supervised Vision Transformers". The student
predicts the centered and sharpened scores of its moving average, the teacher, which sees the two
views of full size alone. Deviation: the teacher's temperature has no warm-up.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.config import load_config
from cluster_jax.data.views import SmallCropConfig
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Watched


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of DINO; in brackets the paper's.

    Attributes:
        prototypes: number of scores (65,536).
        temperature: of the student (0.1).
        teacher_temperature: of the teacher (0.04, raised to 0.07).
        center_decay: of the moving average of the teacher's scores (0.9).
        decay: of the teacher at the first update (0.996); at the last one it is 1.
        freeze: duration in which the student's prototypes do not change, as in SwAV.
        small: small crops (of less than half the area); None: there are none.
    """

    prototypes: int
    temperature: checks.Positive
    teacher_temperature: checks.Positive
    center_decay: checks.Fraction
    decay: checks.Fraction
    freeze: checks.Duration
    small: SmallCropConfig | None


class State(NamedTuple):
    """What survives a step; `target`, the teacher, has prototypes of its own."""

    batch_stats: Any
    target: encoders.Target
    center: jax.Array


def make(context, config):
    """DINO; the teacher is kept after training."""
    frozen = checks.steps("method.freeze", config.freeze, context.steps_per_epoch)

    def objective(params, encoded, state, step, key, axis):
        prototypes = params["prototypes"]
        prototypes = jnp.where(step < frozen, jax.lax.stop_gradient(prototypes), prototypes)
        student = [scores(z, prototypes) for z in (*encoded.projections, *encoded.more)]
        teacher = [scores(z, state.target.params["prototypes"]) for z in encoded.targets]
        losses = []
        for i, t in enumerate(teacher):
            codes = jax.nn.softmax((t - state.center[None]) / config.teacher_temperature)
            for j, s in enumerate(student):
                if i != j:
                    logs = jax.nn.log_softmax(s / config.temperature)
                    losses.append(-jnp.mean(jnp.sum(codes * logs, axis=1)))
        mean = collectives.mean(jnp.mean(jnp.concatenate(teacher), axis=0), axis)
        center = config.center_decay * state.center + (1 - config.center_decay) * mean
        return sum(losses) / len(losses), state._replace(center=center), {}

    two_view = encoders.momentum(
        context,
        objective,
        name="DINO",
        decays=(config.decay, 1.0),
        predicts=False,
        initial_state=lambda stats, target: State(stats, target, jnp.zeros(config.prototypes)),
    )

    def init(key, images):
        params, state = two_view.init(key, images)
        shape = config.prototypes, context.network.projections
        rows = ops.l2_normalize(jax.random.normal(jax.random.fold_in(key, 1), shape))
        averaged = {**state.target.params, "prototypes": jnp.copy(rows)}
        state = state._replace(target=state.target._replace(params=averaged))
        return {**params, "prototypes": rows}, state

    def after(params, state, update):
        return {**params, "prototypes": ops.l2_normalize(params["prototypes"])}, state

    return two_view._replace(
        kept=encoders.target_network,
        init=init,
        after=after,
        more=encoders.small_crops(context, config.small),
        watched=Watched(chance=("loss", math.log(config.prototypes))),
    )


def scores(z, prototypes):
    """Cosines `[b, K]`."""
    return ops.pairwise_dot(ops.l2_normalize(z), prototypes)


def get_config():
    """For scikit-learn's digits."""
    config = load_config("swav_digits")
    config.method = ConfigDict(
        {
            "name": "tests.methods.dino",
            "prototypes": 64,
            "temperature": 0.1,
            "teacher_temperature": 0.05,
            "center_decay": 0.9,
            "decay": 0.99,
            "freeze": "1 epoch",
            "small": {"count": 2, "size": None, "scale": (0.25, 0.6)},
        }
    )
    config.nrcc.branch = "target"
    config.train.duration = "500 steps"
    return config
