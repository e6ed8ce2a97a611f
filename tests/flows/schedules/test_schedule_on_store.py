"""A schedule whose images and workspace are on an object store, from the command to its run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import patchline, write_photos
from tests.flows.services.buckets import administrator
from tests.flows.services.local_servers import Servers, own_database
from tests.object_server import ObjectServer
from tests.patience import patient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_SETTINGS = "preset: none\ntraining: {epochs: 2, threads: 1, precision: float32}\n"
_CALL = "import patchline; patchline.run(config='run.yaml')"


@pytest.fixture
def servers(tmp_path: Path, bucket: str, objects: ObjectServer) -> Iterator[Servers]:
    """Start servers that have the credentials, and are not told of the workspace."""
    folder = tmp_path / "up"
    folder.mkdir()
    photos = write_photos(tmp_path / "photos", images=20)
    client = administrator(objects)
    for file in photos.rglob("*.png"):
        key = f"images/{file.relative_to(photos).as_posix()}"
        client.upload_file(str(file), bucket, key)
    text = f"name: flowers\ndata: {{path: 's3://{bucket}/images'}}\n{_SETTINGS}"
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    servers = Servers(folder, {**own_database(), **objects.environment})
    try:
        assert servers.up().code == 0
        yield servers
    finally:
        servers.down("--now")


def test_a_scheduled_run_uses_images_and_workspace_of_the_store(
    servers: Servers, bucket: str, tmp_path: Path
) -> None:
    """Its results are there: the Python API computes nothing again in another folder."""
    shared = ("--workspace", f"s3://{bucket}/team")
    none = ("--workspace", "s3://no-such-bucket/team")
    create = ("schedule", "create", "nightly", "--cron", "0 2 * * *", "--config", "run.yaml")
    refused = patchline(*create, *none, cwd=servers.folder)
    assert (refused.code, "does not exist" in refused.err) == (2, True)
    made = patchline(*create, *shared, cwd=servers.folder)
    assert made.code == 0, made.err
    started = patchline("schedule", "run-now", "nightly", cwd=servers.folder)
    assert started.code == 0, started.err
    deadline = time.monotonic() + patient(600)
    while (last := _last(servers.folder)) not in ("Completed", "Failed", "Crashed"):
        assert time.monotonic() < deadline, last
        time.sleep(patient(3))
    assert last == "Completed", servers.log("runs")
    [model] = patchline("models", "--json", cwd=servers.folder).json["models"]
    assert [each["version"] for each in model["versions"]] == ["1"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.yaml").write_text((servers.folder / "run.yaml").read_text(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CALL],
        cwd=other,
        env={**os.environ, "PATCHLINE_WORKSPACE": shared[1]},
        capture_output=True,
        text=True,
        timeout=patient(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("its images are used", "its training is used"):
        assert words in done.stderr


def _last(folder: Path) -> str | None:
    [shown] = patchline("schedule", "list", "--json", cwd=folder).json["schedules"]
    return str(shown["last"]["state"]) if shown["last"] else None
