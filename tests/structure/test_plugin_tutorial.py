"""The tutorial in docs/how_to/write_a_plugin.md, up to a model that serves without the plugin."""

from __future__ import annotations

import shlex
import shutil
from itertools import groupby
from pathlib import Path

import pytest

from tests.conftest import patchline_here
from tests.environments import environment_beside
from tests.flows.training.runs import TINY
from tests.structure.pages import ROOT, commands, execute

pytestmark = pytest.mark.slow  # a whole run and an installation

_SMALL = TINY.replace("--training.epochs 2 ", "")  # the page says so itself
_TOGETHER = """
import shlex, sys
from patchline.flows.command_line import run_command_line
for command in sys.argv[1:]:
    if code := run_command_line(shlex.split(command)[1:]):
        sys.exit(code)
"""


@pytest.fixture(scope="module")
def worked_through(
    garden: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the folder in which every command of the page has succeeded, in order.

    Those of Patchline in a row share a process; without the installed package, it is this one. The
    runs are small, and that with a single file is rehearsed.
    """
    shutil.copy(empty_store, garden / "mlflow.db")
    entered = environment_beside(tmp_path_factory.mktemp("environment") / "venv")
    shown, installed = commands(ROOT / "docs/how_to/write_a_plugin.md"), False
    for is_ours, group in groupby(shown, lambda command: command.startswith("patchline ")):
        row = [f"{each} {_SMALL}" if " run " in each else each for each in group]
        if is_ours and installed:
            execute(shlex.join(["python", "-c", _TOGETHER, *row]), garden, entered)
            continue
        for command in row:
            rehearsed = " --rehearse" * ("--plugin" in command)
            execute(command + rehearsed, garden, None if is_ours else entered)
            if command.startswith("pip "):
                installed = not installed
    assert not installed
    return garden


def test_the_run_names_the_plugin_with_its_version(worked_through: Path) -> None:
    """MLflow holds the plugin's name, package and version."""
    assert _run_of_the_package(worked_through)


def test_the_model_answers_where_the_plugin_is_not_installed(worked_through: Path) -> None:
    """The registered model labels a photo in an environment without the plugin."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{worked_through / 'mlflow.db'}")
    run_id = _run_of_the_package(worked_through)
    [version] = client.search_model_versions(f"run_id = '{run_id}'")
    assert "my_stem" not in patchline_here("plugins", "list", cwd=worked_through).out
    execute(f"patchline predict flowers/{version.version} photo.png", worked_through)


def _run_of_the_package(folder: Path) -> str:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("flowers")
    assert experiment
    wanted = "tags.`patchline.plugins` LIKE '%patch_embedding my_stem (patchline-my-stem 0.1.0)%'"
    [run] = client.search_runs([experiment.experiment_id], wanted)
    return str(run.info.run_id)
