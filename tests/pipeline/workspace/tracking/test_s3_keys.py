"""Keys of S3 that are replaced while a command or a server works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.workspace.tracking import tracking_store


def test_mlflow_reads_replaced_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next client has them, which it makes after five minutes."""
    from mlflow.store.artifact import s3_artifact_repo

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    repository: Any = s3_artifact_repo.S3ArtifactRepository("s3://bucket/artifacts")

    def key_at(seconds: int) -> str:
        monkeypatch.setattr(s3_artifact_repo, "_get_utcnow_timestamp", lambda: seconds)
        tracking_store.forget_keys()
        return str(repository._get_s3_client()._request_signer._credentials.access_key)

    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = x\n"
    file.write_text(text.format("old"), "utf-8")
    assert key_at(0) == "old"
    file.write_text(text.format("new"), "utf-8")
    assert key_at(1) == "old"
    assert key_at(301) == "new"
