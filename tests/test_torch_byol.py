"""The step in PyTorch that ours is compared with; only where PyTorch is installed."""

import pytest

torch = pytest.importorskip("torch")

from experiments.benchmark import _torch_byol  # noqa: E402


def test_both_networks_see_two_different_views():
    """Else a compiler merges the passes of both, and the peer is measured on half a step."""
    seen = {"online": [], "target": []}

    def network(name):
        def forward(x):
            seen[name].append(x)
            return x.flatten(1)

        return forward

    x = torch.rand(4, 3, 8, 8)
    _torch_byol.loss(network("online"), network("target"), lambda y: y, x)
    for views in seen.values():
        assert len(views) == 2
        assert not torch.equal(*views)
