"""Random walks over the commands of a run, each of which is repeated by its seed."""

from cluster_jax.runs import decisions

# What follows from what was found and what people have decided.
FOLDED = ("label", "decided", "kept")


def check_decided(run):
    """The clusters of a state are those that were found, with all that files say on top."""
    now = decisions.folded(run, run.decisions)
    for name in FOLDED:
        assert now.columns[name].tolist() == run.columns[name].tolist(), name
        assert now.departed[name].tolist() == run.departed[name].tolist(), name
    assert (now.named, now.shaped, now.whole) == (run.named, run.shaped, run.whole)
    assert run.next_label > max([-1, *run.labels.tolist(), *run.named, *run.held])


def walk(one, names, seed, steps):
    """Calls methods of `one` that `one.rng` draws; a failure has the seed and the steps so far.

    Args:
        one: what walks, with a random generator `rng`.
        names: of its methods, one for each step that there may be.
        seed: of `one`, for the message.
        steps: number of steps.
    """
    done = ["begin"]
    try:
        for _ in range(steps):
            done.append(names[one.rng.integers(len(names))])
            getattr(one, done[-1])()
    except BaseException as error:  # Commands end by SystemExit.
        error.add_note(f"seed {seed}: {', '.join(done)}")
        raise
