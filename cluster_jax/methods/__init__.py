r"""Training methods: one file per method; the file name is its name in a config.

| method | idea | take it for |
|---|---|---|
| `simclr` | InfoNCE of two views in a batch | large batches; a first try |
| `moco` | InfoNCE against a queue of a momentum network's keys | small batches |
| `byol`, `simsiam` | predict the other view's projection, no negatives | small batches |
| `barlow` | decorrelate the columns of the projections | wide projections |
| `kernel_infonce` | InfoNCE with exponential kernels and mixtures | a study of kernels |
| `ncc` | BYOL, positive sampling, contrast of prototypes | a known number of clusters |
| `cueco` | momentum contrast with centroids updated online | a known number of clusters |
| `pcl` | MoCo with prototypes of several clusterings | a number of clusters known only roughly |
| `cc` | contrast of images and of clusters, by two heads | a known number of clusters |
| `swav` | predict balanced assignments to prototypes, also from small crops | many classes |
| `ncl` | neighborhood contrast, after `rotation` and `supervised` | some classes with labels |

$L = L_{\text{method}} + \lambda R$ is NRCC around a method of two views: `with_nrcc` adds the
regularizer $R$ of a sampled third view (`cluster_jax.losses`, `cluster_jax.samplers`); in a config
it is the section `nrcc`, and `nrcc.weight` is $\lambda$. It uses the method's own forward passes.

CC, PCL and NCC are a contrast of images and a `Term`: of clusters, of prototypes, ProtoCL.
`with_term` adds it to any other method of two views; in a config it is the section `term`, as in
BYOL + CC, BYOL + PCL and CC + ProtoCL of NCC's Table 4.

**Pseudo-labels.** NCC alternates between an E-step, spherical k-means of the whole training set's
features, and an M-step, an epoch of
$L_{\text{BYOL}}(a + \sigma \epsilon) + \lambda_{\text{pcl}} L_{\text{ProtoCL}}$, with normal noise
$\epsilon$ on the projections $a$. CueCo clusters its queue, moves the centroids
$\mu_k \leftarrow m \mu_k + (1 - m) z$ with the keys $z$ of each step, and contrasts an image with
all centroids. PCL clusters the target network's features several times, into different numbers of
prototypes. NCL takes two unlabeled images for one class where their cosine exceeds a threshold,
mixes hard negatives of labeled and unlabeled features, and has two classifiers, for known and for
novel classes.

**Deviations.** Each file's `make` states what was chosen where its paper is misprinted or silent,
and names the test that holds it: BYOL's predictor is on the online branch (NRCC's Table 11 says
target: `test_nrcc_eq_19_misprints_the_target_and_the_factor`); CueCo's two decays and the
initialization of its k-means; MoCo, CueCo and Barlow Twins with one hidden layer in the projector;
NCL's head "clusters", which is ours.

**In code** a method is a `TwoView`, the forward passes of two views and a loss of their
projections, or a `Method` with an `init`, a `loss` and an `after` of its own.
`build(name, config, context)` makes it. The training step is the same for all, and the gradient of
the global batch's loss does not depend on the number of devices. To add a method, write one file
with a `Config`, a function `make` and a config, here or anywhere else:
`experiments/tutorials/method.md`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
