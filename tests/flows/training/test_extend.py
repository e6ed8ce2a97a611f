"""A finished run that is extended: a new run, whose curves are whole, and a further version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import patchline, write_photos

SETTINGS = (
    "--preset", "none",
    "--model.embed-dim", "24", "--model.depth", "1", "--model.num-heads", "2",
    "--data.image-size", "16", "--json",
)  # fmt: skip


@pytest.mark.slow
def test_a_finished_run_is_extended_by_a_new_one(tmp_path: Path) -> None:
    """The new run registers version 2; what cannot be changed or found is refused by name."""
    write_photos(tmp_path / "photos", images=12)
    first = patchline("run", "photos", *SETTINGS, "--training.epochs", "2", cwd=tmp_path)
    run_id = json.loads(first.out)["run_id"]
    for given, reason in (
        (["--training.epochs", "2"], "was trained for 2 epochs already"),
        ([], "training.epochs is not set"),
        (["photos", "--training.epochs", "4"], "DATA cannot be combined with --extend"),
        (["--model.depth", "2", "--training.epochs", "4"], "'model' cannot be changed"),
    ):
        refused = patchline("run", "--extend", "last", *given, cwd=tmp_path)
        assert refused.code == 2
        assert reason in refused.err
    done = patchline("run", "--extend", "last", "--training.epochs", "4", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert f"extending the training of run {run_id[:8]} to 4 epochs" in done.err
    extended = json.loads(done.out)
    assert extended["version"] == "2"
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    curve = client.get_metric_history(extended["run_id"], "validation/accuracy")
    before = client.get_metric_history(run_id, "validation/accuracy")
    assert [each.value for each in curve[:2]] == [each.value for each in before]
    assert len(curve) == 4
    assert client.get_run(extended["run_id"]).data.params["record.extends"] == run_id
    write_photos(tmp_path / "photos", images=13)
    changed = patchline("run", "--extend", run_id, "--training.epochs", "4", cwd=tmp_path)
    assert changed.code == 2
    assert "The data differs from that of the run" in changed.err
