"""What the report's page says above its sections, and of how sure its clusters are."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from cluster_jax.clustering import living
from cluster_jax.core.names import counted, files_and_folders
from cluster_jax.report import changes, plots, report_map, summary
from cluster_jax.report.report_data import GONE, Cluster, ReportData


class Page(NamedTuple):
    """What the sentences are about.

    Attributes:
        data: what the report shows.
        overview: facts of its head, see `report`.
        clusters: all clusters, largest first.
        n_doubtful: number of doubtful points.
        has_suggestions: whether names are suggested.
        sections: names of the sections that are always open.
        details: names of the sections behind one line.
        n_drawn: number of points on the map.
        n_leaves: number of clusters in the tree.
        n_curves: number of curves of the training.
        bad_steps: steps at which the loss was not finite.
    """

    data: ReportData
    overview: Mapping[str, Any]
    clusters: Sequence[Cluster]
    n_doubtful: int
    has_suggestions: bool
    sections: Sequence[str]
    details: Sequence[str]
    n_drawn: int
    n_leaves: int
    n_curves: int
    bad_steps: Sequence[int]

    @property
    def n_clusters(self) -> int:
        """Number of clusters without -1."""
        return sum(cluster.id >= 0 for cluster in self.clusters)


def about(page: Page, name: str) -> list[str]:
    """Returns the paragraphs above a section.

    Args:
        page: what they are about.
        name: of the section.
    """
    return _ABOUT[name](page) if name in _ABOUT else []


def lede(page: Page) -> list[tuple[str, bool]]:
    """Lists what the head of the page says below its title, and which of it is a warning."""
    data, facts, noun = page.data, page.overview, page.data.noun
    said, curve = list[tuple[str, bool]](), data.clustering.curve
    is_open = not facts["is_novel"] and curve is not None and curve.verdict == "no clear answer"
    if (facts["verdict"] or is_open) and noun == "photo":
        one = "Nothing splits the photos clearly: they are one group."
        many = "The groups are a best guess: they are not clearly apart."
        said.append((one if facts["n_large"] == 1 else many, True))
    elif facts["verdict"] or is_open:
        see, there = Markup(' See <a href="#{}">{}</a>.'), (*page.sections, *page.details)
        link = [see.format(s, s.capitalize()) for s in ("tree", "bandwidth") if s in there][:1]
        verdict = facts["verdict"] or "The number of clusters is uncertain."
        said.append((Markup("").join([verdict, *link]), True))
    elif facts["is_clear"] and noun == "photo":
        said.append(("The groups are clearly apart.", False))
    if data.true_labels is not None and facts["accuracy"] is not None:
        labels = counted(facts["n_true_labels"], "label")
        share = f"the share of {noun}s in the cluster that is matched to their label"
        best = f"(best one-to-one matching with {labels})"
        said.append((f"Accuracy {facts['accuracy']:.1%}: {share} {best}.", False))
    if facts["doubt"]:
        better = (
            f"the clusters of k-means and {facts['finder']}, listed next to the classes in "
            "assignments.csv, may be better than the clusters shown here."
        )
        said.append((f"{summary.capital(facts['doubt'])}: {better}", True))
    for finding in data.results.get("watch", ()):
        end = "." if finding["lasts"] else " (not seen any longer at its end)."
        said.append((f"Of the training: {finding['text']}{end}", True))
    gone = sum(reason == GONE for _, reason in data.skipped)
    if gone:
        was = "is no longer where it was" if gone == 1 else "are no longer where they were"
        said.append((f"{counted(gone, noun)} {was}: gray on this page.", False))
    if unread := [name for name, reason in data.skipped if reason != GONE]:
        number, was = files_and_folders(unread), "was" if len(unread) == 1 else "were"
        see = Markup('see <a href="#skipped">Skipped</a>.')
        said.append((Markup.escape(f"{number} could not be read and {was} left out: ") + see, True))
    return said


def certainty(page: Page) -> list[str]:
    """Explains in paragraphs how sure the clusters are, and where they are from."""
    data, facts = page.data, page.overview
    noun, group, provenance = data.noun, data.group, data.results["provenance"]
    steps, network, said = provenance.get("steps"), provenance.get("pretrained"), list[str]()
    if facts["is_novel"]:
        see = Markup(': see <a href="#bandwidth">Bandwidth</a>')
        said.append(
            f"The clusters below are the novel classes that the network tells apart among the "
            f"{noun}s without a known class; their number was set in advance. "
            f"{summary.capital(facts['finder'])}, which is not told that number, finds "
            f"{facts['found_clusters']}" + (see if "bandwidth" in page.details else "") + "."
        )
    else:
        said.append(_origin(page))
    if facts["verdict"] and noun == "photo":
        said.append(facts["verdict"])
    elif facts["is_clear"] and noun != "photo":
        clear = f"The {group}s are clear: they are far better separated than parts of one {group} "
        said.append(f"{clear}would be.")
    elif steps and "tree" in data.results["metrics"]:
        apart = "A training drives its own images apart, also within a kind: how clear the"
        said.append(f"{apart} {group}s are is not said. Look at some of each.")
    if data.clustering.membership:
        said.append(
            f"“Belongs here: 80 %” means that of the {noun}s most like this one, 80 % are in this "
            f"{group}. Below 80 % the {noun} is called doubtful; above, it can be wrong as well."
        )
    if network and noun == "photo":
        said.append(
            "The computer compares what the photos show. It has learned to see from photos of "
            "1,000 kinds of things, and tells these kinds apart best."
        )
    elif network:
        after = "training on these images went on from there" if steps else ""
        said.append(
            f"The {noun}s are compared by what a network sees that was trained on photos of 1,000 "
            f"kinds of things ({network}); {after or 'it was not trained further on these'}. What "
            "those kinds distinguish, it tells apart best."
        )
    if facts["n_outliers"]:
        verb = "is an outlier" if facts["n_outliers"] == 1 else "are outliers"
        small = f"{'the' if facts['n_small'] else 'a'} {group} that is"
        if facts["n_small"] > 1:
            small = f"one of the {counted(facts['n_small'], group)} that are"
        number = counted(facts["n_outliers"], noun)
        where = "unlike all others, alone or" if noun == "photo" else "isolated, or"
        said.append(f"{number} {verb}: {where} in {small} too small to count.")
    if facts["n_points"] > len(data.clustering.points):
        said.append(
            f"The page shows a random sample of {counted(len(data.clustering.points), noun)}; the "
            "numbers above and the scores are those of all."
        )
    if data.true_labels is None and not facts["is_corrected"]:
        check = f"There are no labels to compare with: judge the {group}s by their members."
        if noun == "photo":
            check = "Nobody has checked whether the groups are right: look at their photos."
        said.append(check)
    return said


def _origin(page: Page) -> str:
    """Explains where the number of clusters is from."""
    facts, group = page.overview, page.data.group
    count = page.data.results["provenance"].get("clusters_given_to_training")
    if facts["is_corrected"]:
        said = f"A person has corrected the {group}s that were found."
    elif facts["is_given"]:
        empty = f"; {facts['n_empty']} of them stayed empty" if facts["n_empty"] else ""
        return f"The number of {group}s was set in advance{empty}."
    else:
        said = f"The number of {group}s was estimated from the data."
        if page.data.noun == "photo":
            said = "Nobody has said how many groups there are: the computer has found their number."
    if count:
        said += f" The training, however, was given {count} as their number."
    if facts["n_large"] == 1 and not facts["is_corrected"] and not facts["verdict"]:
        said += f" The {page.data.noun}s do not split into several {group}s."
    return said


def _clusters(page: Page) -> list[str]:
    data, noun = page.data, page.data.noun
    if data.fetch_images:
        said = [
            f"The most typical {noun}s of each {data.group}. Click one to enlarge it; click its "
            "corner, or press x, to select it."
        ]
    else:
        said = [
            "Typical rows are closest to the center of their cluster, the least typical ones "
            "farthest from it. Click one for its nearest ones."
        ]
        if page.n_clusters > 1 and data.clustering.membership:
            said.append(
                "Borderline rows have the lowest probability of their cluster; the likeliest other "
                "one is shown next to them."
            )
        elif page.n_clusters > 1:
            said.append(
                "Borderline rows are closest on the map to another cluster, which is shown next to "
                "them."
            )
    if data.true_labels is not None:
        mark = "A red frame marks an image whose label" if data.fetch_images else "A label in red"
        said.append(f"{mark} is not the most common one in its cluster.")
    if page.has_suggestions:
        said.append(
            "Names are guesses of the computer, which knows 1,000 kinds of things: click a name to "
            "type a better one."
        )
    return said


def _doubtful(page: Page) -> list[str]:
    data, said = page.data, f"{summary.capital(page.data.noun)}s that lie next to another "
    said += f"{data.group}."
    if data.clustering.membership:
        number = counted(page.n_doubtful, data.noun)
        said = f"{number} that may belong elsewhere, the most doubtful first."
    return [f"{said} “Neither” takes it out of all {data.group}s."]


def _changed(page: Page) -> list[str]:
    data, change = page.data, page.data.changes
    assert change is not None
    came, same = int(change.is_new.sum()), [e.kind for e in change.events].count(living.SURVIVED)
    said = f"Update {change.update}: {counted(came, data.noun)} {'is' if came == 1 else 'are'} new"
    if same:
        said += f"; {counted(same, data.group)} stayed as {'it was' if same == 1 else 'they were'}"
    more = len(changes.ordered(change.events)) - changes.MAX_ENTRIES
    rest = f" {more:,} more events are in history.jsonl." if more > 0 else ""
    return [f"{said}. A {data.group} that grew is shown by new {data.noun}s.{rest}"]


def _duplicates(page: Page) -> list[str]:
    assert page.data.duplicates is not None
    noun, repeated = page.data.noun, page.data.duplicates.duplicates
    many = f" There are too many {noun}s to look for nearly equal ones."
    return [
        f"{counted(len(repeated.images), noun)} in {counted(repeated.n_groups, 'set')} are the "
        "same as another one, or nearly so. The best copy has the most pixels; choose another one "
        "to keep. Nothing is deleted: --export=DIR has the others in a folder of their own."
        + (many if repeated.threshold is None else "")
    ]


def _map(page: Page) -> list[str]:
    data, noun, n = page.data, page.data.noun, len(page.data.clustering.points)
    near = "points close together look alike"
    if not data.fetch_images:
        near = "nearby points have similar features"
    said = [
        f"Each point is {'an' if noun == 'image' else 'a'} {noun}; {near}. Drag around points to "
        "select them (Shift adds more)."
    ]
    if page.overview["n_outliers"]:
        hollow = "Hollow markers are outliers."
        if noun == "photo":
            hollow = "Hollow points are outliers: photos unlike all others."
        said.append(hollow)
    if page.n_drawn < n:
        said.append(
            f"{counted(page.n_drawn, noun)} of {n:,} are drawn, sampled evenly from all "
            f"{data.group}s."
        )
    if data.fetch_images and page.n_drawn > report_map.MAX_THUMBNAILS:
        said.append(f"{report_map.MAX_THUMBNAILS:,} of them have a thumbnail.")
    return said


def _tree(page: Page) -> list[str]:
    data, group = page.data, page.data.group
    measure = (
        f"The lower two of them are joined, the more alike the mean features of their {data.noun}s "
        "(average linkage of the cosine distance)."
    )
    if data.noun == "photo":
        measure = "The lower two of them are joined, the more alike they are."
    elif data.clustering.membership and not data.is_corrected:
        measure = (
            "The higher two of them are joined, the farther apart they are (Ward's linkage of the "
            "smoothed features)."
        )
    said = [
        f"Which {group}s are most alike. Drag the slider for fewer, larger {group}s: those that "
        "are joined below the dotted line become one.",
        measure,
    ]
    if page.n_leaves < page.n_clusters:
        said.append(f"The {page.n_leaves} largest {group}s are drawn.")
    return said


def _skipped(page: Page) -> list[str]:
    names = [name for name, _ in page.data.skipped]
    verb = "is" if len(names) == 1 else "are"
    return [f"{files_and_folders(names)} could not be read, or {verb} gone since."]


def _sizes(page: Page) -> list[str]:
    data, facts = page.data, page.overview
    sizes = [len(cluster.members) for cluster in page.clusters if cluster.id >= 0] or [0]
    middle = f", the median {np.median(sizes):,.0f}."
    if data.noun == "photo":
        middle = f"; half of the {data.group}s have {np.median(sizes):,.0f} or more."
    said = [
        f"The largest {data.group} has {counted(sizes[0], data.noun)}, the smallest {sizes[-1]:,}"
        + middle
    ]
    if page.n_clusters > plots.MAX_BARS:
        every = summary.groups(facts["n_large"], facts["n_small"], data.group)
        said.append(f"The {plots.MAX_BARS} largest of {every} are drawn.")
    return said


def _training(page: Page) -> list[str]:
    said, bad = ["Everything logged during training."], page.bad_steps
    if bad:
        said.append(
            f"The loss was not finite at {counted(len(bad), 'logged step')}, first at step "
            f"{min(bad):,}; the plot has gaps there."
        )
    if not page.n_curves:
        said.append("No finite value was logged.")
    return said


def _bandwidth(page: Page) -> list[str]:
    curve, noun = page.data.clustering.curve, page.data.noun
    assert curve is not None
    clusters = counted(int(curve.n_clusters[curve.best_index]), "cluster")
    said = [
        f"The number of clusters depends on the bandwidth, the distance within which two {noun}s "
        "count as close. Top: the number of clusters at each bandwidth. Bottom: the score that "
        "selects a bandwidth, computed without labels.",
        f"Selected: {curve.bandwidths[curve.best_index]:.4g}, which gives {clusters}.",
    ]
    if curve.verdict == "one cluster":
        said.append(
            f"One cluster. The {noun}s stay together down to small bandwidths, and no split scores "
            "as well as separate clusters do."
        )
    elif curve.verdict == "no clear answer":
        said.append(
            "No clear answer. The best score is lower than for well-separated clusters: the "
            f"{noun}s may form a single cluster or no clusters at all."
        )
    return said


def _labels(page: Page) -> list[str]:
    said = [
        "Rows are labels and columns are clusters, both in the order of the best one-to-one "
        f"matching. The numbers count {page.data.noun}s; the stronger the color, the larger the "
        "share of the label."
    ]
    hidden = [
        max(n - plots.MAX_MATRIX_SIDE, 0) for n in (page.overview["n_true_labels"], page.n_clusters)
    ]
    if any(hidden):
        n_clusters = counted(hidden[1], page.data.group)
        said.append(f"Not drawn: {counted(hidden[0], 'label')} and {n_clusters}.")
    return said


def _metrics(page: Page) -> list[str]:
    scores = [score for *_, row in summary.score_rows(page.data.results) for score in row]
    if all(score is None for score in scores):
        said = "How the results were obtained. Scores of the clusters need labels."
        if page.data.noun == "photo":
            said = (
                f"How the {page.data.group}s were found. How right they are can be counted only "
                "where somebody has said what each photo shows."
            )
        return [said]
    return [
        "How well the clusters agree with the labels, and how the results were obtained. Each "
        "score is at most 1; higher is better."
    ]


_ABOUT = {
    "clusters": _clusters,
    "changed": _changed,
    "doubtful": _doubtful,
    "duplicates": _duplicates,
    "map": _map,
    "tree": _tree,
    "skipped": _skipped,
    "sizes": _sizes,
    "training": _training,
    "bandwidth": _bandwidth,
    "labels": _labels,
    "metrics": _metrics,
}
