"""`python -m cluster_jax.main`: the command `cluster-jax train`."""

import sys

from cluster_jax.cli import app

if __name__ == "__main__":
    app.main(["train", *sys.argv[1:]])
