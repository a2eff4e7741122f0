"""Backbones with weights that somebody else has trained."""
