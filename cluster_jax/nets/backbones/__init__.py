"""One file per family of backbones; each offers `NAMES` and `make`, see `nets.backbone`."""
