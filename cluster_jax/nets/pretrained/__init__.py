"""Published weights for the backbones, one file per format."""
