"""A whole run in a folder whose name means something to every library on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import patchline, write_photos

NAME = "why? 100%25 #1 ünï;@:\"'\\ \n-x%20"
CONFIG = """
name: tiny
model: {name: vit, embed_dim: 32, depth: 1, num_heads: 2}
training: {epochs: 1}
preset: none
"""


@pytest.mark.slow  # two runs of a minute; tests/pipeline/test_path_uris.py covers each store
@pytest.mark.parametrize("name", [NAME, ":memory:"])
def test_training_and_prediction_work_in_a_folder_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace, the data, the settings and the result lie where they were asked for."""
    monkeypatch.delenv("PREFECT_SERVER_DATABASE_CONNECTION_URL")
    folder = tmp_path / "around" / name
    photos = write_photos(folder / "im?ges %41#", images=14, side=16)
    (folder / "s%20?.yaml").write_text(CONFIG, encoding="utf-8")
    trained = patchline("run", photos.name, "--config", "s%20?.yaml", "--json", cwd=folder)
    assert trained.code == 0, trained.err
    out = "o?ut %41.csv"
    predicted = patchline("predict", "tiny@champion", photos.name, "--out", out, cwd=folder)
    assert predicted.code == 0, predicted.err
    assert len((folder / out).read_text("utf-8").splitlines()) == 1 + 3 * 14
    assert [each.name for each in folder.parent.iterdir()] == [name]
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        [".patchline", photos.name, "mlflow.db", "mlruns", out, "s%20?.yaml"]
    )
