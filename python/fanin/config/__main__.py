"""``python -m fanin.config``: the settings in force here; with ``--markdown``, the reference page."""

from __future__ import annotations

import sys
from dataclasses import fields

from fanin.config import Config, environment_name, load, markdown


def main(arguments: list[str]) -> int:
    """Runs the command; the result is the exit status."""
    if arguments == ["--markdown"]:
        print(markdown(), end="")
        return 0
    if arguments:
        print("usage: python -m fanin.config [--markdown]", file=sys.stderr)
        return 2
    settings = load()
    for option in fields(Config):
        value = getattr(settings, option.name)
        shown = "(set)" if option.metadata["secret"] and value else "unset" if value is None else value
        print(f"{environment_name(option)} = {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
