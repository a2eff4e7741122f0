"""A page of new images in the clusters of a run, beside typical images of these."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.membership import Membership
from cluster_jax.data.images import PhotoFacts
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.report import report
from cluster_jax.report.report_data import ReportData

N_TYPICAL = 6  # images shown of a cluster of the run


class NewImages(NamedTuple):
    """New images and the clusters that they were assigned to.

    Attributes:
        labels: int `[m]`, cluster of each image, -1 for none.
        is_novel: bool `[m]`, images that are unlike those of the run.
        sources: file name of each image, or None.
        fetch_images: indices -> uint8 `[b, height, width, 1 or 3]`.
        names: cluster -> its name, of all clusters of the run that have one.
        typical: cluster -> typical images of it, uint8 `[b, height, width, 1 or 3]`, of all
            clusters of the run; None where its images are gone.
        membership: probabilities of the clusters, or None.
        is_decided: bool `[m]`, images of which a person has said where they belong, or None.
        folder: URI of the local folder that `sources` are relative to, or None.
        facts: sizes and dates of the files, or None.
        run: digest of the run, see `ReportData`.
        next_cluster: the lowest number that no cluster of the run has had.
        command: what applies corrections, see `ReportData`.
        steps: of the training of the run.
    """

    labels: NDArray
    is_novel: NDArray
    sources: Sequence[str] | None
    fetch_images: Callable[[NDArray], NDArray]
    names: Mapping[int, str]
    typical: Mapping[int, NDArray | None]
    membership: Membership | None = None
    is_decided: NDArray | None = None
    folder: str | None = None
    facts: PhotoFacts | None = None
    run: str = ""
    next_cluster: int = 0
    command: str | None = None
    steps: int = 0


def page(title: str, fact: str, new: NewImages) -> str:
    """Renders new images by cluster, the largest first, as a page of HTML that opens offline.

    It is the page of the report without a map, so that new images can be moved as those of the run.

    Args:
        title: of the page.
        fact: how many images there are, without a full stop.
        new: the images.
    """
    n = len(new.labels)
    clustering = Clustering(
        metrics={},
        points=np.empty((n, 0), np.float32),
        centers=np.empty((0, 0)),
        cluster_labels=new.labels,
        distances=new.is_novel.astype(np.float32),  # They come last.
        outliers=np.zeros(n, bool),
        membership=new.membership,
    )
    data = ReportData(
        title=title,
        headline=fact,
        results={
            "provenance": {"steps": new.steps},
            "metrics": {"kmeans": {"n_clusters": len(np.unique(new.labels))}},
        },
        clustering=clustering,
        sources=None if new.sources is None else tuple(new.sources),
        folder=new.folder,
        fetch_images=new.fetch_images,
        names={str(cluster): name for cluster, name in new.names.items()},
        run=new.run,
        next_cluster=new.next_cluster,
        is_decided=new.is_decided,
        facts=new.facts,
        is_novel=new.is_novel,
        typical=new.typical,
        command=new.command,
    )
    return report.render(data)
