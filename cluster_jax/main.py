"""`python -m cluster_jax.main`: the command `cluster-jax train`."""

from cluster_jax.cli.train import main

if __name__ == "__main__":
    main()
