"""Names from outside on a terminal, and in a line that a person pastes into a shell."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from patchline.flows.commands.switches import terminal_lines
from patchline.flows.progress import progress_display
from patchline.pipeline.terminal_words import (
    escape_except_styles,
    few_names,
    harmless,
    pasted_path,
    visible,
)

ODD = "a\x1b[2J\n\r\x9b\u202eb\x7f\udcff.png"


def test_whatever_a_terminal_obeys_is_written_out() -> None:
    """Escapes, line ends, directions and stray bytes are shown; other scripts stay as they are.

    Emoji and scripts that need joiners keep them; a joiner in ASCII is written out. So do progress
    lines and the lines of `predict`.
    """
    assert visible(ODD) == r"a\x1b[2J\n\r\x9b\u202eb\x7f\udcff.png"
    assert visible("Löwe 狮子 🦁.png") == "Löwe 狮子 🦁.png"
    assert visible("one\ntwo\x1b", lines=True) == "one\ntwo\\x1b"
    family, persian = "\U0001f468\u200d\U0001f469", "\u0645\u06cc\u200c\u062e"
    assert visible(family + persian) == family + persian
    assert visible("c\u200dat") == r"c\u200dat"
    stream = io.StringIO()
    plain = progress_display.PlainLines(stream)
    plain.note(f"1 file is damaged: {ODD}")
    plain.stage(ODD)
    answers = [{"image": ODD, "error": ODD}]
    lines = terminal_lines("predictions.txt.j2", "patchline.flows.commands", answers=answers)
    said = "".join([stream.getvalue(), *lines])
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert said.count("\n") == 2


@pytest.mark.parametrize(
    "name", ['a "b" $HOME `id`', "two\nlines\x1b[31m", "\u202eodd\\", "-\x07'"]
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


_HOSTILE = "x\x1b]0;owned\x07\x1b[2J\u202egnp\x9b1m\udcff"


def test_only_rich_may_move_the_cursor_of_a_terminal() -> None:
    """Colors, links and progress bars work on a terminal; elsewhere they are written out."""
    own = "\x1b[1;31mred\x1b[0m\x1b[2K\x1b[1A\r\x1b[?25l\x1b]8;id=1;https://x.y\x1b\\link\x1b]8;;\x1b\\"
    assert escape_except_styles(own) == own
    assert "\x1b" not in harmless(own)
    assert "\r" not in harmless(own)


def test_a_list_names_the_first_and_counts_the_rest() -> None:
    """All names are there if they fit; of more, the rest is a number."""
    assert few_names([]) == ""
    assert few_names("abcde") == "a, b, c, d, e"
    assert few_names(iter("abc"), 2) == "a, b and 1 more"
    assert few_names(map(str, range(2_000)), 1, "; ") == "0 and 1,999 more"
