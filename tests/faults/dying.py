"""`python -m tests.faults.dying PLACE COMMAND ...`: a command that is killed at some place."""

import os
import signal
import sys

from cluster_jax.cli import app
from cluster_jax.data import batches
from cluster_jax.evaluation import evaluate
from cluster_jax.pipeline import outputs, stores
from cluster_jax.training import checkpoint, loop

# The package has its function instead.
_KMEANS = sys.modules["cluster_jax.clustering.kmeans"]


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _at_call(owner, name, number=1, after=False):
    """Kills at a call of a function, or after it."""
    function, called = getattr(owner, name), 0

    def dying(*arguments, **options):
        nonlocal called
        called += 1
        if called < number or after:
            made = function(*arguments, **options)
        if called == number:
            _kill()
        return made

    setattr(owner, name, dying)


def _at_second_batch_of_the_embedding():
    """The training embeds images as well, on which it is watched."""
    write, stream = stores.write, batches.evaluation

    def second(*arguments, **options):
        made = stream(*arguments, **options)
        yield next(made)
        _kill()

    def written(*arguments):
        batches.evaluation = second
        write(*arguments)

    stores.write = written


PLACES = {
    "start": lambda: _at_call(checkpoint, "wait_for_all"),
    "training": lambda: _at_call(loop, "_place", 15),
    # Its files are still being written.
    "checkpoint": lambda: _at_call(checkpoint.Checkpoints, "save", after=True),
    "refresh": lambda: _at_call(loop, "_refreshed", 2),
    "embedding": _at_second_batch_of_the_embedding,
    "k-means": lambda: _at_call(evaluate, "kmeans"),
    "report": lambda: _at_call(outputs.report, "write_report"),
    "k-means on all": lambda: _at_call(_KMEANS, "_on_mesh", 3),
}

if __name__ == "__main__":
    place, *command = sys.argv[1:]
    PLACES[place]()
    app.main(command)
