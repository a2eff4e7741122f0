"""The console script `cluster-jax`: imports and runs a subcommand."""

import importlib
import sys
from collections.abc import Sequence

from cluster_jax import __version__
from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import Parser

# Name -> what the command does; `cluster_jax.cli.NAME` has its function `main(arguments)`.
COMMANDS = {
    "images": "find groups of photos by a pretrained network",
    "train": "train a network on images and cluster them",
    "embed": "write features of images by a pretrained network",
    "cluster": "cluster embeddings of your own",
    "export": "write the encoder of a run, to use without this package",
    "report": "which images moved between two runs, or a run with corrections",
    "plan": "plan a training on TPUs or GPUs before they are rented",
    "predict": "assign new images to the clusters of a finished run",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and arguments[0] in COMMANDS:
        importlib.import_module(f"cluster_jax.cli.{arguments[0]}").main(arguments[1:])
        return
    with exit_codes.handle_errors():
        _parser().parse_args(arguments)


def _parser() -> Parser:
    commands = "".join(f"  {name:<9} {text}\n" for name, text in COMMANDS.items())
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
