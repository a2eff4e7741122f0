"""The full config of a run, parsed into checked and typed sections."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from cluster_jax.core import checks, io, outside
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import check_keys, parse_section
from cluster_jax.data.datasets import DataConfig
from cluster_jax.data.features import FeatureViewsConfig
from cluster_jax.data.views import AugmentConfig
from cluster_jax.discovery.splits import NovelConfig
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.methods import base, ncl, nrcc
from cluster_jax.methods.base import MethodConfig
from cluster_jax.methods.nrcc import NRCCConfig
from cluster_jax.nets import backbone, pretrained
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.training import optim
from cluster_jax.training.optim import OptimizerConfig
from cluster_jax.training.state import TrainConfig

# Keys that a stage cannot change: all stages train on the same images, and only the last one is
# evaluated.
SHARED = (
    *("seed", "note", "data", "encoder", "feature_views", "novel", "eval"),
    *("stages", "init_from"),
)

# For error messages.
MADE_ALREADY = "features, which a network has made already"

# Section -> config key -> field of `pretrained.Preprocessing`, which belongs to pretrained weights.
_PREPARED = {
    "data": {"image_size": "size", "interpolation": "interpolation"},
    "augment": {"size": "size", "mean": "mean", "std": "std"},
}


@dataclasses.dataclass(frozen=True)
class MethodSection:
    """Section `method`, or `term`.

    Attributes:
        name: name of the method's file in `cluster_jax/methods`, or a module of one's own.
        config: the other keys of the section as the `Config`, or `TermConfig`, of that file.
    """

    name: str
    config: MethodConfig

    @property
    def n_clusters(self) -> int | None:
        """Number of clusters that a method such as NCC is given; None for other methods."""
        return getattr(self.config, "n_clusters", None)

    @property
    def novel_classes(self) -> int | None:
        """Number of novel classes in novel class discovery; None for other methods."""
        if isinstance(self.config, ncl.Config):
            return self.config.n_classes
        return None

    @property
    def learns_clusters(self) -> bool:
        """Whether a head for novel classes learns from clusters of the features."""
        return isinstance(self.config, ncl.Config) and self.config.head == "clusters"


@dataclasses.dataclass(frozen=True)
class Config:
    """What the configs of all runs have; each section is described and checked where it is defined.

    Attributes:
        seed: seed of all randomness.
        note: text recorded in `results.json`.
        name: name of the config or of the stage, for messages and the title of the report.
        values: the whole config as JSON values, as in `config.json`.
    """

    seed: Annotated[int, functools.partial(checks.whole, least=0, most=2**32 - 1)]
    note: str
    data: DataConfig
    eval: EvalConfig
    name: str
    values: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class PhotosConfig(Config):
    """The config of images that a pretrained network embeds; nothing is trained.

    Attributes:
        encoder: the network, see `pretrained.overrides`.
    """

    encoder: str

    def __post_init__(self) -> None:
        if self.data.name == "features":
            checks.none("encoder", self.encoder, MADE_ALREADY)
        checks.one_of("eval.features", self.eval.features, ("backbone",))
        pretrained.overrides(self.encoder)

    @functools.cached_property
    def network(self) -> NetworkConfig:
        """The network of the encoder."""
        return NetworkConfig(**pretrained.overrides(self.encoder))


@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """The config of a training.

    Attributes:
        encoder: frozen network on whose features of the images the run trains, see
            `pretrained.overrides`; None: it trains on the images, or on features of a file.
        stages: name -> config of each earlier training stage, in order.
        init_from: workdir of the run whose network is the starting point, or None.
        term: the term that another method adds to the objective, or None; see `methods.base.Term`.
        nrcc: the regularizer of NRCC, or None.
    """

    augment: AugmentConfig
    encoder: str | None
    feature_views: FeatureViewsConfig
    novel: NovelConfig
    stages: Mapping[str, "RunConfig"]
    init_from: str | None
    network: NetworkConfig
    method: MethodSection
    term: MethodSection | None
    nrcc: NRCCConfig | None
    optimizer: OptimizerConfig
    train: TrainConfig

    def __post_init__(self) -> None:
        if (
            self.network.weights is not None
            and self.network.is_frozen()
            and self.eval.features == "backbone"
            and self.train.labeled_batch_size is None
        ):
            raise InputError(
                f"network.frozen must leave blocks to train; got {self.network.frozen!r}, the last "
                "one: the config images clusters features of a network that is not trained"
            )
        if self.data.name == "features":
            checks.none("encoder", self.encoder, MADE_ALREADY)
        elif self.encoder is not None:
            pretrained.overrides(self.encoder)
        batch = self.train.batch_size
        labeled = self.train.labeled_batch_size or 0
        if labeled > batch:
            raise InputError(
                f"train.labeled_batch_size must be at most train.batch_size, {batch}; got {labeled}"
            )


# The config of a run on images.
AnyConfig = RunConfig | PhotosConfig


def own_files(config: AnyConfig) -> dict[str, str | None]:
    """Returns the SHA-256 of the file of each module of one's own by which images become features.

    They are the methods, backbones, optimizers, schedules, samplers and augmentations of a training
    and its stages, by the name of the module, for what is not part of the package; the hash is None
    if the module has no file. The modules are imported.
    """
    if not isinstance(config, RunConfig):
        return {}
    names = set[str]()
    for stage in (config, *config.stages.values()):
        names |= {stage.method.name} - {*base.names()}
        names |= {stage.network.name} - {*backbone.names()}
        names |= {stage.optimizer.name} - {*optim.NAMES}
        names |= {stage.optimizer.schedule} - {*optim.SCHEDULES}
        names |= {*stage.augment.more}
        if stage.nrcc is not None and stage.nrcc.weight:
            names |= {stage.nrcc.sampler} - {*nrcc.SAMPLERS}
    return {name: outside.digest(name) for name in sorted(names)}


def config_json(config: ConfigDict | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config as nested dicts of JSON values (tuples become lists), as in `config.json`.

    Sizes, interpolation, mean and standard deviation that are None in the sections `data` and
    `augment` are filled in from the preprocessing of the pretrained weights, if the config has
    some, see `pretrained.preprocessing`. All else is checked by `parse_config`.

    Raises:
        InputError: a file beside the weights is damaged; or `data.interpolation` or `augment.size`
            is None without weights.
    """
    values = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
    # NaN is no None: `parse_config` refuses it.
    return _with_preprocessing(io.plain(values, all_numbers=True))


def _with_preprocessing(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values of a config with those of `_PREPARED` that were None, see `config_json`."""
    # Other errors are raised when the sections are parsed.
    network = values.get("network")
    name = network.get("weights") if isinstance(network, Mapping) else None
    if isinstance(encoder := values.get("encoder"), str):
        name = pretrained.weights_of(encoder)
    filled = dict(values)
    for part, keys in _PREPARED.items():
        section = values.get(part)
        if not isinstance(section, Mapping):
            continue
        missing = [key for key in keys if key in section and section[key] is None]
        if name is None and (required := set(missing) & {"interpolation", "size"}):
            key = f"{part}.{required.pop()}"
            raise InputError(f"{key} must be given where network.weights is None; got None")
        if isinstance(name, str) and missing:
            published = pretrained.preprocessing(name)
            filled[part] = {**section, **{key: getattr(published, keys[key]) for key in missing}}
    return filled


def parse_config(config: ConfigDict | Mapping[str, Any], name: str = "run") -> AnyConfig:
    """Parses a config into typed sections: of a training if it has the section `train`.

    Args:
        config: the config.
        name: its name, see `Config`.

    Raises:
        InputError: a key is missing or unknown, a value is of another type or out of range, or
            several values do not suit each other; or see `config_json`.
    """
    values = config_json(config)
    internal = ("name", "values")
    kind = RunConfig if "train" in values else PhotosConfig
    keys = [field.name for field in dataclasses.fields(kind) if field.name not in internal]
    check_keys("", keys, values)
    if kind is PhotosConfig:
        return parse_section(PhotosConfig, "", {**values, "name": name, "values": values})
    parsed = {**values, "stages": _parse_stages(values), "name": name, "values": values}
    parsed["method"] = _method("method", values["method"])
    parsed["term"] = None if values["term"] is None else _method("term", values["term"])
    return parse_section(RunConfig, "", parsed)


def parse_training(config: ConfigDict | Mapping[str, Any], name: str = "run") -> RunConfig:
    """Parses a config that trains a network, see `parse_config`.

    Raises:
        InputError: the config is invalid, or has no section `train`.
    """
    parsed = parse_config(config, name)
    if not isinstance(parsed, RunConfig):
        raise InputError(f"config must be one of a training; got {name}, which trains nothing")
    return parsed


def _method(key: str, section: Any) -> MethodSection:
    """Parses a section, whose `key` is "method" or "term".

    Raises:
        InputError: it is no section, has no name, or has another invalid value.
    """
    if not isinstance(section, Mapping):
        raise InputError(f"{key} must be a section of the config; got {section!r}")
    if "name" not in section:
        raise InputError(f"missing config key {key}.name")
    name = section["name"]
    values = {key: value for key, value in section.items() if key != "name"}
    parse = base.parse if key == "method" else base.parse_term
    return MethodSection(name, parse(name, values))


def _parse_stages(values: Mapping[str, Any]) -> dict[str, RunConfig]:
    """Parses the complete config of each earlier stage, by name, in order.

    A stage lists only the sections and keys that differ from the main config, except for its
    method, which it lists in full.

    Raises:
        InputError: a stage is no section, has no method, or changes a key that cannot differ; or
            see `parse_config`.
    """
    if not isinstance(values["stages"], Mapping):
        raise InputError(f"stages must be a section of the config; got {values['stages']!r}")
    choices = [key for key in values if key not in SHARED]
    stages = {}
    for name, changes in values["stages"].items():
        if not isinstance(changes, Mapping):
            raise InputError(f"stages.{name} must be a section of the config; got {changes!r}")
        for section in changes:
            if section not in choices:
                raise InputError(
                    f"stages.{name}.{section} cannot differ in a stage; choose from "
                    f"{', '.join(choices)}"
                )
        if "method" not in changes:
            raise InputError(f"missing config key stages.{name}.method")
        final = {"stages": {}, "init_from": None, "method": changes["method"]}
        try:
            stages[name] = parse_training({**_merged(values, changes), **final}, name)
        except InputError as error:
            raise InputError(f"in stages.{name}: {error}") from error
    return stages


def _merged(section: Any, changes: Any) -> Any:
    """Returns a section with changed keys, and with nested sections that are merged key by key.

    If one of the two is no section, the result is `changes`.
    """
    if not (isinstance(section, Mapping) and isinstance(changes, Mapping)):
        return changes
    merged = {k: _merged(v, changes[k]) if k in changes else v for k, v in section.items()}
    return {**{k: v for k, v in changes.items() if k not in section}, **merged}
