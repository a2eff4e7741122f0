"""`python -m cluster_jax COMMAND`: the console script `cluster-jax`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.main()
