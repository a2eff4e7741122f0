"""`python -m cluster_jax.cluster`: the command `cluster-jax cluster`."""

from cluster_jax.cli.cluster import main

if __name__ == "__main__":
    main()
