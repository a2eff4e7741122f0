"""Experiments: the results that the pages show, each by one of the commands in `COMMANDS`."""

import sys

COMMANDS = (
    "experiments.benchmark",
    "experiments.living",
    "experiments.number_of_clusters",
    "experiments.number_of_clusters.many",
    "experiments.number_of_clusters.probabilities",
    "experiments.peers",
    "experiments.real",
    "experiments.run",
    "experiments.tables",
    "experiments.tutorials",
)
# Scripts, which print what they do.
_SCRIPTS = ("experiments.benchmark._torch_byol", "experiments.tutorials.")


def _check_command() -> None:
    """Ends `python -m experiments.MODULE` with a sentence if the module is no command.

    It would end without any output otherwise. Python imports the package of a module that it is to
    run first, and `sys.argv` begins with "-m" until then.
    """
    words = sys.orig_argv
    if sys.argv[:1] != ["-m"] or "-m" not in words:
        return
    module = words[words.index("-m") + 1]
    is_ours = module.startswith("experiments.") and not module.startswith(_SCRIPTS)
    if is_ours and module not in COMMANDS:
        sys.exit(f"error: {module} is no command; the commands are {', '.join(COMMANDS)}")


_check_command()
