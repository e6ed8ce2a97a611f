"""Commands that compute nothing import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patchline.flows.commands.application import COMMANDS

HEAVY = ("torch", "pandas", "mlflow", "prefect", "albumentations", "sklearn", "matplotlib", "cv2")
_SCRIPT = """
import json, sys
from patchline.flows.command_line import run_command_line
try:
    for arguments in json.loads(sys.argv[1]):
        code = run_command_line(arguments)
finally:
    names = {name.partition(".")[0] for name in sys.modules}
    print("\\nLOADED", json.dumps(sorted(names)))
"""


def loaded_by(arguments: list[str], cwd: Path, before: str = "") -> set[str]:
    """Return the heavy packages that a command has imported when it ends."""
    return loaded_by_all([arguments], cwd, before)


def loaded_by_all(commands: list[list[str]], cwd: Path, before: str = "") -> set[str]:
    """Return the heavy packages that commands in one process have imported when they end."""
    done = subprocess.run(
        [sys.executable, "-c", before + _SCRIPT, json.dumps(commands)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    names = json.loads(done.stdout.rpartition("LOADED ")[2])
    return set(HEAVY) & set(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["plugins", "list"],
        ["plugins", "list", "--json"],
        ["run", "--training.epochz", "3"],
        ["run", "--training.epochs", "0"],
        ["run", "--model.name", "vti"],
        ["run", "--config", "none.yaml"],
        ["run", "--schema"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    """Help, lists and config errors answer without torch, pandas, mlflow or prefect."""
    assert loaded_by(arguments, tmp_path) == set()


def test_the_help_of_every_command_is_light(tmp_path: Path) -> None:
    """Each command's file is imported for its `--help`, and what it works with is not."""
    asked = [[*command.words.split(), "--help"] for command in COMMANDS]
    assert loaded_by_all(asked, tmp_path) == set()


def test_a_wrong_path_is_answered_before_the_servers_clients_are_imported(tmp_path: Path) -> None:
    """Prefect and MLflow take seconds, and are not needed to see that a folder is not there."""
    loaded = loaded_by(["evaluate", "digits", "nowhere"], tmp_path)
    assert not loaded & {"torch", "mlflow", "prefect"}


def test_the_python_api_is_light(tmp_path: Path) -> None:
    """`import patchline` imports nothing heavy, and neither does a call with a wrong setting."""
    wrong_setting = (
        "import patchline\n"
        "try:\n    patchline.run(trainig={})\n"
        "except patchline.ConfigError:\n    pass\n"
    )
    assert loaded_by(["--help"], tmp_path, before=wrong_setting) == set()


def test_a_heavy_import_would_be_seen(tmp_path: Path) -> None:
    """The same check fails when something heavy is imported on purpose."""
    assert loaded_by(["--help"], tmp_path, before="import pandas\n") == {"pandas"}


def test_the_process_of_a_flow_needs_no_torch() -> None:
    """Workers compute; the process that starts them does not wait for torch to be imported."""
    script = "import sys, patchline.flows.training.training_flow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
