"""Everything that a person reads uses the field's terms, not the phrases that were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.source_files import source_file
from tests.structure.word_rules import BANNED, stumbles

ROOT = Path(__file__).resolve().parents[2]
_READ = (
    "README.md", "CHANGELOG.md", "patchline", "pipeline", "flows", "plugins", "docs", "examples",
    "benchmarks", "tests", ".github",
)  # fmt: skip


def test_no_banned_phrase_is_left() -> None:
    """Code, tests and pages contain none of the phrases; each hit names what to write instead."""
    assert list(stumbles([ROOT / name for name in _READ], ROOT)) == []


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("The run goes on by itself.", "goes on"),
        ("the test figures flatter", "flatter"),
        ("Run something again and again; needs `patchline up`.", "again and again"),
        ("class _Line:", "_Line"),
        ("A gate refuses, so nothing changes.", "gate refuses"),
        ("If false, a person decides.", "a person decides"),
        ("The time of all trainings together.", "trainings"),
        ("The plan of a training for this data.", "a training"),
        ("There are: none yet.", "There are: "),
        ("The flow run ends in the state Server away.", "Server away"),
    ],
)
def test_a_banned_phrase_is_found(tmp_path: Path, line: str, phrase: str) -> None:
    """A page with the phrase is named, with the line and the phrase."""
    (tmp_path / "page.md").write_text(f"# Page\n\n{line}\n", "utf-8")
    hits = list(stumbles([tmp_path], tmp_path))
    assert any(hit.startswith(f"page.md:3: '{phrase}'") for hit in hits)


def test_plain_sentences_pass(tmp_path: Path) -> None:
    """Terms that only resemble a banned phrase are left alone."""
    text = "Contributions are welcome. The head goes on the token. A figure shows it.\n"
    text += "A training run has a training image. There are no models. The server refuses a host.\n"
    (tmp_path / "page.md").write_text(text, "utf-8")
    assert list(stumbles([tmp_path], tmp_path)) == []
    assert len(BANNED) >= 30


_NOT_A_NAME = {"found", "known", "wanted", "asked", "look", "seen"}


@pytest.mark.parametrize("package", ["pipeline", "flows", "plugins", "patchline"])
def test_a_participle_names_no_function_parameter_or_field(package: str) -> None:
    """A reader meets the name of the thing, not what somebody has done with it."""
    misnamed = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for line, name in source_file(file.read_text("utf-8")).names
        if name.strip("_").lower() in _NOT_A_NAME
    ]
    assert misnamed == []


def test_a_participle_as_a_parameter_is_noticed() -> None:
    """Functions, parameters and fields count; locals do not."""
    source = "def f(known):\n    found = 1\nclass A:\n    seen: int\n    def look(self): ...\n"
    assert {name for _, name in source_file(source).names} & _NOT_A_NAME == {
        *("known", "seen", "look")
    }
