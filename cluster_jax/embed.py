"""`python -m cluster_jax.embed`: the command `cluster-jax embed`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.run("embed")
