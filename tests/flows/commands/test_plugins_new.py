"""`patchline plugins new` says what it wrote and what to do next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchline.flows.command_line import run_command_line
from patchline.pipeline.plugin_system.plugin_loader import KINDS

RUN_COMMANDS = {
    "model": "patchline run --model.name mine",
    "patch_embedding": "patchline run --model.patch-embedding.name mine",
    "data_source": "patchline run --data.source mine --data.path labels.csv",
    "augmentation": "patchline run --augmentation.name mine",
    "objective": "patchline run --objective.name mine",
    "launcher": "patchline run --launcher.name mine",
}


def _new(*arguments: str) -> int:
    return run_command_line(["plugins", "new", *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_one_object(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints kind, name, folder, the files that exist, and the next commands."""
    assert _new(kind, "mine", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["name"]) == (kind, "mine")
    assert answer["folder"] == "patchline-mine"
    assert answer["files"]
    assert all((tmp_path / "patchline-mine" / file).is_file() for file in answer["files"])
    assert answer["next"] == [
        "pip install -e patchline-mine",
        f"patchline plugins check {kind} mine",
        RUN_COMMANDS[kind],
        "python -m pytest patchline-mine",
    ]


def test_the_answer_shows_files_and_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file and command stands on a line of its own; a place with a space is quoted."""
    (tmp_path / "my plugins").mkdir()
    assert _new("patch_embedding", "my_stem", "--into", "my plugins") == 0
    lines = capsys.readouterr().out.splitlines()
    folder = tmp_path / "my plugins/patchline-my-stem"
    files = [f for f in folder.rglob("*") if f.is_file()]
    assert {f"  {file.relative_to(folder).as_posix()}" for file in files} <= set(lines)
    assert "  pip install -e 'my plugins/patchline-my-stem'" in lines
    assert "  python -m pytest 'my plugins/patchline-my-stem'" in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["patch_embedding", "My-Stem"], "Use lower-case letters"),
        (["patch_embeding", "my_stem"], "Did you mean 'patch_embedding'?"),
        (["model", "vit"], "The model plugin 'vit' already exists"),
        (["model", "mine", "--into", "none"], "There is no folder none"),
        (["model", "mine", "--into", "file"], "file is not a folder"),
        (["model", "mine", "--into", "full"], "full/patchline-mine already exists"),
        (["model"], "NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_answered_with_a_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one sentence on standard error, and nothing written."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "full/patchline-mine").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    assert _new(*arguments) == 2
    out, err = capsys.readouterr()
    [sentence] = err.splitlines()
    assert sentence.startswith("Error: ")
    assert words in sentence
    assert not out
    assert sorted(tmp_path.rglob("*")) == before
