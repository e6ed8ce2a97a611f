"""Names from outside on a terminal, and in a line that a person pastes into a shell."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from flows import progress
from flows.commands import predict
from pipeline.terminal_words import duration, pasted_path, visible

ODD = "a\x1b[2J\n\r\x9b\u202eb\x7f\udcff.png"


def test_whatever_a_terminal_obeys_is_written_out() -> None:
    """Escapes, line ends, directions and stray bytes are shown; other scripts stay as they are."""
    assert visible(ODD) == r"a\x1b[2J\n\r\x9b\u202eb\x7f\udcff.png"
    assert visible("Löwe 狮子 🦁.png") == "Löwe 狮子 🦁.png"
    assert visible("one\ntwo\x1b", lines=True) == "one\ntwo\\x1b"


def test_notes_and_answers_show_names_without_obeying_them() -> None:
    """Progress lines and the lines of `predict` hold no escape of a file's name."""
    stream = io.StringIO()
    plain = progress.PlainLines(stream)
    plain.note(f"1 file is damaged: {ODD}")
    plain.stage(ODD)
    said = stream.getvalue() + predict._line({"image": ODD, "error": ODD})
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert said.count("\n") == 2


@pytest.mark.parametrize(
    "name", ["-rf", "it's", 'a "b" $HOME `id`', "two\nlines\x1b[31m", "\u202eodd\\", "-\x07'"]
)
def test_a_pasted_path_names_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path in a printed command, read by a shell, is the file, and never an option."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name / "x.png"
    file.parent.mkdir()
    file.write_text("found")
    for path in (str(file), os.path.relpath(file)):
        words = pasted_path(path)
        assert visible(words) == words
        answer = subprocess.run(
            ["bash", "-c", f"cat {words}"], capture_output=True, text=True, check=False
        )
        assert answer.stdout == "found", answer.stderr


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_a_duration_has_one_fitting_unit(seconds: float, words: str) -> None:
    """Seconds up to 90, minutes up to 90, then hours; a short moment is 1 s."""
    assert duration(seconds) == words
