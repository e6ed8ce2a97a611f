"""Standard output and error of a process, with every text rewritten on its way."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

SETUP = """
import os, signal, subprocess, sys
from patchline.pipeline import redaction
from patchline.pipeline.terminal_words import protect_terminal
protect_terminal()
redaction.install(streams=True)
"""
"""As the source of a program has it."""


def _finished(code: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    arguments = [sys.executable, "-c", SETUP + code]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        arguments, capture_output=True, timeout=patient(60), check=False, **options
    )


@pytest.mark.parametrize("way", ["a C library", "a child process"])
def test_what_bypasses_python_is_rewritten(way: str) -> None:
    """Escapes and secrets do not reach standard error; nothing is lost, up to the last byte."""
    code = (
        r"import os; os.write(2, b'\x1b]0;owned\x07\x1b[31m\xff\xe2\x80\xae s3cret/of-anna! end')"
    )
    if way == "a child process":
        code = f"subprocess.run([sys.executable, '-c', {code!r}])"
    done = _finished(code, env={**os.environ, "POSTGRES_PASSWORD": "s3cret/of-anna!"})
    assert done.returncode == 0
    assert done.stderr.decode("ascii") == (r"\x1b]0;owned\x07\x1b[31m\xff\u202e *** end")


def test_much_output_arrives_whole_and_in_order() -> None:
    """More than a pipe holds, cut within characters, is written as it came."""
    done = _finished("for i in range(3000): os.write(2, f'{i} Löwe 狮子 🦁\\n'.encode())")
    assert done.stderr.decode() == "".join(f"{i} Löwe 狮子 🦁\n" for i in range(3000))


def test_a_crash_is_still_told() -> None:
    """No thread survives it, so Python's report of it goes to standard error directly."""
    done = _finished("os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == -signal.SIGSEGV
    assert b"Fatal Python error: Segmentation fault" in done.stderr


def test_streams_may_be_closed(tmp_path: Path) -> None:
    """A process without any output does its work."""
    code = SETUP + f"open({str(tmp_path / 'done')!r}, 'w').close()"
    subprocess.run(
        ["bash", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, code],
        check=True,
        timeout=patient(60),
    )
    assert (tmp_path / "done").exists()


def test_a_terminal_gets_python_colors_and_no_others() -> None:
    """What Rich draws passes; the same bytes from a C library are written out."""
    terminal, device = pty.openpty()
    code = r"""
print("\x1b[31mred\x1b[0m", sys.stderr.isatty(), file=sys.stderr)
os.write(2, b"\x1b[31mfrom C")
"""
    subprocess.run(
        [sys.executable, "-c", SETUP + code], stderr=device, check=True, timeout=patient(60)
    )
    os.close(device)
    text = os.read(terminal, 4096).decode()
    os.close(terminal)
    assert "\x1b[31mred\x1b[0m True" in text
    assert r"\x1b[31mfrom C" in text
    assert text.count("\x1b") == 2
