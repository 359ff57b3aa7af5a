"""The console script: loads the program, which takes a moment, and ends quietly when that is interrupted."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Ends the process with the program's exit code."""
    try:
        from diloco_cli.main import main as program
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    program()
