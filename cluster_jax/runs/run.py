"""The one record of a finished run, of images or of embeddings, in memory and on disk."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import placing, representation
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByTree, Placing
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.core import arrays, io
from cluster_jax.core.arrays import numeric
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.core.names import counted
from cluster_jax.data import tables
from cluster_jax.data.images import FACTS
from cluster_jax.discovery import scores as discovery
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.evaluation.stages import Stages
from cluster_jax.nets.pretrained import Preprocessing
from cluster_jax.report import duplicates, report_data
from cluster_jax.report.duplicates import Duplicates
from cluster_jax.runs import config_paths, store
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.store import Pictures
from cluster_jax.training import build
from cluster_jax.training.config import PhotosConfig, parse_config

KEPT = 8  # states of which the files are kept
# Of an image or row: the number by which it is the same one in all states, its row in the store of
# features (another one with other features), its cluster now and without what a person has decided,
# whether a person has decided about it and keeps it of its copies, the update in which it came, for
# how many updates in a row it has been found apart from its cluster (see `clustering.stable_ids`),
# and its cluster before another number of clusters was asked for.
COLUMNS = np.dtype(
    {
        "names": ["id", "row", "label", "found", "decided", "kept", "since", "apart", "earlier"],
        "formats": ["i8", "i8", "i8", "i8", "?", "?", "i8", "i8", "i8"],
    }
)
# Titles of columns that a table of embeddings may have beside the ids.
_TITLES = {
    "cluster", "name", "found", "decided", "since", "distance", "outlier", "map_x", "map_y",
    "map_z", "probability", "second_cluster", "second_probability", "kmeans_cluster", "novelty",
    "is_novel",
}  # fmt: skip
# Attributes of a run that its state does not store, or stores in a form of their own. Of the others
# arrays are stored as they are, and all else as JSON.
_APART = ("workdir", "number", "store", "names", "placer", "copies")


class Decisions(NamedTuple):
    """What a file of corrections, or a command, says of rows and clusters.

    Rows are those of the column "id", and clusters have their numbers, so that it is true of all
    later states as well.

    Attributes:
        page: `Run.state` of the page that has saved the file; None: the names are of a command.
        number: number of the state of that page, or of the one that the command has named.
        browser: the browser that has saved the file; "" for none.
        saved: how many files that browser had saved by then.
        names: cluster -> its name.
        new: key of a new cluster -> its number.
        labels: row -> the cluster in which it is, -1 for none.
        merges: cluster, and the one that receives its rows.
        keep: rows that are kept of their copies.
        whole: clusters of one kind.
    """

    page: str | None
    number: int
    browser: str
    saved: int
    names: Mapping[int, str]
    new: Mapping[str, int]
    labels: Mapping[int, int]
    merges: tuple[tuple[int, int], ...]
    keep: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def author(self) -> tuple[str | None, int, str]:
        """Where it was said: a later file of the same page and browser has the same one."""
        return self.page, self.number, self.browser


def _decisions(said: Mapping[str, Any]) -> Decisions:
    """Returns decisions of their JSON values, whose keys are all texts."""
    of_numbers = {name: {int(key): x for key, x in said[name].items()} for name in _BY_NUMBER}
    merges = tuple((label, into) for label, into in said["merges"])
    lists = {name: tuple(said[name]) for name in ("keep", "whole")}
    return Decisions(**{**said, **of_numbers, **lists, "merges": merges})


_BY_NUMBER = ("names", "labels")  # of the attributes of `Decisions`, those with numbers as keys
PAGES = 8  # the most pages of which the states are kept, because they may be saved again
# Attributes that JSON does not know: of what it has they are made.
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {
    "decisions": lambda files: tuple(map(_decisions, files)),
    **dict.fromkeys(("named", "suggested", "files"), lambda of: {int(key): of[key] for key in of}),
    **dict.fromkeys(("shaped", "whole"), frozenset),
    **dict.fromkeys(("away", "departed_names", "label_names", "known_classes"), tuple),
    "skipped": lambda pairs: tuple(map(tuple, pairs)),
    "events": lambda events: tuple(
        Event(kind, cluster, rows, tuple(into)) for kind, cluster, rows, into in events
    ),
}
# Attributes that have a value for each row, if all rows are described.
_BY_ROW = (
    *("columns", "facts", "truth", "distances", "outliers", "points"),
    *("probabilities", "second_labels", "second_probabilities"),
)
_VOTERS = "voters.rows"  # of the placer, which are not stored where they are the features


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Images or embeddings in clusters, as they are now.

    On disk a state of a run is the one file `run-NUMBER.npz`, and the highest number counts: a new
    state is there once its file is renamed, and an undo removes the file. The last `KEPT` states
    are kept. The features are beside them, see `store`; all other files are outputs.

    A run has n images or rows, of which m are described: all of them, but a sample of embeddings
    that do not fit into memory. A run of which only the first four attributes are given is empty: a
    first run is an update of it.

    Attributes:
        kind: "photos" for images that a pretrained network has embedded, "training" for images of
            which the network was trained, "rows" for embeddings.
        workdir: folder of the run.
        config: what was asked for, as in `config.json`; paths are absolute.
        asked: of images a digest of what was asked for after their embedding, see `claims.asked`.
        images: content of `images.json`: what the encoder needs; {} for embeddings.
        number: number of the state: 1, 2, ...; 0: it is not written yet.
        made_by: what made the state: "first" (clustering), "update" or "corrections".
        results: metrics and provenance, as in `results.json`: an output.
        columns: `[n]` of `COLUMNS`, what is known of each image or row.
        source: what the images or the first rows were read from: of embeddings the "features" and
            "labels" (a path or None), "ids", "feature_columns", "columns_left_out", "array" and
            number of "columns"; of images the "ignored" files by reason.
        fit: what the last fit has told of its own clusters, such as "verdict"; "is_shown" says
            whether the state was given these clusters: an update may keep others.
        store: float `[s, d]`, the features of all rows that the run has or had; None: they are not
            stored.
        files: the first row of each file of the store -> the fingerprint in it, see `store.write`;
            of a training {}: its features are in its embedding.
        names: path of each image relative to the folder that holds all of `data.dir`, or id of
            each row; None: they are numbered.
        distances: float32 `[m]`, distance to the center of the cluster.
        outliers: bool `[m]`, rows of clusters too small to count.
        linkage: float64 `[k - 1, 4]`, the tree of the clusters in SciPy's form, whose leaf i is the
            cluster with the i-th lowest number.
        placer: what places new rows in the clusters; None if a map of t-SNE was clustered.
        next_label: the lowest number that no cluster has had.
        departed: `[g]` of `COLUMNS`: rows that have left, and that, when they left, a person had
            decided about, had kept of their copies, or were in a cluster of `held`. If they return,
            they are the same rows. Any other row that returns is a new one.
        departed_facts: `[g]` of `data.images.FACTS`, the `facts` of these rows.
        departed_names: the ids of these rows; "" for images and for numbered rows, which are known
            by their content alone.
        facts: `[n]` of `data.images.FACTS`, of embeddings the digests alone; None: there are no
            files, or the rows are not stored.
        known_classes: in novel class discovery the names of the known classes, else None. They are
            the first clusters, whose images a person has decided. The others are the novel classes.
        truth: int32 `[n]`, true labels, for scores alone, -1 for unknown ones; or None.
        label_names: name of each true label, or None.
        shown: int64 `[m]`, ascending, the rows that are described; None: all.
        points: float32 `[m, p]`, the map; None before it is drawn.
        probabilities: float64 `[n]`, the probability of the cluster; this and the next two are None
            for clusters without probabilities.
        second_labels: int64 `[n]`, the second likeliest cluster, -1 for none.
        second_probabilities: float64 `[n]`, the probability of that cluster, 0 for none.
        kmeans_labels: int32 `[m]`, clusters by k-means, or None.
        tree: float64 `[l - 1, 4]`, the tree of the leaves of `placer`; None without one.
        named: cluster -> the name that a person has given it, of clusters that are gone, too.
        suggested: cluster -> the names that the network suggests for it, the best one first, as it
            has first done so.
        shaped: clusters into which a person has merged others, or that a person has made or
            divided.
        whole: clusters that a person has called one kind.
        decisions: what people have decided, in the order in which it was applied. With what was
            found it makes the clusters of the rows, the columns "decided" and "kept", `named`,
            `shaped` and `whole`, see `decisions.folded`.
        updates: number of updates of the run; -1: it has no clusters yet.
        events: events of the last update.
        changes: numbers of rows of the last update by the "change" in `changes.csv`.
        away: folders that were not there in the last update, and files that could not be read,
            whose images stay.
        skipped: (path, reason) of each file that cannot be read.
        copies: groups of equal or nearly equal images, as they were found, see `duplicates`; None:
            there are no pictures to compare.
    """

    kind: str
    workdir: epath.Path
    config: Mapping[str, Any]
    images: Mapping[str, Any]
    number: int = 0
    made_by: str = "first"
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: NDArray = dataclasses.field(default_factory=lambda: np.zeros(0, COLUMNS))
    store: NDArray | None = None
    files: Mapping[int, str] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] | None = None
    distances: NDArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    outliers: NDArray = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    linkage: NDArray = dataclasses.field(default_factory=lambda: np.zeros((0, 4)))
    placer: Placing | None = None
    next_label: int = 0
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    asked: str = ""
    fit: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    departed: NDArray = dataclasses.field(default_factory=lambda: np.zeros(0, COLUMNS))
    departed_facts: NDArray = dataclasses.field(default_factory=lambda: np.zeros(0, FACTS))
    departed_names: tuple[str, ...] = ()
    facts: NDArray | None = None
    known_classes: tuple[str, ...] | None = None
    truth: NDArray | None = None
    label_names: tuple[str, ...] | None = None
    shown: NDArray | None = None
    points: NDArray | None = None
    probabilities: NDArray | None = None
    second_labels: NDArray | None = None
    second_probabilities: NDArray | None = None
    kmeans_labels: NDArray | None = None
    tree: NDArray | None = None
    named: Mapping[int, str] = dataclasses.field(default_factory=dict)
    suggested: Mapping[int, Sequence[str]] = dataclasses.field(default_factory=dict)
    shaped: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    decisions: tuple[Decisions, ...] = ()
    updates: int = -1
    events: tuple[Event, ...] = ()
    changes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    away: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    copies: Duplicates | None = None

    @property
    def is_of_images(self) -> bool:
        """Whether it is a run of images, or of features of images that were trained on."""
        return self.kind != "rows"

    @property
    def is_trained(self) -> bool:
        """Whether the network was trained, so that its weights are in the workdir."""
        return self.kind == "training"

    @property
    def method(self) -> str:
        """The method that has found the clusters."""
        return (self.config["eval"] if self.is_of_images else self.config)["method"]

    @property
    def options(self) -> ClusterOptions:
        """How the clusters were found, and how the map is drawn."""
        return (
            parse_config(self.config).eval if self.is_of_images else ClusterOptions.of(self.config)
        )

    @property
    def words(self) -> tuple[str, str]:
        """The words for an image or row and for a cluster, such as ("photo", "group")."""
        if not self.is_of_images or self.config["data"]["name"] == "features":
            return "row", "cluster"
        is_photo = self.names is not None and not self.is_trained
        return ("photo", "group") if is_photo else ("image", "cluster")

    @property
    def key(self) -> str:
        """Title of the column of tables that names the images or rows.

        It is "image" for images. For embeddings it is the title of the user's column of ids, or
        "row" if they are numbered, their ids are in a file of their own, or a column of the tables
        has that title.
        """
        if self.is_of_images or self.names is None:
            return "image" if self.is_of_images else "row"
        stored = self.source
        is_file = not stored["features"].lower().endswith((".npz", *tables.SUFFIXES))
        return "row" if is_file or stored["ids"] in _TITLES else stored["ids"]

    @property
    def labels(self) -> NDArray:
        """The cluster of each row now, int64 `[n]`, -1 for none."""
        return self.columns["label"]

    @property
    def held(self) -> frozenset[int]:
        """Clusters that a person has named, shaped or called one kind: they keep their rows."""
        return self.shaped | self.whole | self.named.keys()

    @property
    def has_class(self) -> NDArray:
        """Which rows had a class before the discovery of novel ones, bool `[n]`."""
        found = self.columns["found"]
        return (found >= 0) & (found < len(self.known_classes or ()))

    @property
    def by_hand(self) -> NDArray:
        """Which rows a person has moved, confirmed or taken out, bool `[n]`.

        Rows of a known class are decided, too, but do not count while they are in their class.
        """
        stays = self.has_class & (self.labels == self.columns["found"])
        return self.columns["decided"] & ~stays

    @property
    def is_corrected(self) -> bool:
        """Whether a person has moved, confirmed or taken out rows, or merged clusters."""
        return bool(self.shaped) or bool(self.by_hand.any())

    @property
    def is_of_fit(self) -> bool:
        """Whether the clusters are those that the last fit has found, whatever their numbers."""
        return bool(self.fit.get("is_shown")) and np.array_equal(self.labels, self.columns["found"])

    @property
    def origin(self) -> str:
        """Where the number of clusters is from: "found", "given", "corrected" or "kept".

        It is "kept" where an update has kept other clusters than those that it has found.
        """
        if self.is_corrected:
            return "corrected"
        if not self.is_of_fit:
            return "kept"
        return "found" if self.options.n_clusters is None else "given"

    @property
    def rows(self) -> NDArray:
        """The m rows that are described, int64."""
        if self.shown is None:
            return np.arange(len(self.columns))
        return self.shown

    @property
    def membership(self) -> Membership | None:
        """How sure the clusters of the m rows are; None without probabilities."""
        if self.probabilities is None:
            return None
        sure = (self.labels, self.probabilities, self.second_labels, self.second_probabilities)
        return Membership(*(np.asarray(values)[self.rows] for values in sure))

    @functools.cached_property
    def features(self) -> NDArray:
        """Features of the n rows, float `[n, d]`, as they were clustered.

        They are rows of length one for images, and for embeddings with the cosine metric.

        Raises:
            InputError: they are not stored.
        """
        if self.store is None:
            raise InputError(f"{self.workdir} must store its features; got rows read in blocks")
        place = self.columns["row"]
        # Most runs of embeddings have all rows in order, of which a copy would take memory.
        is_all = np.array_equal(place, np.arange(len(self.store)))
        rows = self.store if is_all else self.store[place]
        return arrays.normalize_rows(rows) if self.is_of_images else rows

    @property
    def likeness(self) -> NDArray:
        """Rows `[m, r]` whose Euclidean distances say which of the m rows are alike."""
        placer = self.placer
        if isinstance(placer, ByTree):
            if self.store is None:
                return placer.smoother.sharp[placer.leaves[self.rows]]
            return placer.smoother.project(self.features)
        if self.store is not None:
            return self.features
        if placer is None:
            return np.asarray(self.points)
        return placer.voters.rows

    @functools.cached_property
    def state(self) -> str:
        """Digest, 12 characters, of what a page shows.

        By it a file of corrections says which rows, clusters and names it is about.
        """
        said = [sorted(self.named.items()), sorted(self.held), sorted(self.whole)]
        # Photos are known by their contents: renamed ones, and another folder, change no page.
        names = None if self.is_of_images and self.facts is not None else self.names
        parts = [names, *said, self.next_label]
        shown = [self.columns[name] for name in ("label", "decided", "kept")]
        shown += [self.columns["row"] if self.facts is None else self.facts["digest"]]
        text = b"".join([json.dumps(parts).encode(), *(column.tobytes() for column in shown)])
        return hashlib.sha256(text).hexdigest()[:12]

    @functools.cached_property
    def duplicates(self) -> Duplicates | None:
        """`copies`, of which those are kept that a person has picked."""
        if self.copies is None:
            return None
        return duplicates.with_picked(self.copies, np.flatnonzero(self.columns["kept"]).tolist())

    @property
    def originals(self) -> NDArray | None:
        """The row that each row is a known copy of, or itself, int64 `[n]`; None: none is known.

        The features of a smaller copy are often too far from its original's to tell it by them. It
        is the best copy, whichever a person has picked: a pick changes no cluster.
        """
        if self.copies is None or self.facts is None:
            return None
        return duplicates.originals(self.copies, len(self.columns))

    def titles(self, clusters: NDArray) -> NDArray:
        """Returns what tables call clusters int `[l]`: by their numbers, or by their classes.

        In novel class discovery that is the name of a known class, "novel 0", "novel 1", ..., or
        "none" for -1.
        """
        known = self.known_classes
        if known is None:
            return clusters
        return np.asarray([discovery.name(cluster, known) for cluster in clusters.tolist()])

    @property
    def cluster_names(self) -> dict[str, str]:
        """Cluster, as text -> its name: the one that a person has given, or the suggested one.

        The keys are those of `titles`. Clusters that have no name, and those without rows, are left
        out.
        """
        there = np.unique(self.labels)
        titles = dict(zip(there.tolist(), map(str, self.titles(there)), strict=True))
        named = {titles[key]: name for key, name in self.named.items() if key in titles}
        suggested = report_data.suggested_names(self.suggested)
        suggested = {key: name for key, name in suggested.items() if key in titles.values()}
        return {**suggested, **named}

    def pictures(self) -> Pictures:
        """Returns the pictures of all rows that the run has or had; a run of embeddings has none.

        Raises:
            DamagedFile: a file is damaged or missing.
        """
        files = {0: store.of_training(self.images)} if self.is_trained else self.files
        with _damage_of_store(self.workdir, self.kind, self.updates):
            return store.read_pictures(self.workdir, files)

    def checked(self, x: Any) -> NDArray:
        """Returns new rows for a run of embeddings as an array `[l, d]`, after a check.

        The dtype stays, but for objects, which become float64. Of a data frame whose columns
        have names, those of the run are taken, if it has names.

        Raises:
            InputError: the rows are no numbers, not finite, too large, or have not the columns of
                the embeddings of the run.
            TypeError: the rows are of a type that is not supported, such as a sparse matrix.
        """
        stored = self.source
        columns = list(getattr(x, "columns", []))
        if stored["feature_columns"] and columns and all(isinstance(c, str) for c in columns):
            names = list(stored["feature_columns"])
            if missing := set(names) - set(columns):
                raise InputError(f"X must have the column {min(missing)!r} of {self.workdir}")
            x = x[names]
        rows = numeric(x, "X", representation.LARGEST)
        expected = stored["columns"]
        if rows.shape[1] != expected:
            raise InputError(
                f"X must have {counted(expected, 'column')} like the embeddings of "
                f"{self.workdir}; got {rows.shape[1]}"
            )
        return rows

    def encoder(self) -> Encoder:
        """Returns the encoder of a run of images: the trained one, or the pretrained one.

        Raises:
            InputError: the file of the trained encoder is missing or damaged, or the pretrained
                weights cannot be read or have changed since the run.
        """
        if self.is_trained:
            file = self.workdir / workdirs.ENCODER
            features = self.config["eval"]["features"]
            if not workdirs.has_encoder(self.workdir, features):
                raise InputError(
                    f"{file} must be that of eval.features={features} to embed new images; got "
                    "none or another one: run the command of the run again with "
                    f"--workdir={self.workdir}, which makes it of a checkpoint"
                )
            return Encoder.load(file)
        config = parse_config(self.config)
        assert isinstance(config, PhotosConfig)
        prepared = parse_section(Preprocessing, "preprocessing", self.images["preprocessing"])
        rebuilt = build.encoder_of(config, prepared)
        if rebuilt.checksum != self.images[workdirs.WEIGHTS]:
            raise InputError(
                f"encoder must be that of the run; got {config.encoder}, which has other values "
                "now: restore the file, or run the command of the run in another folder"
            )
        return rebuilt

    def write(self) -> None:
        """Writes the state as `run-NUMBER.npz`, then removes all but the last `KEPT`.

        A state of the same number is replaced. What an interrupted evaluation has kept is removed,
        and so are files of the store that undone or killed updates have left. It is the newest
        state, and the rows of its store must be written before. The states of the last `PAGES`
        pages of which files were applied stay, too.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values = {name: value for name, value in values.items() if name not in _APART}
        stored = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        about = {name: value for name, value in values.items() if name not in stored}
        about |= {"shaped": sorted(self.shaped), "whole": sorted(self.whole)}
        about["decisions"] = [file._asdict() for file in self.decisions]
        if self.images:  # Paths of the config are tried relative to the place of now, too.
            about["images"] = {**self.images, "workdir": os.path.abspath(self.workdir)}
        about["format"] = workdirs.FORMAT
        about["size"] = None if self.store is None else len(self.store)
        stored["about"] = np.array(json.dumps(io.plain(about)))
        if self.names is not None:
            text = "\0".join(self.names).encode("utf-8", "surrogateescape")
            stored["names"] = np.frombuffer(text, np.uint8)
        if self.placer is not None:
            parts = placing.to_arrays(self.placer)
            if self.is_of_images:
                parts.pop(_VOTERS)
            stored |= {f"placer.{name}": value for name, value in parts.items()}
        if self.copies is not None:
            parts = duplicates.to_arrays(self.copies)
            stored |= {f"copies.{name}": value for name, value in parts.items()}
        io.write_arrays(self.workdir / f"run-{self.number}.npz", stored, compressed=False)
        Stages(self.workdir / workdirs.STAGES, "").remove()
        for number in workdirs.states(self.workdir)[:-KEPT]:
            if number not in self._numbers_of_pages():
                (self.workdir / f"run-{number}.npz").unlink()
        if not self.is_trained:  # A state has all files that the states before it have.
            store.remove_others(self.workdir, self.files)

    def _numbers_of_pages(self) -> list[int]:
        """Lists the states of the pages of which files were applied last."""
        pages = [file.number for file in reversed(self.decisions) if file.page is not None]
        return list(dict.fromkeys(pages))[:PAGES]


def reordered(run: Run, order: NDArray) -> Run:
    """Returns a run of embeddings in memory, in the clusters of the tree, with its rows reordered.

    Args:
        run: the run, all of whose rows are described.
        order: int `[n]`, the row of `run` that becomes each row.
    """
    if np.array_equal(order, np.arange(len(order))):
        return run
    assert isinstance(run.placer, ByTree)
    placer = dataclasses.replace(
        run.placer,
        labels=run.placer.labels[order],
        sample=np.argsort(order)[run.placer.sample],
        leaves=run.placer.leaves[order],
    )
    names = None if run.names is None else tuple(run.names[row] for row in order.tolist())
    changed: dict[str, Any] = {"placer": placer, "names": names}
    for name in _BY_ROW:
        values = getattr(run, name)
        changed[name] = None if values is None else values[order]
    return dataclasses.replace(run, **changed)


@contextlib.contextmanager
def opened(workdir: epath.PathLike) -> Iterator[Run]:
    """Locks the folder of a finished run, and yields its newest state.

    Raises:
        InputError: see `read`, or another process uses the folder.
    """
    folder = workdirs.of_run(workdir)
    with workdirs.locked(folder):
        yield read(folder)


def read(workdir: epath.PathLike, number: int | None = None, later: Run | None = None) -> Run:
    """Reads a state of a finished run; writes nothing.

    Args:
        workdir: folder of the run.
        number: number of a state that is there; None: the newest one.
        later: a later state of the run. Rows of a store never change: those of its store are not
            read again.

    Raises:
        InputError: the folder has no run or one of an older version, the run is not finished, or a
            file is damaged (`DamagedFile`).
    """
    path = workdirs.of_run(workdir)
    numbers = workdirs.states_of_run(path)
    number = numbers[-1] if number is None else number
    with workdirs.damage_of(path, number):
        return _read(path, number, later)


@contextlib.contextmanager
def _damage_of_store(workdir: epath.Path, kind: str, updates: int) -> Iterator[None]:
    """Lets an error about the store of a run inside say what else can be done about it.

    Args:
        workdir: folder of the run.
        kind: kind of the run, see `Run`.
        updates: number of its updates.
    """
    try:
        yield
    except io.DamagedFile as error:
        otherwise = "" if kind == "rows" else workdirs.MADE_AGAIN
        if kind != "training" and updates:
            # The command of an updated run would embed the photos of now, not those of the run.
            otherwise = _way_back(workdir, epath.Path(error.path).name)
        raise io.DamagedFile(error.path, error.reason, otherwise) from error


def _way_back(workdir: epath.Path, name: str) -> str:
    """Returns how to go back to the newest state that needs no file of this name of the store.

    It is "" if there is no such state.
    """
    first = name.removeprefix("store-").removesuffix(".npz")
    numbers = workdirs.states(workdir)
    for place, number in reversed(list(enumerate(numbers[:-1], 1))):
        path = workdir / f"run-{number}.npz"
        with contextlib.suppress(InputError):
            about = workdirs.values_of(io.read_arrays(path, ("about",)).get("about"), path)
            if first in about["files"]:
                continue
            if numbers[place:] == [number + 1]:
                undo = f"`cluster-jax update --workdir={workdir} --undo`"
                return f"go back to the state before by {undo}"
            later = ", ".join(f"run-{later}.npz" for later in numbers[place:])
            return f"remove {later} to go back to the state of run-{number}.npz"
    return ""


def _read(workdir: epath.Path, number: int, later: Run | None) -> Run:
    """Reads `run-NUMBER.npz`, which must exist, and the features of the run, if it stores any.

    `data.dir` of the config is where the images are now.

    Raises:
        DamagedFile: a file is damaged or missing.
    """
    path = workdir / f"run-{number}.npz"
    stored: dict[str, Any] = io.read_arrays(path)
    about = workdirs.values_of(stored.pop("about", None), path)
    for key, made in _FROM_JSON.items():
        about[key] = None if about[key] is None else made(about[key])
    stored_config = about["config"]
    names = workdirs.names_of(stored.pop("names", None))
    how = workdir, about["images"], names or ()
    about["config"] = config_paths.with_located(stored_config, *how)
    if names is not None and stored_config.get("data", {}).get("name") == "folder":
        places = (values["data"]["dir"] for values in (stored_config, about["config"]))
        names = config_paths.relocated(names, *places)
    array = about["config"]["eval"]["features"] if about["kind"] == "training" else None
    parts: dict[str, dict[str, NDArray]] = {"placer": {}, "copies": {}}
    for key in [key for key in stored if "." in key]:
        part, _, name = key.partition(".")
        parts[part][name] = stored.pop(key)
    size = about.pop("size")
    features = None
    if size is not None and array is None and later is not None and later.store is not None:
        features = later.store[:size]
    elif size is not None:
        with _damage_of_store(workdir, about["kind"], about["updates"]):
            features = store.read(workdir, array, size, about["files"])
    run = Run(
        workdir=workdir,
        number=number,
        store=features,
        names=names,
        placer=None,
        copies=duplicates.from_arrays(parts["copies"]) if parts["copies"] else None,
        **about,
        **stored,
    )
    if not parts["placer"]:
        return run
    if run.is_of_images:
        parts["placer"][_VOTERS] = run.features
    return dataclasses.replace(run, placer=placing.from_arrays(parts["placer"]))
