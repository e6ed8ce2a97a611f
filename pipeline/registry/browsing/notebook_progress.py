"""Show progress in a notebook: one output that is redrawn, with a bar below its lines.

It is plain HTML, so it needs no widget library, works in every kind of notebook, and stays in the
saved file.
"""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from patchline.pipeline.redaction import redacted
from patchline.pipeline.terminal_words import visible

_INTERVAL_SECONDS = 0.2
_LINES = "font-family: monospace; font-size: 90%; line-height: 1.4; white-space: pre-wrap"
_DIM = "opacity: 0.65"
_PULSE = "<progress></progress>"
"""A bar without a value moves to and fro."""


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    return getattr(shell, "kernel", None) is not None


class NotebookLines:
    """A line for each stage and note, and below them a bar that moves as long as a stage runs."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._bar = ""
        self._bar_text = ""
        self._started = time.monotonic()
        self._drawn = 0.0
        self._output: Any = None

    def stage(self, name: str) -> None:
        """Write the stage with the seconds since the start, and let a bar move."""
        seconds = time.monotonic() - self._started
        self._lines.append((f"{seconds:5.0f} s  {visible(name)}", ""))
        self._bar, self._bar_text = _PULSE, ""
        self._draw()

    def note(self, text: str) -> None:
        """Write the text."""
        self._lines.append((f"         {visible(redacted(text))}", _DIM))
        self._draw()

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Move the bar, at most five times a second; once all is done, show that work continues."""
        after = f"; {beside}" if beside else ""
        self._bar, self._bar_text = _PULSE, ""
        if done < total:
            self._bar = f'<progress value="{done}" max="{total}"></progress>'
            self._bar_text = f"{f'{label}: {done:,} of {total:,} {unit}'.rstrip()}{after}"
        if time.monotonic() - self._drawn >= _INTERVAL_SECONDS:
            self._draw()

    def close(self) -> None:
        """Remove the bar; the lines stay."""
        self._bar = self._bar_text = ""
        if self._lines:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn = time.monotonic()
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)

    def _html(self) -> str:
        lines = "\n".join(
            f'<span style="{style}">{html.escape(line)}</span>' for line, style in self._lines
        )
        bar = f"\n         {self._bar} {html.escape(self._bar_text)}" if self._bar else ""
        return f'<div style="{_LINES}">{lines}{bar}</div>'

    def _text(self) -> str:
        return "\n".join(line for line, _ in (*self._lines, (self._bar_text, "")) if line)
