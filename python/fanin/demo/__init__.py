"""The demonstration behind ``make demo``: one training script, run over gloo and over fanin, and what came out.

``python -m fanin.demo --help`` lists the settings. ``train`` is the script; the other modules start it, measure it and
write the report.
"""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demonstration cannot go on; the text names the cause and what to do about it."""
