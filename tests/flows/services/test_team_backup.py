"""A team's stores restored on another server: dump, bucket and folder; then all commands work."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Finished, patchline, patchline_here, write_photos
from tests.flows.services.buckets import administrator, keys_in
from tests.flows.services.local_servers import serving
from tests.flows.training.runs import TINY
from tests.object_server import ObjectServer
from tests.postgres_server import PASSWORD, USER, PostgresServer, postgres_server, program

_SMALL = TINY.replace("--training.epochs 2 ", "")
_TRAINING = f"run photos --name flowers --training.batch-size 8 {_SMALL} --training.epochs"


def _ok(done: Finished) -> Finished:
    assert done.code == 0, done.err
    return done


def _psql(name: str, *arguments: str) -> None:
    path = program(name) or shutil.which(name)
    given = {**os.environ, "PGPASSWORD": PASSWORD}
    subprocess.run([str(path), *arguments], env=given, check=True)


@pytest.mark.slow
def test_a_team_continues_on_another_machine_from_its_backup(
    postgres: PostgresServer,
    objects: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/how_to/backup.md says: `models`, `predict` and `run` work on the new servers.

    So does `predict` in the folder of a colleague who has what signs in to MLflow alone.
    """
    folder, restored = tmp_path / "old", tmp_path / "new"
    folder.mkdir()
    write_photos(folder / "photos", images=12)
    bucket, other_bucket = objects.new_bucket(), objects.new_bucket()
    credentials = {"PGPASSWORD": PASSWORD, **objects.environment}
    postgres.sql(f"CREATE DATABASE backup OWNER {USER}")
    stores = ("--database", postgres.address("backup"), "--artifacts", f"s3://{bucket}/art")
    with serving(folder, *stores, **credentials):
        _ok(patchline(*_TRAINING.split(), "2", cwd=folder))
    dump = str(tmp_path / "stores.dump")
    _psql("pg_dump", "--format=custom", f"--file={dump}", postgres.address("backup"))
    s3 = administrator(objects)
    for key in keys_in(objects, bucket):
        s3.copy_object(Bucket=other_bucket, Key=key, CopySource={"Bucket": bucket, "Key": key})
        s3.delete_object(Bucket=bucket, Key=key)
    shutil.move(folder, restored)

    with postgres_server() as another:
        another.sql(f"CREATE DATABASE backup OWNER {USER}")
        _psql("pg_restore", "--no-owner", f"--dbname={another.address('backup')}", dump)
        postgres.sql("DROP DATABASE backup")
        moved = ("--database", another.address("backup"), "--artifacts", f"s3://{other_bucket}/art")
        with serving(restored, *moved, **credentials) as servers:
            models = _ok(patchline_here("models", "--json", cwd=restored)).json["models"]
            assert [(each["name"], len(each["versions"])) for each in models] == [("flowers", 1)]
            image = next((restored / "photos").rglob("*.png"))
            _ok(patchline_here("predict", "flowers@champion", image, cwd=restored))
            again = _ok(patchline(*_TRAINING.split(), "2", "--json", cwd=restored)).json
            assert (again["version"], again["reused"]["train"]) == (
                "2",
                models[0]["versions"][0]["run_id"],
            )

            monkeypatch.setenv("MLFLOW_TRACKING_URI", servers.state.mlflow_url)
            colleague = tmp_path / "colleague"
            colleague.mkdir()
            refused = patchline("models", cwd=colleague)
            assert (refused.code, "login.env" in refused.err) == (1, True), refused.err
            login = (restored / ".patchline/services/login.env").read_text(encoding="utf-8")
            for name, _, value in (word.partition("=") for word in shlex.split(login)):
                if name.startswith("MLFLOW_"):
                    monkeypatch.setenv(name, value)
            _ok(patchline_here("predict", "flowers/2", image, cwd=colleague))
