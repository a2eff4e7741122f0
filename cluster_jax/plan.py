"""`python -m cluster_jax.plan`: the command `cluster-jax plan`."""

from cluster_jax.cli import app

if __name__ == "__main__":
    app.run("plan")
