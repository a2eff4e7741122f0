"""NCL's tables and figures: rows, runs, and printed numbers."""

from collections.abc import Mapping
from typing import Any

from experiments.registry import Variant, parse


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
PROTOCOL = (
    "accuracy of the novel head on unlabeled training images, number of classes given, 10 runs"
)
TABLES = parse(
    """
# 2 | 197 | The baseline without self-supervision (SSL), CE, BCE, or consistency (CS) | ACC | CIFAR-10, CIFAR-100
191 | without SSL | no ssl | discovery.novel | 85.0±0.4 66.5±4.0
192 | without CE | no ce | discovery.novel | 83.9±9.4 62.6±3.6
193 | without BCE | no bce | discovery.novel | 39.5±4.2 18.1±0.8
194 | without CS | no cs | discovery.novel | 84.1±0.9 61.6±3.2
195 | baseline | baseline | discovery.novel | 87.9±0.7 69.4±1.4
# 3 | 208 | NCL without pseudo-positives (PP), augmented positive (AP), or labeled images (LA); HNG | ACC | CIFAR-10, CIFAR-100
201 | baseline | baseline | discovery.novel | 87.9±0.7 69.4±1.4
202 | + NCL w/o PP | no pp | discovery.novel | 61.8±7.6 68.5±1.9
203 | + NCL w/o AP | no ap | discovery.novel | 90.9±2.1 79.7±5.7
204 | + NCL w/o LA | no la | discovery.novel | 93.3±0.1 80.3±0.9
205 | + NCL | no hng | discovery.novel | 93.4±0.2 82.3±2.6
206 | + NCL + HNG | ours | discovery.novel | 93.4±0.1 86.6±0.4
# 4 | 251 | Comparison (KCL, MCL, DTC, and RS left out); k-means on the features before discovery | ACC | CIFAR-10, CIFAR-100, ImageNet
243 | k-means | ours | discovery.kmeans_before_ | 72.5±0.0 56.3±1.7 71.9
248 | NCL without HNG | no hng | discovery.novel | 93.4±0.2 82.3±2.6 89.5
249 | NCL | ours | discovery.novel | 93.4±0.1 86.6±0.4 90.7
# figure4 | 217 | Variants of HNG, without numbers in the text | ACC | CIFAR-10, CIFAR-100
0 | no HNG | no hng | discovery.novel | -
0 | HNG-V1, easiest negatives removed | v1 | discovery.novel | -
0 | HNG-V2, easiest negatives replaced | v2 | discovery.novel | -
0 | HNG-V3, random labeled entries | v3 | discovery.novel | -
0 | HNG-V4, labeled entries mixed | v4 | discovery.novel | -
0 | HNG-V5, easiest negatives mixed | v5 | discovery.novel | -
0 | HNG-V6, mixed with near labeled entries | v6 | discovery.novel | -
0 | HNG | ours | discovery.novel | -
# figureA | 307 | Queue, temperature, pseudo-positives, augmented positive | ACC | CIFAR-10, CIFAR-100
* discovery.novel | M 64 | M 128 | M 256 | M 512 | tau 0.01 | tau 0.05 | tau 0.1 | tau 0.5 | k_1 5 | k_1 25 | k_1 100 | alpha 0.05 | alpha 0.2 | alpha 0.5
# figureB | 310 | Rounds N and number k_2 of HNG | ACC | CIFAR-10, CIFAR-100
* discovery.novel | N 1 | N 5 | N 10 | k_2 16 | k_2 64 | k_2 256
""",
    VARIANTS,
    PROTOCOL,
)
