"""NRCC's tables: what the rows train, and what the paper prints (see `experiments.registry`)."""

from experiments.ncc.tables import cc_settings, moco34, pcl34
from experiments.registry import Variant, curve, table

TRAIN, TAIL = {"data.split": "train"}, {"data.tail": 10.0}
OFF, WEIGHT, AUGMENT = {"nrcc.weight": 0.0}, {"nrcc.weight": 0.5}, {"nrcc.sampler": "augment"}
TSNE = {"eval.reduce.method": "tsne"}
SIX = "CIFAR-10, CIFAR-20, STL-10, ImageNet-10, ImageNet-Dogs, TinyImageNet"


def nrcc(digits: str, **large: object) -> Variant:
    """A method in place of BYOL in the paper's configs."""
    large = {"data.split": "train+test", **large}
    return Variant(f"{digits}_digits", "nrcc_cifar10", large=large)


# The digits configs but that of InfoNCE have no NRCC.
BRANCH, NO_PREDICTOR = {"nrcc.branch": "online"}, {"network.predictor": None}
INFONCE = {"name": "simclr", "temperature": 0.1, "positive_in_denominator": False}
infonce_nrcc = nrcc("nrcc", method=INFONCE, **NO_PREDICTOR, **BRANCH)
infonce, infonce_augment = infonce_nrcc.but(OFF), infonce_nrcc.but(AUGMENT)
simsiam = nrcc("simsiam", method={"name": "simsiam"}, **BRANCH)
simsiam, simsiam_nrcc = simsiam.but(OFF), simsiam.but(small=WEIGHT)
BARLOW = {"name": "barlow", "off_diagonal": 0.005, "scale": 1.0}
barlow = nrcc("barlow", method=BARLOW, **NO_PREDICTOR, **BRANCH)
barlow, barlow_nrcc = barlow.but(OFF), barlow.but(small=WEIGHT)
byol, byol_nrcc = nrcc("byol").but(OFF), nrcc("byol").but(small=WEIGHT)
byol_augment = byol_nrcc.but(AUGMENT)
# A sampled view that is mostly gradient.
NORMALIZED = {"normalize_gradient": True, "step_size": 0.2, "noise": 0.1, "friction": 0.9}
normalized = byol_nrcc.but({f"nrcc.sghmc.{key}": value for key, value in NORMALIZED.items()})
online = byol_nrcc.but({"nrcc.branch": "online"})
target_predictor = byol_nrcc.but({"nrcc.branch": "target_predictor"})
views = byol_nrcc.but(function="nrcc.views")

# Peers of Tables 3 to 6. MoCo: batch 512 (line 815); its other settings, CC's and PCL's are those of
# NCC's experiments, and 224 pixels are the set's, not the peer's.
moco, pcl, cc = (of.but(large={"eval.features": "backbone"}) for of in (moco34, pcl34, cc_settings))
# Backbones, for which 8 x 8 pixels have no counterpart.
dogs, dogs_vit = Variant("", "nrcc_imagenet_dogs"), Variant("", "nrcc_imagenet_dogs_vit")

PROTOCOL = "ResNet-34, 1,000 epochs of all images, batch 256, one run; k given to k-means, found by GridShift"
# fmt: off
TABLES = {
    "1": table(250, "Distance of views from their image, BYOL + NRCC (on the digits by noise, shear, rotation, and shift)", "distance", "ImageNet-10", [
        ("color jitter", views, "views.jitter", 254, "0.0038±0.0009"),
        ("grayscale", views, "views.grayscale", 255, "0.0038±0.0009"),
        ("rotation", views, "views.rotation", 256, "0.0038±0.0019"),
        ("crop", views, "views.crop", 257, "0.0011±0.0010"),
        ("SGHMC", views, "views.sghmc_1", 258, "0.0112±0.0060"),
    ], "1,000 pairs, mean ± standard deviation"),
    "2": table(345, "Ablation on CIFAR-10", "NMI ACC ARI", "CIFAR-10", [
        ("InfoNCE, k-means", infonce, "kmeans", 350, "77.6 77.8 71.7"),
        ("BYOL, k-means", byol, "kmeans", 351, "81.7 89.4 79.0"),
        ("InfoNCE, t-SNE, GridShift", infonce.but(TSNE), "gridshift", 352, "78.1 78.3 72.5"),
        ("BYOL, t-SNE, GridShift", byol.but(TSNE), "gridshift", 353, "81.9 89.5 80.1"),
        ("InfoNCE, UMAP, GridShift", infonce, "gridshift", 354, "78.7 78.9 74.5"),
        ("BYOL, UMAP, GridShift", byol, "gridshift", 355, "82.5 89.9 82.3"),
        ("InfoNCE + NRCC w/o SGHMC, k-means", infonce_augment, "kmeans", 356, "80.4 85.1 80.2"),
        ("BYOL + NRCC w/o SGHMC, k-means", byol_augment, "kmeans", 357, "84.5 90.6 84.1"),
        ("InfoNCE + NRCC w/o SGHMC, t-SNE, GridShift", infonce_augment.but(TSNE), "gridshift", 358, "80.7 85.9 80.5"),
        ("BYOL + NRCC w/o SGHMC, t-SNE, GridShift", byol_augment.but(TSNE), "gridshift", 359, "84.9 91.1 84.8"),
        ("InfoNCE + NRCC w/o SGHMC, UMAP, GridShift", infonce_augment, "gridshift", 360, "81.5 86.7 82.4"),
        ("BYOL + NRCC w/o SGHMC, UMAP, GridShift", byol_augment, "gridshift", 361, "85.1 92.2 85.1"),
        ("InfoNCE + NRCC, k-means", infonce_nrcc, "kmeans", 362, "86.8 92.3 85.2"),
        ("BYOL + NRCC, k-means", byol_nrcc, "kmeans", 363, "87.6 92.8 87.0"),
        ("InfoNCE + NRCC, t-SNE, GridShift", infonce_nrcc.but(TSNE), "gridshift", 364, "87.0 92.7 85.9"),
        ("BYOL + NRCC, t-SNE, GridShift", byol_nrcc.but(TSNE), "gridshift", 365, "88.1 93.3 87.2"),
        ("InfoNCE + NRCC, UMAP, GridShift", infonce_nrcc, "gridshift", 366, "87.1 93.4 86.7"),
        ("BYOL + NRCC, UMAP, GridShift", byol_nrcc, "gridshift", 367, "88.4 93.8 87.9"),
    ]),
    "3": table(377, "ACC on six sets (the second is printed as CIFAR-100)", "ACC", SIX, [
        ("CC", cc, "kmeans", 384, "79.0 42.9 85.0 89.3 42.9 14.0"),
        ("SimCLR", infonce, "kmeans", 390, "77.8 42.6 71.6 90.6 34.6 14.8"),
        ("MoCo", moco, "kmeans", 391, "77.6 39.7 72.8 - 33.8 16.0"),
        ("SimSiam", simsiam, "kmeans", 392, "85.6 - 71.6 92.1 67.4 20.3"),
        ("BYOL", byol, "kmeans", 393, "89.4 - 82.5 93.9 69.4 19.9"),
        ("PCL", pcl, "kmeans", 395, "87.4 - 41.0 90.7 41.2 15.9"),
        ("InfoNCE + NRCC", infonce_nrcc, "gridshift", 401, "93.4 49.8 88.2 92.1 69.6 28.5"),
        ("BYOL + NRCC", byol_nrcc, "gridshift", 402, "93.8 63.9 88.2 95.9 72.6 31.4"),
    ]),
    "4": table(409, "NMI on six sets (the second is printed as CIFAR-100)", "NMI", SIX, [
        ("CC", cc, "kmeans", 416, "70.5 43.1 76.4 85.9 44.5 34.0"),
        ("SimCLR", infonce, "kmeans", 422, "77.6 40.9 62.4 80.6 35.9 33.8"),
        ("MoCo", moco, "kmeans", 424, "66.9 39.0 61.5 - 34.7 34.2"),
        ("SimSiam", simsiam, "kmeans", 425, "78.6 - 65.9 83.1 58.3 35.1"),
        ("BYOL", byol, "kmeans", 426, "81.7 - 71.3 86.6 63.5 36.5"),
        ("PCL", pcl, "kmeans", 427, "80.2 - 71.8 84.1 44.0 35.0"),
        ("InfoNCE + NRCC", infonce_nrcc, "gridshift", 433, "87.1 61.5 80.5 84.3 64.2 43.5"),
        ("BYOL + NRCC", byol_nrcc, "gridshift", 434, "88.4 65.8 80.7 90.6 68.4 47.8"),
    ]),
    "5": table(437, "ARI on six sets (the second is printed as CIFAR-100)", "ARI", SIX, [
        ("CC", cc, "kmeans", 444, "63.7 26.6 72.6 82.2 27.4 7.1"),
        ("SimCLR", infonce, "kmeans", 450, "71.7 25.8 51.6 82.1 23.8 6.7"),
        ("MoCo", moco, "kmeans", 452, "60.8 24.2 52.4 - 19.7 8.0"),
        ("SimSiam", simsiam, "kmeans", 453, "73.6 - 57.2 83.3 50.1 9.4"),
        ("BYOL", byol, "kmeans", 454, "79.0 - 65.7 87.2 54.8 10.0"),
        ("PCL", pcl, "kmeans", 455, "76.6 - 67.0 82.2 29.9 8.7"),
        ("InfoNCE + NRCC", infonce_nrcc, "gridshift", 461, "86.7 34.5 76.0 83.4 54.1 15.7"),
        ("BYOL + NRCC", byol_nrcc, "gridshift", 462, "87.9 49.2 76.1 90.2 59.4 17.6"),
    ]),
    "6": table(467, "Long tails, N_min/N_max = 0.1", "NMI ACC ARI", "CIFAR-10-LT, CIFAR-20-LT", [
        ("MoCo", moco.but(TAIL, large=TRAIN), "kmeans", 472, "46.7 33.4 27.7 31.2 28.2 16.1"),
        ("BYOL", byol.but(TAIL, large=TRAIN), "kmeans", 473, "51.6 41.3 30.8 41.9 34.6 22.3"),
        ("BYOL + NRCC", byol_nrcc.but(TAIL, large=TRAIN), "gridshift", 474, "55.6 44.2 35.3 45.3 38.6 28.3"),
    ]),
    "7": table(483, "Training time on four V100 GPUs", "minutes", "CIFAR-10", [
        ("BYOL", byol, "-", 487, "5h33m"),
        ("BYOL + NRCC", byol_nrcc, "-", 487, "8h17m"),
    ]),
    "8": table(503, "Samplers of the third view; the numbers of iterations of the last two are not printed", "ACC", "CIFAR-10", [
        ("BYOL", byol, "kmeans", 508, "89.4"),
        ("SGHMC, one iteration", byol_nrcc, "gridshift", 509, "93.8"),
        ("HMC, one iteration", byol_nrcc.but({"nrcc.sampler": "hmc"}), "gridshift", 510, "91.3"),
        ("MC, one iteration", byol_nrcc.but({"nrcc.sampler": "monte_carlo"}), "gridshift", 511, "89.1"),
        ("HMC, 3 iterations", byol_nrcc.but({"nrcc.sampler": "hmc", "nrcc.hmc.iterations": 3}), "gridshift", 512, "93.6"),
        ("MC, 13 iterations", byol_nrcc.but({"nrcc.sampler": "monte_carlo", "nrcc.monte_carlo.iterations": 13}), "gridshift", 513, "93.2"),
        ("plain noise", byol_nrcc.but({"nrcc.sampler": "noise"}), "gridshift"),
        ("SGHMC, normalized gradient", normalized, "gridshift"),
    ]),
    "9": table(524, "NRCC on other methods", "ACC ARI NMI", "CIFAR-10", [
        ("SimSiam", simsiam, "kmeans", 528, "85.6 73.6 78.6"),
        ("Barlow Twins", barlow, "kmeans", 531, "87.3 74.2 78.4"),
        ("SimSiam + NRCC", simsiam_nrcc, "gridshift", 534, "87.1 75.4 80.3"),
        ("Barlow Twins + NRCC", barlow_nrcc, "gridshift", 537, "90.4 80.3 82.7"),
    ]),
    "10": table(549, "ImageNet-1k, ResNet-50, 200 epochs", "AMI", "ImageNet-1k", [
        ("BYOL + NRCC", Variant("byol_digits", "nrcc_imagenet", small=WEIGHT), "gridshift", 559, "57.4"),
    ], "ResNet-50, 200 epochs, k found by GridShift"),
    "10-backbones": table(549, "Backbones on ImageNet-Dogs", "NMI ACC ARI", "ImageNet-Dogs", [
        ("ResNet-34", dogs, "gridshift", 563, "68.4 72.6 59.4"),
        ("ResNet-50", dogs.but(large={"network.name": "resnet50"}), "gridshift", 564, "67.6 72.2 59.3"),
        ("ViT-Tiny", dogs_vit.but(large={"network.name": "vit_tiny_patch16", "network.width": 192}), "gridshift", 565, "66.9 72.0 58.3"),
        ("ViT-Small", dogs_vit, "gridshift", 566, "68.8 73.8 60.1"),
        ("ViT-Base", dogs_vit.but(large={"network.name": "vit_base_patch16", "network.width": 768}), "gridshift", 567, "68.5 72.6 59.5"),
    ], "BYOL + NRCC, 1,000 epochs, batch 256, k found by GridShift"),
    "13": table(836, "Distance of SGHMC's views after more iterations", "distance", "ImageNet-10", [
        ("1 iteration", views, "views.sghmc_1", 840, "0.0112±0.0060"),
        ("3 iterations", views, "views.sghmc_3", 841, "0.0092±0.0055"),
        ("5 iterations", views, "views.sghmc_5", 842, "0.0071±0.0036"),
        ("7 iterations", views, "views.sghmc_7", 843, "0.0060±0.0024"),
        ("9 iterations", views, "views.sghmc_9", 844, "0.0055±0.0021"),
        ("11 iterations", views, "views.sghmc_11", 845, "0.0053±0.0020"),
        ("13 iterations", views, "views.sghmc_13", 846, "0.0051±0.0020"),
    ], "1,000 pairs, mean ± standard deviation"),
    "figure1": table(51, "UMAP maps (in each run's report.html)", "NMI ACC ARI", "ImageNet-10", [
        ("InfoNCE", infonce, "gridshift"),
        ("BYOL", byol, "gridshift"),
        ("InfoNCE + NRCC", infonce_nrcc, "gridshift"),
        ("BYOL + NRCC", byol_nrcc, "gridshift"),
    ]),
    "figure4": table(274, "Network through which SGHMC's view passes", "ACC NMI 5-NN", "ImageNet-10", [
        ("(a) online network", online, "gridshift"),
        ("(b) target network with predictor", target_predictor, "gridshift"),
        ("(c) target network", byol_nrcc, "gridshift"),
    ]),
    "figure4-curves": table(274, "The same over the training (GridShift's ACC)", "5-NN std ACC", "ImageNet-10", [
        *curve("(a) online network", online, 10_000),
        *curve("(b) target network with predictor", target_predictor, 10_000),
        *curve("(c) target network", byol_nrcc, 10_000),
    ]),
}
