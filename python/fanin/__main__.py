"""``python -m fanin`` and the ``fanin`` command: hand everything to the Rust command line."""

import signal
import sys

from fanin._fanin import main as _run


def main() -> int:
    """Runs the command line on ``sys.argv``; the result is the exit status."""
    # Python's handler only sets a flag, which nobody reads while Rust runs: Ctrl-C would do nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _run(["fanin", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
