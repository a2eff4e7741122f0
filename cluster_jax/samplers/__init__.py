"""Samplers of the third view: keys, images and a potential -> views and `SamplerInfo`."""
