"""The Python API in a workspace that may not be written: it reads, and refuses to write."""

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


def test_calls_that_read_say_so_and_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The store is read where it is, and what calls keep for later is elsewhere."""
    before = Path("mlflow.db").read_bytes()
    assert len(patchline.models()) == 0
    assert "is read-only: this command records nothing" in capfd.readouterr().err
    with session():
        assert workspace_folder.place() != workspace_folder.WORKSPACE.resolve()
    assert workspace_folder.place() == workspace_folder.WORKSPACE.resolve()
    assert Path("mlflow.db").read_bytes() == before
    assert list(Path(".patchline").iterdir()) == []
