"""The tutorial in docs/how_to/write_a_plugin.md, up to a model that serves without the plugin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATCHLINE
from tests.environments import environment_beside
from tests.structure.pages import ROOT, commands, execute

pytestmark = pytest.mark.slow  # two whole runs and an installation


@pytest.fixture(scope="module")
def worked_through(garden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every command of the page has succeeded, in order."""
    entered = environment_beside(tmp_path_factory.mktemp("environment") / "venv")
    for command in commands(ROOT / "docs/how_to/write_a_plugin.md"):
        execute(command, garden, entered)
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
    listed = subprocess.run(
        [PATCHLINE, "plugins", "list"], capture_output=True, text=True, check=True
    )
    assert "my_stem" not in listed.stdout
    execute(f"patchline predict flowers/{version.version} photo.png", worked_through)


def _run_of_the_package(folder: Path) -> str:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("flowers")
    assert experiment
    wanted = "tags.`plugin.patch_embedding` = 'my_stem (patchline-my-stem 0.1.0)'"
    [run] = client.search_runs([experiment.experiment_id], wanted)
    return str(run.info.run_id)
