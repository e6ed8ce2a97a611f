"""Runs that start from trained weights: a champion's, and those of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import patchline, write_photos

NONE = ("--preset", "none")
SETTINGS = (
    *NONE,
    "--model.embed-dim", "24", "--model.depth", "1", "--model.num-heads", "2",
    "--data.image-size", "16", "--training.epochs", "2", "--json",
)  # fmt: skip


def ran(*arguments: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run to the end, and return the JSON and what was said."""
    done = patchline("run", *arguments, cwd=folder)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


@pytest.mark.slow
def test_runs_start_from_a_champion_and_from_a_file(tmp_path: Path) -> None:
    """The lineage is on the run, the table is kept, and the comparison leaves out what both saw."""
    from mlflow import MlflowClient

    write_photos(tmp_path / "photos", images=24)
    champion = ("--model.init", "champion")
    first, said = ran("photos", *SETTINGS, *champion, folder=tmp_path)
    assert "no champion yet: training starts from random weights" in said
    second, said = ran(
        "photos", *NONE, "--training.epochs", "1", *champion, "--json", folder=tmp_path
    )
    assert "initial weights: photos/1 (Patchline, 16x16 pixels); training all weights" in said
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(second["run_id"])
    assert run.data.tags["patchline.initial_run_id"] == first["run_id"]
    assert run.data.params["model.init"] == "photos/1"
    assert run.data.params["model.embed_dim"] == "24"
    names = [item.path for item in client.list_artifacts(second["run_id"])]
    assert "initial_weights.csv" in names
    assert "photos/1" in str(client.get_model_version("photos", "2").description)
    file = next((tmp_path / ".patchline" / "initial_weights").iterdir()) / "weights.safetensors"
    refused = patchline("run", "photos", "--model.init", str(file), cwd=tmp_path)
    assert refused.code == 2
    packages = sorted((tmp_path / ".patchline" / "runs").glob("*/package"))
    weights = packages[0] / "model.safetensors"
    third, said = ran("photos", *NONE, "--model.init", str(weights), "--json", folder=tmp_path)
    assert "training the head alone" in said
    assert "head: validation accuracy" in said
    assert third["version"] == "3"
    again, said = ran("photos", *NONE, "--model.init", str(weights), "--json", folder=tmp_path)
    assert again["metrics"] == third["metrics"]
    longer = patchline("run", "--extend", "last", "--training.epochs", "9", cwd=tmp_path)
    assert longer.code == 2
    assert "fitted a head, which has no epochs to extend" in longer.err
    _, said = ran("photos", *NONE, "--model.init", "photos/3", "--json", folder=tmp_path)
    assert "initial weights: photos/3 (Patchline, 16x16 pixels); training the head alone" in said
    wrong = patchline("run", "photos", "--model.init", "photos@none", cwd=tmp_path)
    assert wrong.code == 2
    assert "has no alias 'none'" in wrong.err
