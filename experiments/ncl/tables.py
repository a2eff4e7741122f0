"""NCL's tables: what the rows train, and what the paper prints (see `experiments.registry`)."""

from experiments.registry import Row, Variant, swept, table

ours = Variant("ncl_digits", "ncl_cifar10")
no_hng = ours.but({"method.hng.count": 0})
baseline = no_hng.but({"method.weights.ncl": 0.0, "method.weights.scl": 0.0})
# The stages without rotation: the supervised one trains the whole network.
SUPERVISED = {"method": {"name": "supervised"}, "network": {"frozen": None}}
TRAIN = {"labeled_batch_size": 128}
SMALL = {**SUPERVISED, "train": {**TRAIN, "duration": "60 epochs"}}
LARGE = {**SUPERVISED, "train": {**TRAIN, "duration": "100 epochs"}}
no_ssl = baseline.but(
    small={"stages": {"supervised": SMALL}},
    large={"stages": {"supervised": {**LARGE, "optimizer": {"lr_decay_every": "50 epochs"}}}},
)
labeled = ours.but({"method.hng.variant": "labeled"})
NOVEL = "discovery.novel"
peer = Variant(
    missing="this method is not implemented: it needs a network that is trained on pairs of labeled "
    "images"
)


def at(rows: list[Row], **none: str) -> list[Row]:
    """Rows without a config at a scale, `digits=""` or `full=""`."""
    return [row._replace(variant=row.variant.but(**none)) for row in rows]


# The figures' ranges are printed (Appendix B: M 500 to 20,000, tau 0.01 to 0.5, k_1 10 to 360 on
# CIFAR-10 and 1 to 80 on CIFAR-100, k_2 best at about 400, on CIFAR-100 alone), their values are
# not. Queues of the digits are shorter than those; queues are multiples of the batch. Neighbors are a
# tenth of the queue on the digits; at full scale those of the config, as "the other three are set to
# their default values", though the default, |M| / C^u / 2, can be read to follow M. k_1 and k_2 up to
# 256 are those of the digits' queue of 256; of the k_1, 5 is below CIFAR-10's range and 100 to 360 are
# above that of CIFAR-100.
QUEUES = [
    row._replace(variant=row.variant.but(small={"method.neighbors": neighbors}))
    for row, neighbors in zip(
        swept("M", no_hng, "method.queue", (64, 128, 256, 512), NOVEL), (6, 12, 25, 51), strict=True
    )
]

PROTOCOL = (
    "accuracy of the novel head on unlabeled training images, number of classes given, 10 runs"
)
# fmt: off
TABLES = {
    "2": table(197, "The baseline without self-supervision (SSL), CE, BCE, or consistency (CS)", "ACC", "CIFAR-10, CIFAR-100", [
        ("without SSL", no_ssl, NOVEL, 191, "85.0±0.4 66.5±4.0"),
        ("without CE", baseline.but({"method.weights.ce": 0.0}), NOVEL, 192, "83.9±9.4 62.6±3.6"),
        ("without BCE", baseline.but({"method.weights.bce": 0.0}), NOVEL, 193, "39.5±4.2 18.1±0.8"),
        ("without CS", baseline.but({"method.weights.consistency": 0.0}), NOVEL, 194, "84.1±0.9 61.6±3.2"),
        ("baseline", baseline, NOVEL, 195, "87.9±0.7 69.4±1.4"),
    ]),
    "3": table(208, "NCL without pseudo-positives (PP), augmented positive (AP), or labeled images (LA); HNG", "ACC", "CIFAR-10, CIFAR-100", [
        ("baseline", baseline, NOVEL, 201, "87.9±0.7 69.4±1.4"),
        ("+ NCL w/o PP", no_hng.but({"method.alpha": 1.0}), NOVEL, 202, "61.8±7.6 68.5±1.9"),
        ("+ NCL w/o AP", no_hng.but({"method.alpha": 0.0}), NOVEL, 203, "90.9±2.1 79.7±5.7"),
        ("+ NCL w/o LA", no_hng.but({"method.weights.scl": 0.0}), NOVEL, 204, "93.3±0.1 80.3±0.9"),
        ("+ NCL", no_hng, NOVEL, 205, "93.4±0.2 82.3±2.6"),
        ("+ NCL + HNG", ours, NOVEL, 206, "93.4±0.1 86.6±0.4"),
    ]),
    "4": table(251, "Comparison (of the peers with self-supervision DTC and RS left out); k-means on the features before discovery", "ACC", "CIFAR-10, CIFAR-100, ImageNet", [
        ("k-means", ours, "discovery.kmeans_before_", 243, "72.5±0.0 56.3±1.7 71.9"),
        ("KCL", peer, NOVEL, 244, "72.3±0.2 42.1±1.8 73.8"),
        ("MCL", peer, NOVEL, 245, "70.9±0.1 21.5±2.3 74.4"),
        ("NCL without HNG", no_hng, NOVEL, 248, "93.4±0.2 82.3±2.6 89.5"),
        ("NCL", ours, NOVEL, 249, "93.4±0.1 86.6±0.4 90.7"),
    ]),
    "figure4": table(217, "Variants of HNG, without numbers in the text", "ACC", "CIFAR-10, CIFAR-100", [
        ("no HNG", no_hng, NOVEL),
        ("HNG-V1, easiest negatives removed", ours.but({"method.hng.variant": "removed"}), NOVEL),
        ("HNG-V2, easiest negatives replaced", ours.but({"method.hng.variant": "replacing"}), NOVEL),
        ("HNG-V3, random labeled entries", labeled.but({"method.hng.mixing": (1.0,), "method.hng.rounds": 1}), NOVEL),
        ("HNG-V4, labeled entries mixed", labeled, NOVEL),
        ("HNG-V5, easiest negatives mixed", ours.but({"method.hng.variant": "unlabeled"}), NOVEL),
        ("HNG-V6, mixed with near labeled entries", ours.but({"method.hng.variant": "nearest"}), NOVEL),
        ("HNG", ours, NOVEL),
    ]),
    "figureA": table(307, "Queue, temperature, pseudo-positives, augmented positive", "ACC", "CIFAR-10, CIFAR-100", [
        *at(QUEUES[:3], full=""),
        QUEUES[3],
        *at(swept("M", no_hng, "method.queue", (2048, 8192, 19968), NOVEL), digits=""),
        *swept("tau", no_hng, "method.temperature", (0.01, 0.05, 0.1, 0.5), NOVEL),
        *swept("k_1", no_hng, "method.neighbors", (5, 25, 100), NOVEL),
        *at(swept("k_1", no_hng, "method.neighbors", (200, 360), NOVEL), digits=""),
        *swept("alpha", no_hng, "method.alpha", (0.05, 0.2, 0.5), NOVEL),
    ]),
    "figureB": table(310, "Rounds N and number k_2 of HNG", "ACC", "CIFAR-100", [
        *swept("N", ours, "method.hng.rounds", (1, 5, 10), NOVEL),
        *swept("k_2", ours, "method.hng.count", (16, 64, 256), NOVEL),
        *at(swept("k_2", ours, "method.hng.count", (400,), NOVEL), digits=""),
    ]),
}
