"""`python -m cluster_jax.predict`: the command `cluster-jax predict`."""

from cluster_jax.cli.predict import main

if __name__ == "__main__":
    main()
