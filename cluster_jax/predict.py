"""`python -m cluster_jax.predict`: the command `cluster-jax predict`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.run("predict")
