"""The public names of the package, and that each of them is loaded where it is first used."""

import importlib
import pathlib
import subprocess
import sys

import pytest

import cluster_jax

SURFACE = {
    "cluster_jax": """
        Encoder GridShift ImageClusterer SmoothTree clustering cut_tree load losses
        methods metrics nets samplers""",
    "cluster_jax.losses": """
        HardNegatives Kernel Mixing Targets barlow_twins byol byol_views centroid_contrast clip
        cluster_contrast concentrations consistency cross_entropy entropy_deficit
        hard_negatives info_nce info_nce_queue info_nce_views kernel_clip
        kernel_info_nce_queue kernel_info_nce_views neighborhood_contrast nrcc
        nrcc_views pairwise_bce positive_samples proto_cl proto_cl_views
        prototype_contrast prototypes ramp similar sinkhorn_codes supervised_contrast
        swapped_prediction target_weights variance_loss""",
    "cluster_jax.samplers": """
        HMCState PotentialAndGrad SGHMCState Sampler SamplerInfo expand_like gradient_share hmc
        inverse log_inverse_square monte_carlo norm_ratio normalize_by_rms repeat sample sghmc
        shape_gradient similarity_potential standard_normal sum_of_squares""",
    "cluster_jax.metrics": """
        Contingency ProbeSettings accuracy collapse contingency knn_accuracy linear_probe matching
        purity scores silhouette""",
    "cluster_jax.clustering": """
        GridShift KMeansResult SmoothTree cut_tree kmeans kmeans_blocks
        label_spreading linkage_of_means reduce sinkhorn""",
    "cluster_jax.nets": """
        Network NetworkConfig Outputs PredictorConfig ProjectorConfig classifier classify make
        names""",
    "cluster_jax.methods": """
        Aux Encoded HMCConfig Method MethodContext MonteCarloConfig NRCCConfig NoiseConfig
        SGHMCConfig SamplerInputs Term TwoView as_method build build_term names parse parse_term
        with_nrcc with_term""",
}
ROOMS = [name for name in SURFACE if name != "cluster_jax"]
ROOT = pathlib.Path(cluster_jax.__file__).parents[1]


@pytest.mark.parametrize("package", SURFACE)
def test_the_whole_surface(package):
    module, names = importlib.import_module(package), SURFACE[package].split()
    assert dir(module) == sorted(module.__all__) == names
    for name in names:
        value = getattr(module, name)
        assert value is getattr(module, name)
        # Losses are jitted: functions of JAX that show the module of the function inside.
        if package != "cluster_jax" and name != "PotentialAndGrad":
            assert value.__module__.startswith(f"{package}.")
            assert value.__doc__
    with pytest.raises(AttributeError, match=f"{package} attribute absent"):
        _ = module.absent


def _run(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_rooms_loads_nothing_else():
    _run(
        "import sys\n"
        "import cluster_jax\n"
        f"for room in {ROOMS}:\n"
        "    assert room not in sys.modules, room\n"
        "    assert getattr(cluster_jax, room.split('.')[1]) is sys.modules[room]\n"
        "assert not {'jax', 'flax', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "from cluster_jax.clustering import GridShift, SmoothTree\n"
        "assert not {'jax', 'flax', 'umap', 'numba'} & set(sys.modules)\n"
    )


def test_a_public_name_wins_over_a_module_of_the_same_name():
    """`samplers.sghmc` is the function, whatever was imported before."""
    _run(
        "import importlib, pkgutil, types\n"
        f"packages = [importlib.import_module(name) for name in {ROOMS}]\n"
        "def check():\n"
        "    for package in packages:\n"
        "        for name in package.__all__:\n"
        "            value = getattr(package, name)\n"
        "            assert not isinstance(value, types.ModuleType), name\n"
        "same = set()\n"
        "for package in packages:\n"
        "    for module in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(f'{package.__name__}.{module.name}')\n"
        "        same |= {module.name} & set(package.__all__)\n"
        "check()\n"
        "assert {'kmeans', 'nrcc', 'sghmc', 'linear_probe'} <= same\n"
        "from cluster_jax.samplers import sghmc\n"
        "from cluster_jax.samplers.sghmc import step\n"
        "import cluster_jax.samplers.sghmc\n"
        "assert cluster_jax.samplers.sghmc is sghmc and callable(sghmc)\n"
        # A module that has no namesake is an attribute of its package, as always.
        "assert isinstance(packages[0].infonce, types.ModuleType)\n"
    )
