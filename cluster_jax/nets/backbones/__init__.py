"""One file per backbone family; each defines `NAMES` and `make`, see `nets.backbone`."""
