"""`python -m cluster_jax.main`: the command `cluster-jax train`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.run("train")
