"""`patchline promote`, `rollback` and `models`: the verdict, its exit code, and the history."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import write_photos
from tests.flows.conftest import Command
from tests.pipeline.registry.made_versions import make_version

QUICK = ("--promotion.no-package-check", "--promotion.min-images", "10")


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder whose store has a champion, an equal version and a better one."""
    folder = tmp_path_factory.mktemp("made_store")
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
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
    [model] = json.loads(command("models", "roses", "--json")[1])["models"]
    return [v["version"] for v in model["versions"] if "champion" in v["aliases"]]


def test_the_challenger_is_promoted_and_rolled_back(command: Command) -> None:
    """A better version becomes champion, and the one before can come back."""
    code, out, _ = command("promote", "roses", *QUICK)
    assert code == 0
    assert "roses, version 3: promoted" in out
    assert "passed better_than_champion" in " ".join(out.split())
    assert _champion(command) == ["3"]
    code, out, _ = command("rollback", "roses", "--reason", "complaints")
    assert (code, _champion(command)) == (0, ["1"])
    assert "version 1 is champion again, replacing version 3" in out
    code, _, err = command("rollback", "roses")
    assert code == 2
    assert "no previous champion" in err


def test_a_refusal_is_exit_code_3_with_the_promised_shape(command: Command) -> None:
    """A tie is refused, and `--json` prints one object with the gates and their values."""
    code, out, _ = command("promote", "roses", "--version", "2", *QUICK, "--json")
    answer = json.loads(out)
    assert code == 3
    assert (answer["promoted"], answer["version"], answer["champion"]) == (False, "2", "1")
    assert "0 are correct only now" in answer["reason"]
    better, *_ = answer["gates"]
    assert (better["name"], better["passed"], better["value"]) == (
        "better_than_champion", False, 0.0,
    )  # fmt: skip
    assert "threshold" in better
    assert _champion(command) == ["1"]


def test_force_requires_a_reason_and_is_in_the_history(command: Command) -> None:
    """Without a reason nothing happens; with one the history has both."""
    code, _, err = command("promote", "roses", "--version", "2", *QUICK, "--force")
    assert code == 2
    assert "--reason" in err
    code, _, err = command("promote", "roses", "--version", "2", *QUICK, "--reason", "why")
    assert code == 2
    assert "--force" in err
    forced = ("--force", "--reason", "the label of row 7 is wrong")
    code, out, _ = command("promote", "roses", "--version", "2", *QUICK, *forced)
    assert code == 0
    assert "promoted by force" in out
    _, out, _ = command("models", "roses")
    assert "FORCED: forced despite failing better_than_champion: the label of row 7 is wrong" in out


def test_gates_come_from_flags_file_and_run_in_this_order(command: Command, tmp_path: Path) -> None:
    """A file's gates replace those of the run, and a flag beats the file."""
    file = tmp_path / "gates.yaml"
    file.write_text(yaml.safe_dump({"promotion": {"minimum": {"accuracy": 0.95}}}), "utf-8")
    code, out, _ = command("promote", "roses", "--config", str(file), *QUICK)
    assert code == 3
    assert "FAILED minimum_accuracy" in " ".join(out.split())
    other = ("--promotion.minimum.macro_f1", "0.1")
    _, out, _ = command("promote", "roses", "--config", str(file), *other, *QUICK)
    assert {"FAILED minimum_accuracy", "FAILED minimum_macro_f1"} <= set(
        re.findall(r"FAILED \w+", " ".join(out.split()))
    )
    flag = ("--promotion.minimum.accuracy", "0.8")
    code, out, _ = command("promote", "roses", "--config", str(file), *flag, *QUICK)
    assert code == 0
    assert "minimum 0.8" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["promote", "rosse"], ["rosse", "Did you mean 'roses'"]),
        (["promote", "roses", "--version", "9"], ["no version 9", "1, 2, 3"]),
        (["promote", "roses", "--promotion.minimum.acuracy", "1"], ["acuracy", "'accuracy'"]),
        (["promote", "roses", "--promotion.minimum.ece", "1"], ["ece", "promotion.maximum"]),
        (["promote", "roses", "--promotion.min-imges", "1"], ["min-imges", "min-images"]),
        (["promote", "roses", "--promotion.automatic"], ["Unknown option", "promotion.automatic"]),
        (["promote", "roses", "--promotion.approval"], ["Unknown option", "promotion.approval"]),
        (["promote", "roses", "--promotion.approval-hours", "3"], ["approval_hours", "--ask"]),
        (["promote", "roses", "--config", "none.yaml"], ["none.yaml", "does not exist"]),
        (["promote", "roses", "--config", "empty.yaml"], ["empty.yaml", "no section 'promotion'"]),
        (["promote", "roses", "--config", "typo.yaml"], ["acuracy", "'accuracy'"]),
        (["promote", "roses/2"], ["'roses/2'", "--version"]),
        (["rollback", "roses@champion"], ["'roses@champion'", "bare name"]),
        (["rollback", "lilies"], ["lilies", "roses"]),
        (["evaluate", "roses@shampion", "photos"], ["shampion", "Did you mean 'champion'"]),
        (["evaluate", "roses"], ["DATA"]),
        (["run", "--promotion.minimum.acuracy", "1"], ["acuracy", "'accuracy'"]),
        (["run", "--evaluation.slices", "sise"], ["sise", "size"]),
    ],
    ids=" ".join,
)
def test_an_error_is_one_sentence(command: Command, arguments: list[str], words: list[str]) -> None:
    """It suggests the nearest name, and nothing is changed."""
    write_photos(Path("photos"), images=1)
    Path("empty.yaml").write_text("seed: 4\n", "utf-8")
    Path("typo.yaml").write_text("promotion: {minimum: {acuracy: 0.9}}\n", "utf-8")
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    [sentence] = [line for line in err.splitlines() if line.startswith("Error: ")]
    for word in words:
        assert word in sentence
    assert _champion(command) == ["1"]


def test_promoting_the_champion_changes_nothing(command: Command) -> None:
    """The output says so, and the previous decision stays recorded."""
    before = command("models", "roses", "--json")[1]
    code, out, _ = command("promote", "roses", "--version", "1", *QUICK)
    assert (code, out.strip()) == (
        0, "roses, version 1 is already champion; nothing changed",
    )  # fmt: skip
    assert command("models", "roses", "--json")[1] == before


def test_a_reason_is_one_line_of_plain_text(command: Command) -> None:
    """Line breaks and escapes do not reach the history; a long text is refused."""
    forced = ("promote", "roses", "--version", "2", *QUICK, "--force", "--reason")
    code, _, err = command(*forced, "x" * 501)
    assert code == 2
    assert "maximum of 500" in err
    command(*forced, "first\n\x1b[31msecond")
    assert "first [31msecond" in command("models", "roses")[1]


@pytest.mark.parametrize("words", ["promote roses", "rollback roses", "evaluate roses photos"])
def test_a_mistyped_name_makes_no_store(run_here: Command, words: str) -> None:
    """Only a run creates the store; other commands leave none behind."""
    write_photos(Path("photos"), images=1)
    code, _, err = run_here(*words.split())
    assert code == 2
    assert "no registered model 'roses'" in err
    assert not Path("mlflow.db").exists()


def test_models_lists_the_origin_of_a_version(command: Command) -> None:
    """It has data, commit, run, time and every change of an alias."""
    [model] = json.loads(command("models", "roses", "--json")[1])["models"]
    newest: dict[str, Any] = model["versions"][0]
    assert {"run_id", "metrics", "commit", "flow_run_id", "created_at", "decision"} <= set(newest)
    assert newest["metrics"] == {"test/accuracy": 0.9}
    assert [(e["alias"], e["to_version"]) for e in model["history"]] == [
        ("challenger", "1"), ("champion", "1"), ("challenger", "2"), ("challenger", "3"),
    ]  # fmt: skip
