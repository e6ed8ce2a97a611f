"""What a process writes to standard output and error, passed through functions on its way.

Python's own text takes the way of `sys.stdout` and `sys.stderr`, which `rewrite_stream` wraps. C
libraries and child processes write to file descriptor 2 instead: see `rewrite_descriptor`.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import faulthandler
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TextIO

Rewrite = Callable[[str], str]

_STANDARD_ERROR = 2
_PIECE_BYTES = 1 << 16
_LAST_SECONDS = 1.0
"""How long the end of a process waits for a child that still has its standard error open."""


class RewrittenStream:
    """A wrapper of a stream that passes every text through a function.

    Args:
        stream: gets what the function returns, and answers everything else itself.
        rewrite: sees one call's text at a time; what is split over two calls is not found.
    """

    def __init__(self, stream: TextIO, rewrite: Rewrite) -> None:
        self._stream, self._rewrite = stream, rewrite

    def write(self, text: str) -> int:
        """Write a text, and return the number of characters that were given."""
        self._stream.write(self._rewrite(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def is_rewritten_by(self, rewrite: Rewrite) -> bool:
        """Return whether this wrapper, or one inside it, uses a function."""
        if self._rewrite == rewrite:
            return True
        inner = self._stream
        return isinstance(inner, RewrittenStream) and inner.is_rewritten_by(rewrite)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def rewrite_stream(name: Literal["stdout", "stderr"], rewrite: Rewrite) -> None:
    """Pass what Python prints to a stream through a function, once only."""
    stream: TextIO | None = getattr(sys, name)
    if stream is None:  # it was closed when Python started
        return
    if not (isinstance(stream, RewrittenStream) and stream.is_rewritten_by(rewrite)):
        setattr(sys, name, RewrittenStream(stream, rewrite))


def rewrite_descriptor(rewrite: Rewrite) -> None:
    """Pass what C libraries and child processes write to standard error through a function.

    File descriptor 2 becomes a pipe, and a thread writes what comes out of it to `sys.stderr`,
    which keeps the original. So does `faulthandler`, because no thread survives a crash. Call this
    before `rewrite_stream`; it does nothing where Python has no standard error of its own.
    """
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.fileno() == _STANDARD_ERROR:
        _Forwarder(sys.stderr, rewrite).start()


class _Forwarder:
    def __init__(self, stream: io.TextIOWrapper, rewrite: Rewrite) -> None:
        stream.flush()
        self._rewrite = rewrite
        self._has_ended = False
        self._original = os.dup(_STANDARD_ERROR)
        self._kept = os.fdopen(
            self._original, "w", 1, stream.encoding, stream.errors, closefd=False
        )
        self._thread = threading.Thread(target=self._forward, name="standard error", daemon=True)

    def start(self) -> None:
        self._reader, writer = os.pipe()
        os.dup2(writer, _STANDARD_ERROR)
        os.close(writer)
        sys.stderr = self._kept
        faulthandler.enable(self._kept)
        self._thread.start()
        atexit.register(self._end)

    def _forward(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        while piece := os.read(self._reader, _PIECE_BYTES):
            text = decoder.decode(piece)
            if text and not self._has_ended:
                with contextlib.suppress(
                    OSError, ValueError
                ):  # nobody reads it; the pipe is emptied
                    sys.stderr.write(self._rewrite(text))
                    sys.stderr.flush()

    def _end(self) -> None:
        """Give the descriptor its original file back, and write the rest."""
        os.dup2(self._original, _STANDARD_ERROR)
        self._thread.join(_LAST_SECONDS)
        self._has_ended = True
