"""What tests of networks share."""

import pytest

from cluster_jax.nets.backbones import vit


@pytest.fixture
def shallow(monkeypatch):
    """A ViT of three blocks, which compiles in a fraction of the time of twelve."""
    width, _, heads = vit.SIZES["tiny"]
    monkeypatch.setitem(vit.SIZES, "tiny", (width, 3, heads))
