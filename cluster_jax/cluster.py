"""`python -m cluster_jax.cluster`: the command `cluster-jax cluster`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.run("cluster")
