"""Losses: pure functions of arrays, one file per paper or family."""
