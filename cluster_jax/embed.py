"""`python -m cluster_jax.embed`: the command `cluster-jax embed`."""

from cluster_jax.cli.embed import main

if __name__ == "__main__":
    main()
