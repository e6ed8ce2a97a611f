"""A schedule whose images and workspace are on an object store, from the command to its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import patchline, patchline_here, write_photos
from tests.flows.services.buckets import administrator
from tests.flows.services.local_servers import serving
from tests.object_server import ObjectServer
from tests.patience import until


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_scheduled_run_uses_images_and_workspace_of_the_store(
    objects: ObjectServer, bucket: str, tmp_path: Path
) -> None:
    """Its results are there: a run in another folder computes nothing again.

    The servers have the credentials, and are not told of the workspace.
    """
    folder, other = tmp_path / "up", tmp_path / "other"
    photos = write_photos(tmp_path / "photos", images=12)
    for file in photos.rglob("*.png"):
        key = f"images/{file.relative_to(photos).as_posix()}"
        administrator(objects).upload_file(str(file), bucket, key)
    for each in (folder, other):
        each.mkdir()
        (each / "run.yaml").write_text(
            f"name: flowers\ndata: {{path: 's3://{bucket}/images'}}\npreset: none\n"
            "training: {epochs: 2, threads: 1, precision: float32}\n"
        )
    shared = ("--workspace", f"s3://{bucket}/team")
    with serving(folder, **objects.environment):
        create = ["schedule", "create", "nightly", "--cron", "0_2_*_*_*", "--config", "run.yaml"]
        create = [word.replace("_", " ") for word in create]
        refused = patchline_here(*create, "--workspace", "s3://no-such-bucket/team", cwd=folder)
        assert (refused.code, "does not exist" in refused.err) == (2, True)
        for command in ((*create, *shared), ("schedule", "run-now", "nightly")):
            done = patchline(*command, cwd=folder)
            assert done.code == 0, done.err

        def last() -> str:
            listed = patchline("schedule", "list", "--json", cwd=folder)
            return str((listed.json["schedules"][0]["last"] or {}).get("state"))

        ends = ("Completed", "Failed", "Crashed")
        until(lambda: last() in ends, "it never ended", seconds=600, pause=2)
        assert last() == "Completed"
        [model] = patchline("models", "--json", cwd=folder).json["models"]
        assert [each["version"] for each in model["versions"]] == ["1"]
    done = patchline("run", "--config", "run.yaml", *shared, cwd=other)
    assert done.code == 0, done.err
    for words in ("its images are used", "its training is used"):
        assert words in done.err
