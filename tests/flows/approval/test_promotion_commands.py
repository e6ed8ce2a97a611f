"""`patchline promote`, `rollback` and `models`: the verdict, its exit code, and the history."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import write_photos
from tests.flows.commands.photo_stores import entered_store
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import make_version

QUICK = ("--promotion.no-package-check", "--promotion.min-images", "10")


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder whose store has a champion, an equal version and a better one."""
    folder = tmp_path_factory.mktemp("made_store")
    with entered_store(folder, empty_store):
        for wrong in (range(60), range(60), range(10)):
            make_version("roses", folder, wrong=wrong, metrics={"accuracy": 0.9})
    return folder


@pytest.fixture
def command(made_store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command on a copy of that store."""
    shutil.copy(made_store / "mlflow.db", "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path('mlflow.db').resolve()}")
    return run_here


def _champion(command: Command) -> list[str]:
    [model] = command.json("models roses")["models"]
    return [v["version"] for v in model["versions"] if "champion" in v["aliases"]]


def test_the_challenger_is_promoted_and_rolled_back(command: Command) -> None:
    """A better version becomes champion, and the one before can come back.

    `models` has run, commit, time and decision of a version, and every change of an alias.
    """
    [model] = command.json("models roses")["models"]
    newest: dict[str, Any] = model["versions"][0]
    assert {"run_id", "metrics", "commit", "flow_run_id", "created_at", "decision"} <= set(newest)
    assert newest["metrics"] == {"test/accuracy": 0.9}
    assert [(e["alias"], e["to_version"]) for e in model["history"]] == [
        ("challenger", "1"), ("champion", "1"), ("challenger", "2"), ("challenger", "3"),
    ]  # fmt: skip
    again = command.out("promote roses --version 1", *QUICK)
    assert "is already champion; nothing changed" in again
    assert command.json("models roses")["models"] == [model]
    out = command.out("promote roses", *QUICK)
    assert _champion(command) == ["3"]
    assert "roses, version 3: promoted" in out
    assert "passed better_than_champion" in " ".join(out.split())
    out = command.out("rollback roses --reason complaints")
    assert _champion(command) == ["1"]
    assert "version 1 is champion again, replacing version 3" in out
    assert "no previous champion" in command.refusal("rollback roses")


def test_a_refusal_is_exit_code_3_with_the_promised_shape(command: Command) -> None:
    """A tie is refused, and `--json` prints one object with the gates and their values."""
    code, out, _ = command("promote roses --version 2", *QUICK, "--json")
    answer = json.loads(out)
    assert (code, _champion(command)) == (3, ["1"])
    assert (answer["promoted"], answer["version"], answer["champion"]) == (False, "2", "1")
    assert "0 are correct only now" in answer["reason"]
    better, *_ = answer["gates"]
    assert (better["name"], better["passed"], better["value"]) == (
        "better_than_champion", False, 0.0,
    )  # fmt: skip
    assert "threshold" in better


def test_force_requires_a_reason_and_is_in_the_history(command: Command) -> None:
    """Line breaks and escapes of the reason do not reach the history; a long text is refused."""
    second = ("promote roses --version 2", *QUICK)
    for wrong, words in (
        (("--force",), "--reason"),
        (("--reason", "why"), "--force"),
        (("--force", "--reason", "x" * 501), "maximum of 500"),
    ):
        assert words in command.refusal(*second, *wrong)
    out = command.out(*second, "--force", "--reason", "row 7\n\x1b[31mis wrong")
    assert "promoted by force" in out
    shown = command.out("models roses")
    assert "FORCED: forced despite failing better_than_champion: row 7 [31mis wrong" in shown


def test_gates_come_from_flags_file_and_run_in_this_order(command: Command, tmp_path: Path) -> None:
    """A file's gates replace those of the run, and a flag beats the file."""
    file = tmp_path / "gates.yaml"
    file.write_text(yaml.safe_dump({"promotion": {"minimum": {"accuracy": 0.95}}}), "utf-8")
    gates = ("promote roses --config", file, *QUICK)
    code, out, _ = command(*gates, "--promotion.minimum.macro_f1", "0.1")
    assert code == 3
    for name in ("accuracy", "macro_f1"):
        assert f"FAILED minimum_{name}" in " ".join(out.split())
    flag = ("--promotion.minimum.accuracy", "0.8")
    assert "minimum 0.8" in command.out(*gates, *flag)


def test_an_error_is_one_sentence(command: Command) -> None:
    """It suggests the nearest name, and nothing is changed."""
    write_photos(Path("photos"), images=1)
    Path("empty.yaml").write_text("seed: 4\n", "utf-8")
    Path("typo.yaml").write_text("promotion: {minimum: {acuracy: 0.9}}\n", "utf-8")
    for arguments, words in (
        ("promote roses --promotion.minimum.acuracy 1", ["acuracy", "'accuracy'"]),
        ("promote roses --promotion.minimum.ece 1", ["ece", "promotion.maximum"]),
        ("promote roses --promotion.automatic", ["Unknown option", "promotion.automatic"]),
        ("promote roses --promotion.approval-hours 3", ["approval_hours", "--ask"]),
        ("promote roses --config empty.yaml", ["empty.yaml", "no section 'promotion'"]),
        ("promote roses --config typo.yaml", ["acuracy", "'accuracy'"]),
        ("promote roses/2", ["'roses/2'", "--version"]),
        ("rollback roses@champion", ["'roses@champion'", "bare name"]),
        ("evaluate roses@shampion photos", ["shampion", "Did you mean 'champion'"]),
        ("run --evaluation.slices sise", ["sise", "size"]),
    ):
        sentence = command.refusal(arguments)
        assert not [word for word in words if word not in sentence], sentence
    assert _champion(command) == ["1"]
