"""The command `palimpsest`: `python -m palimpsest` and the script of the same name."""

from __future__ import annotations

import os
import signal
import sys

from . import _native


def main() -> None:
    """Runs the command and ends the process with its exit code."""
    # The command watches for Ctrl-C itself, or is ended by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.command(["palimpsest", *sys.argv[1:]])
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
