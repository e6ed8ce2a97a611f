"""The Python API in a workspace that may not be written: it refuses to write, and reads a copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import patchline
from patchline.flows.python_api.session import session
from patchline.pipeline.errors import StorageError
from patchline.pipeline.files import workspace_folder
from patchline.pipeline.relocation import read_only

CALLS: dict[str, Callable[[], object]] = {
    "patchline.run()": lambda: patchline.run("photos"),
    "patchline.rehearse()": lambda: patchline.rehearse("photos"),
    "patchline.evaluate()": lambda: patchline.evaluate("photos", "photos"),
    "patchline.promote()": lambda: patchline.promote("photos"),
}


@pytest.fixture(autouse=True)
def _unwritable_database(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer as the system does to a user who may not write the database; root always may."""
    (tmp_path / ".patchline").mkdir()
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(read_only, "_copies", {})
    asked = os.access

    def access(path: str | Path, mode: int) -> bool:
        return asked(path, mode) and (mode != os.W_OK or Path(path).name != "mlflow.db")

    monkeypatch.setattr(os, "access", access)
    assert workspace_folder.is_read_only()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_writes_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is written into a copy that would be deleted; the sentence is that of a command."""
    with pytest.raises(StorageError) as caught:
        CALLS[name]()
    assert str(caught.value).startswith(
        f"The workspace {Path.cwd()} may not be written, and `{name}` writes to it. Make it "
    )
    assert "is read-only" not in capfd.readouterr().err
    assert list(Path(".patchline").iterdir()) == []


def test_calls_that_read_say_so_and_share_one_copy(capfd: pytest.CaptureFixture[str]) -> None:
    """Only a database that has changed is copied again; the earlier copy is deleted."""

    def copied() -> Path:
        assert len(patchline.models()) == 0
        assert "is read-only: this command records nothing" in capfd.readouterr().err
        with session():
            return Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///"))

    first = copied()
    assert copied() == first
    os.utime("mlflow.db", ns=(1, 1))
    second = copied()
    assert second != first
    assert (first.exists(), second.exists()) == (False, True)
    assert list(second.parents[1].glob("*/mlflow.db")) == [second]
    assert "MLFLOW_TRACKING_URI" not in os.environ
