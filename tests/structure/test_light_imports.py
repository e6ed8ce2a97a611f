"""Commands that compute nothing import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from patchline.flows.commands.application import commands
from tests.pipeline.registry.serving.served import NAME, made_registry, png

HEAVY = ("torch", "pandas", "mlflow", "prefect", "albumentations", "sklearn", "matplotlib", "cv2")
_SCRIPT = """
import json, sys
from patchline.flows.command_line import run_command_line
for arguments in json.loads(sys.argv[1]):
    code = run_command_line(arguments)
    names = {name.partition(".")[0] for name in sys.modules}
    print("\\nLOADED", json.dumps(sorted(names)))
"""
_WRONG_SETTING = """
import patchline
try:
    patchline.run(trainig={})
except patchline.ConfigError:
    pass
"""
_HELP = (["--help"], ["run", "--help"])
LIGHT = [
    *_HELP,
    ["plugins", "list"],
    ["plugins", "list", "--json"],
    ["run", "--training.epochz", "3"],
    ["run", "--training.epochs", "0"],
    ["run", "--model.name", "vti"],
    ["run", "--config", "none.yaml"],
    ["run", "--schema"],
    ["plugins", "new", "patch_embedding", "my_stem"],
    ["plugins", "new", "model", "My-Vit"],
    ["plugins", "show", "vit", "--model.sise", "b"],
    ["plugins", "show", "vit", "--model.name", "cct"],
    ["plugins", "show", "vit", "--help"],
    ["plugins", "show", "light"],
    ["plugins", "show", "image_folder", "--json"],
    ["plugins", "show", "vit", "--picture", "x.png"],
    ["plugins", "show", "conv", "--photo", "x.png"],
    *(help_ for each in commands() if (help_ := [*each.words.split(), "--help"]) not in _HELP),
]


def loaded_by(commands: list[list[str]], cwd: Path, before: str = "") -> list[set[str]]:
    """Return the heavy packages that are imported after each of some commands in one process."""
    done = subprocess.run(
        [sys.executable, "-c", before + _SCRIPT, json.dumps(commands)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    assert len(lines) == len(commands), done.stderr
    return [set(HEAVY) & set(json.loads(line.removeprefix("LOADED "))) for line in lines]


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """Help, lists, errors, and what needs no counting answer without torch, mlflow or prefect.

    So does `import patchline`, also when a call has a wrong setting.
    """
    commands = [*LIGHT, ["evaluate", "digits", "nowhere"]]
    *found, by_wrong_path = loaded_by(commands, tmp_path, before=_WRONG_SETTING)
    for command, loaded in zip(LIGHT, found, strict=True):
        assert loaded == set(), command
    # Prefect and MLflow take seconds, and are not needed to see that a folder is not there.
    assert not by_wrong_path & {"torch", "mlflow", "prefect"}


def test_the_registry_is_read_without_mlflow(tmp_path: Path, empty_store: Path) -> None:
    """A list of models and a prediction take no longer than what they print."""
    made_registry(tmp_path, empty_store).add(1)
    (tmp_path / "image.png").write_bytes(png(1))
    listed, predicted = loaded_by([["models"], ["predict", NAME, "image.png"]], tmp_path)
    assert listed == set()
    assert predicted <= {"cv2"}


def test_a_heavy_import_would_be_seen(tmp_path: Path) -> None:
    """The same check fails when something heavy is imported on purpose."""
    assert loaded_by([["--help"]], tmp_path, before="import cv2\n") == [{"cv2"}]


def test_the_process_of_a_flow_needs_no_torch() -> None:
    """Workers compute; the process that starts them does not wait for torch to be imported."""
    script = "import sys, patchline.flows.training.training_flow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
