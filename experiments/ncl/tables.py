"""What the rows of NCL's tables train; rows and printed numbers are in `tables.txt`."""

from collections.abc import Mapping
from typing import Any

from experiments.registry import Variant


def _ncl(changes: Mapping[str, Any], **keys: Any) -> Variant:
    return Variant(
        "ncl_digits", "ncl_cifar10", {f"method.{k}": v for k, v in changes.items()}, **keys
    )


def _supervised_only(duration: str, **more: Any) -> dict[str, Any]:
    """The stages without rotation: the supervised one trains the whole network."""
    train = {"labeled_batch_size": 128, "duration": duration}
    stage = {"method": {"name": "supervised"}, "network": {"frozen": None}, "train": train, **more}
    return {"stages": {"supervised": stage}}


NO_HNG = {"hng.count": 0}
BASELINE = {**NO_HNG, "weights.ncl": 0.0, "weights.scl": 0.0}
QUEUE, TAU = (64, 128, 256, 512), (0.01, 0.05, 0.1, 0.5)
K1, ALPHA, N, K2 = (5, 25, 100), (0.05, 0.2, 0.5), (1, 5, 10), (16, 64, 256)
VARIANTS = {
    "ours": _ncl({}),
    "no hng": _ncl(NO_HNG),
    "baseline": _ncl(BASELINE),
    "no ssl": _ncl(
        BASELINE,
        small=_supervised_only("60 epochs"),
        large=_supervised_only("100 epochs", optimizer={"lr_decay_every": "50 epochs"}),
    ),
    "no ce": _ncl({**BASELINE, "weights.ce": 0.0}),
    "no bce": _ncl({**BASELINE, "weights.bce": 0.0}),
    "no cs": _ncl({**BASELINE, "weights.consistency": 0.0}),
    "no pp": _ncl({**NO_HNG, "alpha": 1.0}),
    "no ap": _ncl({**NO_HNG, "alpha": 0.0}),
    "no la": _ncl({**NO_HNG, "weights.scl": 0.0}),
    "v1": _ncl({"hng.variant": "removed"}),
    "v2": _ncl({"hng.variant": "replacing"}),
    "v3": _ncl({"hng.variant": "labeled", "hng.mixing": (1.0,), "hng.rounds": 1}),
    "v4": _ncl({"hng.variant": "labeled"}),
    "v5": _ncl({"hng.variant": "unlabeled"}),
    "v6": _ncl({"hng.variant": "nearest"}),
}
# The figures' values are not printed; k_1 and k_2 are those of the digits' queue of 256.
FIGURE_A = {f"M {m}": {"queue": m, "neighbors": m // 10} for m in QUEUE}
FIGURE_A |= {f"tau {t:g}": {"temperature": t} for t in TAU}
FIGURE_A |= {f"k_1 {k}": {"neighbors": k} for k in K1} | {f"alpha {a}": {"alpha": a} for a in ALPHA}
FIGURE_B = {f"N {n}": {"hng.rounds": n} for n in N} | {f"k_2 {k}": {"hng.count": k} for k in K2}
VARIANTS |= {name: _ncl({**NO_HNG, **changes}) for name, changes in FIGURE_A.items()}
VARIANTS |= {name: _ncl(changes) for name, changes in FIGURE_B.items()}
