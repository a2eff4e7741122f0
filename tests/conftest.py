"""Strict settings for every test: eight CPU devices, no silent rank promotion.

And what keeps the suite short, most of which is compiling: a program here runs a few times.
"""

import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
import os
import sys
import warnings

# Compiled Python is kept, whatever the environment says: else each process of the suite would
# rewrite the assertions of all modules, and each that a test starts would compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# In the environment, so that they are those of other processes too. What takes this long to
# compile is compiled once.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Without optimizations, by the older of the CPU's two compilers of fused operations where XLA has
# it, in one piece, a step compiles in a quarter of the time. The mathematics is the same.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Products of matrices on one thread: those of two processes on two cores wait for each other, and
# take the cores meanwhile, in a fit of SmoothTree four times as long as they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No operation carries the stack of pytest along.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import hypothesis
import jax
import numpy as np
import pytest
from sklearn import cluster

from cluster_jax.clustering import tree_fit
from cluster_jax.clustering.kmeans import KMeansResult
from cluster_jax.core import arrays
from cluster_jax.core import mesh as meshes
from cluster_jax.encoding import encoder
from cluster_jax.evaluation import evaluate
from cluster_jax.nets import pretrained
from cluster_jax.nets.backbones import efficientnet_lite
from cluster_jax.training import build, loop
from cluster_jax.training import state as states

# Modules that take longest, in this order: the first to start, so that of two processes none waits
# for the other's last module.
LONGEST = (
    "test_run", "test_update", "test_report_browser", "test_states", "test_reference_step",
    "test_commands", "test_table", "test_honest", "test_stages", "test_tutorials", "test_configs",
    "test_embedder", "test_feature_runs", "test_contract", "test_readme", "test_detached",
    "test_verdict", "test_configs_run", "test_processes", "test_own_parts", "test_images",
    "test_estimator_pretrained", "test_buckets", "test_network", "test_stable_ids", "test_real",
    "test_predict", "test_reduce", "test_signals", "test_sghmc", "test_train", "test_updates",
    "test_kmeans", "test_estimators", "test_estimator_levels", "test_outside", "test_evening",
    "test_frozen", "test_ncl", "test_backbones", "test_norm", "test_experiments", "test_doctest",
    "test_pretrained", "test_vit", "test_gridshift", "test_smooth_tree", "test_damage", "test_hmc",
    "test_watch", "test_remat", "test_process", "test_estimator_classes", "test_closed_forms",
    "test_reference", "test_evaluation_stages", "test_photo_walk", "test_shapes", "test_walk",
    "test_array_walk", "test_corrections", "test_next_state", "test_update_places",
    "test_containers", "test_cluster", "test_embed", "test_surface", "test_accumulate",
    "test_optim", "test_encoder_export", "test_service",
)  # fmt: skip

# No test has a limit of time: on a busy machine it would fail by chance.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")
# XLA reads its flags when it starts, and ends the process at one that it does not know.
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11, 1):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
if os.environ.get("XLA_FLAGS") != "":
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Each program is lowered in a context of its own, which takes 5 ms to make; here all share one.
# The name is private to JAX: without it the suite only takes longer.
with contextlib.suppress(ImportError, AttributeError):
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)


def pytest_configure(config):
    """Keeps compiled code from one run of the suite to the next, JAX's in pytest's directory."""
    sys.dont_write_bytecode = False
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = str(config.rootpath / ".pytest_cache" / "d" / "jax")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        jax.config.update("jax_compilation_cache_dir", folder)
    # Else pytest-xdist starts with the modules of most tests.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Puts the longest modules first."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish():
    """Programs as JAX traces them are millions of objects: few of its collections free any."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 10)


@pytest.fixture
def keys():
    """An endless supply of fresh keys, so that no test draws twice from one."""
    root = jax.random.key(20261121)
    return (jax.random.fold_in(root, i) for i in itertools.count())


@pytest.fixture
def rng():
    """NumPy's: each shape of a draw by JAX would be compiled."""
    return np.random.default_rng(20261121)


@pytest.fixture
def x64():
    """Float64 for the duration of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def refused(capsys):
    """Runs a command that must end with one error, in code 2 by default; returns its line."""

    def line_of(main, *arguments, code=2):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == code
        *others, line = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert not [text for text in others if "error" in text.lower()], others
        return line

    return line_of


def _runs_on(count):
    with pytest.MonkeyPatch.context() as patch:
        make, local = meshes.make, jax.local_devices
        patch.setattr(meshes, "make", lambda devices=count: make(devices))
        patch.setattr(jax, "local_devices", lambda *args, **more: local(*args, **more)[:count])
        yield


@pytest.fixture(scope="module")
def one_device():
    """Runs on one device alone: the compiler takes its time for each."""
    yield from _runs_on(1)


@pytest.fixture(scope="module")
def two_devices():
    """Runs on two, enough to be parallel."""
    yield from _runs_on(2)


@pytest.fixture(scope="module")
def optimized():
    """Code as users run it, where it runs on an accelerator."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def traced_once():
    """Whole runs of a few steps: without the trace that checks the config before a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "try_step", lambda *arguments: None)
        yield


@pytest.fixture(scope="module")
def plain_kmeans():
    """The k-means beside the clusters of a run is scikit-learn's.

    Ours compiles a program for each number of rows and of clusters; `tests/clustering` and
    `tests/evaluation` have it.
    """

    def found(x, n_clusters, *, metric, n_init, seed, mesh=None):
        x = arrays.normalize_rows(x) if metric == "spherical" else x
        with warnings.catch_warnings(action="ignore"):  # of equal rows
            model = cluster.KMeans(n_clusters, n_init=n_init, random_state=seed).fit(x)
        values = model.labels_, model.cluster_centers_, model.inertia_, model.n_iter_
        return KMeansResult(*values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "kmeans", found)
        yield


@pytest.fixture(scope="module")
def shallow_lite(plain_kmeans):
    """The pretrained network with the first block of each stage alone: half the compile time."""
    stages, tensors_of = efficientnet_lite.STAGES, pretrained.lite2_tensors
    starts = list(itertools.accumulate((stage.depth for stage in stages), initial=0))

    @functools.cache
    def first_blocks():
        tensors = tensors_of()
        for new, old in enumerate(starts[:-1]):
            block = {name for name in tensors if name.startswith(f"_blocks.{old}.")}
            tensors |= {name.replace(f".{old}.", f".{new}.", 1): tensors[name] for name in block}
        # Without the other blocks hardly a feature of the head would be above zero.
        return {**tensors, "_bn1.bias": tensors["_bn1.bias"] + 3}

    with pytest.MonkeyPatch.context() as patch:
        shallow = tuple(stage._replace(depth=1) for stage in stages)
        patch.setattr(efficientnet_lite, "STAGES", shallow)
        patch.setattr(pretrained, "lite2_tensors", first_blocks)
        encoder._structure.cache_clear()
        yield
    encoder._structure.cache_clear()


@pytest.fixture(scope="module")
def found_once():
    """Clusters of the same rows are found once: where a run is repeated, killed, or taken back.

    `tests/clustering` has that they are the same each time.
    """
    found, fit = {}, tree_fit.fit

    def remembered(x, metric="auto", n_clusters=None, seed=0, originals=None):
        given = metric, n_clusters, seed, originals
        if not isinstance(x, np.ndarray):
            return fit(x, *given)
        copies = None if originals is None else originals.tobytes()
        key = x.tobytes(), x.dtype.str, x.shape, *given[:3], copies
        if key not in found:
            found[key] = fit(x, *given)
        return copy.deepcopy(found[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_fit, "fit", remembered)
        yield


@pytest.fixture(scope="session")
def _built():
    """The runs that were built first, and `loop.make_step`, cached."""
    return {}, functools.cache(loop.make_step)


@pytest.fixture(scope="module")
def compiled_once(_built, plain_kmeans):
    """Runs that differ in what no step depends on share the step compiled first, and its state.

    Each is built all the same; it then gets the method and the optimizer of the first such run, of
    whatever module.
    """
    first, make = _built
    join, create = build._join, states.create
    # What follows from these is in the key, or has no effect on a step.
    left_out = {"seed": 0, "note": "", "data": None, "novel": None, "init_from": None}
    left_out |= {"stages": {}, "train": None, "eval": None, "name": "", "values": None}
    intervals = {"duration": "1 step", "log_every": 1, "checkpoint_every": 1}
    intervals |= {"keep_checkpoints": 1, "on_collapse": "warn"}

    def joined(inputs, mesh):
        built, dataset = join(inputs, mesh), inputs.dataset
        if not dataset.has_images:  # whose neighbors a step depends on
            return built
        run = built.training
        key = (
            mesh,
            repr({**vars(built.config), **left_out}),
            run.total_steps,
            dataclasses.replace(run.train, **intervals),
            *(dataset.size, dataset.shape),
            None if dataset.partial_labels is None else dataset.partial_labels.tobytes(),
        )
        known = first.setdefault(key, run)
        shared = ("method", "optimizer", "embed")
        run = run._replace(**{name: getattr(known, name) for name in shared})
        return built._replace(training=run)

    @functools.cache
    def made(*arguments, **more):
        state = create(*arguments, **more)
        return jax.device_get(state._replace(key=jax.random.key_data(state.key)))

    def created(method, optimizer, *, mesh, **more):
        # A copy: a step takes the memory of the state it is given.
        state = jax.tree.map(np.copy, made(method, optimizer, mesh=mesh, **more))
        key = jax.random.wrap_key_data(state.key)
        return jax.device_put(state._replace(key=key), meshes.replicated(mesh))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "create", created)
        patch.setattr(build, "_join", joined)
        patch.setattr(build, "make_step", make)
        patch.setattr(loop, "make_step", make)
        yield
