"""The members of a cluster that the report shows: typical, least typical and borderline ones."""

from collections.abc import Iterator, Sequence

import numpy as np
from sklearn.neighbors import NearestNeighbors

from cluster_jax.evaluation import content, markup, thumbnails
from cluster_jax.evaluation.markup import Html, count, fill, join
from cluster_jax.evaluation.plots import SHOWN, Cluster, even

SHEET_SIDE = 80  # pixels
TYPICAL, LEAST, BORDERLINE = 12, 6, 6  # pictures of a contact sheet
LINES = 6  # of a list of rows without pictures
FOREIGN_POINTS = 5_000
# Beyond this many dimensions a search tree looks at every point: fewer of them are asked.
TREE_DIMENSIONS, ASKED = 15, 1_000

Shown = tuple[int, int | None]  # a point, and the cluster it borders on


def borderline(
    points: np.ndarray, clusters: np.ndarray, cluster: Cluster, most: int
) -> list[tuple[int, int]]:
    """The `most` points of a cluster that lie nearest to another one: (point, other cluster).

    Nearness is the distance to the nearest foreign point among `FOREIGN_POINTS` evenly drawn
    ones. In more than `TREE_DIMENSIONS` dimensions `ASKED` members are looked at, evenly drawn
    from the most to the least typical.
    """
    sample = np.argsort(clusters, kind="stable")[even(len(points), FOREIGN_POINTS)]
    foreign = sample[clusters[sample] != cluster.id]
    if not len(foreign):
        return []
    members = cluster.members
    if points.shape[1] > TREE_DIMENSIONS:
        members = members[even(len(members), ASKED)]
    search = NearestNeighbors(n_neighbors=1).fit(points[foreign])
    gaps, nearest = (column[:, 0] for column in search.kneighbors(points[members]))
    first = np.argsort(gaps, kind="stable")[:most]
    return [(int(members[i]), int(clusters[foreign[nearest[i]]])) for i in first]


def choose(
    points: np.ndarray, clusters: np.ndarray, cluster: Cluster, typical: int, things: str
) -> dict[str, list[Shown]]:
    """What is shown of a cluster: title -> points, each with the cluster it borders on or None."""
    members = cluster.members.tolist()
    most = [(i, None) for i in members[:typical]]
    if len(members) <= typical:
        return {f"All {things}": most}
    least = [(i, None) for i in members[typical:][: -LEAST - 1 : -1]]
    near = borderline(points, clusters, cluster, BORDERLINE)
    return {"Most typical": most, "Least typical": least} | ({"Borderline": near} if near else {})


def composition(
    cluster: Cluster, labels: np.ndarray, names: Sequence[str]
) -> tuple[str | None, float]:
    """The most common label of a cluster (the first in number of those) and its share."""
    counts = np.bincount(labels[cluster.members])
    return names[int(counts.argmax())], float(counts.max() / counts.sum())


def section(
    data: content.ReportData, groups: Sequence[Cluster], names: Sequence[str] | None
) -> tuple[Html, markup.Section]:
    """The strip of the head, one entry per cluster, and the members of each.

    Args:
        data: what the report is about.
        groups: the clusters, largest first.
        names: name of each label number, or None.
    """
    strip, articles = [], []
    nouns = content.nouns(data)
    swatches = {g.id: fill("swatch", symbol=g.symbol, color=g.color) for g in groups}
    for group in groups[:SHOWN]:
        typical = LINES if data.thumbnails is None else TYPICAL
        parts = choose(data.points, data.clusters, group, typical, nouns["things"])
        common, share = (None, 0.0)
        if data.labels is not None:
            common, share = composition(group, data.labels, names)
        uris, sharp = _pictures(data, parts)
        look = {
            "id": group.id,
            "swatch": swatches[group.id],
            "color": group.color,
            "sharp": sharp,
            "count": f"{len(group.members):,}",
            "size": count(len(group.members), nouns["thing"]),
            "share": f"{len(group.members) / len(data.points):.1%}",
            "note": "" if common is None else f"; {share:.1%} labeled {common}",
            **nouns,
        }
        picture = Html("") if uris is None else fill("strip_picture", uri=uris[0], sharp=sharp)
        strip.append(fill("strip", picture=picture, **look))
        queue, sheets = iter(uris or ()), []
        for title, part in parts.items():
            shown = (data, title, part, names, common, swatches)
            sheets.append(_list(*shown) if uris is None else _sheet(*shown, queue, sharp))
        articles.append(fill("cluster", sheets=join(sheets), **look))
    rest = len(groups) - SHOWN
    values = {"shown": SHOWN, "rest": count(rest, "smaller one"), "all": join(articles), **nouns}
    labeled = data.labels is not None
    notes = {
        "borderline": len(groups) > 1,
        "labeled": labeled and data.thumbnails is not None,
        "marked": labeled and data.thumbnails is None,
        "hidden": rest > 0,
    }
    return join(strip), markup.section("clusters", values, **notes)


def _pictures(data: content.ReportData, parts: dict[str, list[Shown]]) -> tuple[list | None, str]:
    """The pictures of all parts as data URIs, and the class of small ones; None without any."""
    if data.thumbnails is None:
        return None, ""
    rows = np.array([i for part in parts.values() for i, _ in part])
    images = thumbnails.pictures(data.thumbnails, rows, SHEET_SIDE)
    small = max(images[0].shape[:2]) <= thumbnails.LOSSLESS_SIDE
    uris = [thumbnails.data_uri(image, thumbnails.is_lossless(image)) for image in images]
    return uris, " pixels" if small else ""


def _facts(data: content.ReportData, i: int, names: Sequence[str] | None) -> dict[str, str]:
    """Name, label (of labeled data), distance and outlier flag of a point."""
    label = {} if data.labels is None else {"label": names[int(data.labels[i])]}
    outlier = data.outliers is not None and bool(data.outliers[i])
    distance = f"{data.distances[i]:.3g}"
    flag = {"outlier": "outlier"} if outlier else {}
    return {"name": content.name(data, i), **label, "distance": distance, **flag}


def _sheet(
    data: content.ReportData,
    title: str,
    part: list[Shown],
    names: Sequence[str] | None,
    common: str | None,
    swatches: dict[int, Html],
    queue: Iterator[str],
    sharp: str,
) -> Html:
    """Pictures with their facts as alternative text, the next ones of `queue`."""
    tiles = []
    for i, other in part:
        facts = _facts(data, i, names)
        words = [facts["name"]]
        words += [f"{key} {facts[key]}" for key in ("label", "distance") if key in facts]
        words += ["outlier"] if "outlier" in facts else []
        words += [] if other is None else [f"next to cluster {other}"]
        picture = {"uri": next(queue), "sharp": sharp, "alt": ", ".join(words)}
        odd = Html(' class="odd"') if facts.get("label") != common else ""
        badge = "" if other is None else fill("badge", swatch=swatches[other], id=other)
        tiles.append(fill("tile", odd=odd, badge=badge, **picture))
    across = 3 if title in ("Least typical", "Borderline") else 6
    return fill("sheet", title=title, across=across, tiles=join(tiles))


def _list(
    data: content.ReportData,
    title: str,
    part: list[Shown],
    names: Sequence[str] | None,
    common: str | None,
    swatches: dict[int, Html],
) -> Html:
    """Rows without pictures: name, label, distance and the cluster they border on."""
    labeled, near = data.labels is not None, part[0][1] is not None
    rows = []
    for i, other in part:
        facts = _facts(data, i, names)
        odd = Html(" odd") if facts.get("label") != common else ""
        cells = [fill("line_label", odd=odd, label=facts["label"])] if labeled else []
        cells += [fill("line_number", number=facts["distance"])]
        cells += [fill("line_next", swatch=swatches[other], id=other)] if near else []
        flag = fill("line_outlier") if "outlier" in facts else ""
        rows.append(fill("line", name=facts["name"], flag=flag, cells=join(cells)))
    heads = [fill("list_label")] if labeled else []
    heads += [fill("list_number")]
    heads += [fill("list_next")] if near else []
    return fill("list", title=title, heads=join(heads), rows=join(rows))
