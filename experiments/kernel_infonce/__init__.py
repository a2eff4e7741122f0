"""Kernel-InfoNCE: experiments of the paper."""
