"""The console script `cluster-jax`: a table of subcommands, imported when they are called."""

import importlib
import sys
from collections.abc import Sequence

from cluster_jax import __version__
from cluster_jax.cli import exit_codes
from cluster_jax.cli.parser import Parser

# Name -> module with a function `main(arguments)`, and what it does.
COMMANDS = {
    "images": ("cluster_jax.cli.images", "find groups of photos by a pretrained network"),
    "train": ("cluster_jax.cli.train", "train a network on images and cluster them"),
    "embed": ("cluster_jax.cli.embed", "write features of images by a pretrained network"),
    "cluster": ("cluster_jax.cli.cluster", "cluster embeddings of your own"),
    "export": ("cluster_jax.cli.export", "write the encoder of a run, to use without this package"),
    "report": ("cluster_jax.cli.report", "which images moved between two runs"),
    "plan": ("cluster_jax.cli.plan", "plan a training on TPUs or GPUs before they are rented"),
    "predict": ("cluster_jax.cli.predict", "assign new images to the clusters of a finished run"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and arguments[0] in COMMANDS:
        module, _ = COMMANDS[arguments[0]]
        importlib.import_module(module).main(arguments[1:])
        return
    with exit_codes.handle_errors():
        _parser().parse_args(arguments)


def _parser() -> Parser:
    commands = "".join(f"  {name:<9} {text}\n" for name, (_, text) in COMMANDS.items())
    parser = Parser(
        None,
        "Contrastive deep clustering of images without labels.",
        f"commands (cluster-jax COMMAND --help for their flags):\n{commands}\n",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below")
    parser.add_argument("--version", action="version", version=f"cluster-jax {__version__}")
    return parser


if __name__ == "__main__":
    main()
