"""Random walks over the commands of a run, each of which is repeated by its seed."""


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
