"""`python -m cluster_jax.plan`: the command `cluster-jax plan`."""

from cluster_jax.cli.plan import main

if __name__ == "__main__":
    main()
