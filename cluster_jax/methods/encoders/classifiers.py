"""A backbone under linear classifiers: the stages of novel class discovery."""

from collections.abc import Callable, Mapping

import jax
from jax import Array

from cluster_jax import settings
from cluster_jax.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Method, Setting, Tree
from cluster_jax.nets import heads

LABELLED, NOVEL = "labelled", "novel"


def check(setting: Setting, name: str, *, labelled: int | None) -> None:
    """Raises an `InputError` unless batches have `labelled` rows and there is no projector."""
    if setting.labelled_rows != labelled:
        raise settings.InputError(
            f"the method {name} needs train.labelled_rows = {labelled}; got {setting.labelled_rows}"
        )
    if setting.shuffle:
        raise settings.InputError(
            "network.norm 'shuffle' needs a method with a target network; use 'sync'"
        )
    if setting.network.projections != setting.network.features or setting.network.predict:
        raise settings.InputError(
            f"the method {name} classifies the backbone's features; set network.projector and "
            "network.predictor to None"
        )


def forward(
    setting: Setting, params: Tree, extra: Tree, images: Array, head: str, axis: Axis
) -> tuple[Array, Array, Tree]:
    """Logits `[b, classes]` of a head, features `[b, f]` and new statistics, in training."""
    out = setting.network.forward(params, extra["stats"], images, train=True, axis=axis)
    return logits(params, head, out.representation), out.representation, out.stats


def logits(params: Tree, head: str, features: Array) -> Array:
    """Logits `[b, classes]` of a head for features `[b, f]`."""
    return heads.classify(params["heads"][head], features)


def method(
    setting: Setting,
    loss: Callable,
    classes: Mapping[str, int],
    memory: Callable[[], Tree] = dict,
) -> Method:
    """A method of one network with classifiers. Its `embed` gives features and all logits.

    Args:
        setting: network, augmentation and sizes.
        loss: see `Method`.
        classes: number of classes of each head.
        memory: what else the method keeps in `extra`, at the first step: a dictionary.
    """
    network = setting.network

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        params, stats = network.init(key, images)
        made = {
            name: heads.classifier(jax.random.fold_in(key, i), network.features, count)
            for i, (name, count) in enumerate(sorted(classes.items()), start=1)
        }
        return {**params, "heads": made}, {"stats": stats, **memory()}

    def embed(params: Tree, extra: Tree, images: Array) -> dict[str, Array]:
        inputs = jax.vmap(setting.augment.clean)(images)
        out = network.forward(params, extra["stats"], inputs, train=False, axis=None)
        found = {name: logits(params, name, out.representation) for name in classes}
        return {"backbone": out.representation, **found}

    def after(params: Tree, extra: Tree, step: Array) -> Tree:
        return extra

    return Method(init, loss, after, embed, base.never, base.unchanged)
