"""Collapse figures on spectra that are known."""

import sys

import numpy as np
import pytest

from cluster_jax.metrics.collapse import collapse
from tests.rows import every_row


def _rotation(d, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def test_opposite_axes_in_every_direction():
    d = 8
    rows = np.concatenate([np.eye(d), -np.eye(d)]) @ _rotation(d)
    result = collapse(rows * np.linspace(1, 5, 2 * d)[:, None])
    assert result["effective_rank"] == pytest.approx(d)
    # Every coordinate of the unrotated rows has variance 1/d; a rotation keeps their mean.
    total = (rows**2).sum() / len(rows)
    assert total == pytest.approx(1)
    assert result["std"] == pytest.approx(rows.std(axis=0).mean())
    assert result["std"] == pytest.approx(1 / np.sqrt(d), rel=1e-6)


def test_known_unequal_spectrum():
    # +-e1 nine times as often as +-e2: singular values in the ratio 3 to 1.
    rows = np.concatenate([np.eye(2)[[0] * 9 + [1]], -np.eye(2)[[0] * 9 + [1]]])
    rows = np.pad(rows, ((0, 0), (0, 3))) @ _rotation(5)
    p = np.array([0.75, 0.25])
    assert collapse(rows)["effective_rank"] == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_collapse_to_a_point_and_to_a_line():
    # Only direction counts: rows along one ray are one point of the sphere.
    ray = np.outer(np.arange(1, 50), np.random.default_rng(1).normal(size=7))
    assert collapse(ray)["std"] == pytest.approx(0, abs=1e-12)
    assert collapse(ray)["effective_rank"] == 0
    line = ray * np.where(np.arange(49) % 3 == 0, -1, 1)[:, None]
    assert collapse(line)["effective_rank"] == pytest.approx(1)
    assert collapse(np.zeros((4, 3))) == {"std": 0, "effective_rank": 0}
    assert collapse(np.ones((1, 3)))["effective_rank"] == 0


def test_long_sets_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(sys.modules[collapse.__module__], "_ROWS", 100)
    rows = np.random.default_rng(2).normal(size=(1000, 5))
    rows[500:] = [0, 0, 0, 0, 1]
    chosen = rows[np.linspace(0, 999, 100).astype(int)]
    assert collapse(rows) == collapse(chosen)
    assert collapse(rows) != collapse(rows[:100])


@every_row("bad", [np.zeros(3), np.zeros((0, 2)), np.array([[np.nan]])])
def test_bad_input(bad):
    with pytest.raises(ValueError, match="features"):
        collapse(bad)
