"""The commands of docs/how_to/object_storage.md, on a server that speaks S3's protocol."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.workspace.address import parsed
from patchline.pipeline.workspace.remote_store import RemoteStore
from tests.conftest import patchline, write_photos
from tests.object_server import ObjectServer, object_server
from tests.patience import patient
from tests.structure.pages import ROOT

_COMMAND = re.compile(r"^    patchline (.+)$", re.MULTILINE)
_SHORT = ("--preset", "none", "--training.epochs", "1", "--training.threads", "1")


def page_commands() -> list[list[str]]:
    """Return the arguments of the commands of the page, in order."""
    text = (ROOT / "docs/how_to/object_storage.md").read_text("utf-8")
    return [shlex.split(command) for command in _COMMAND.findall(text)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """Run a server with the buckets of the page and the data in them."""
    with object_server(tmp_path) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        for bucket in ("flowers", "images"):
            request = urllib.request.Request(f"{running.url}/{bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=patient(30)).close()
        images = RemoteStore(parsed("s3://images", "x"))
        photos = write_photos(tmp_path / "flowers", images=30)
        files = sorted(photos.rglob("*.png"))
        for file in files:
            images.upload(file, f"flowers/{file.relative_to(photos).as_posix()}")
        for file in files[:3]:
            images.upload(file, f"new/{file.name}")
        images.upload(
            Path(shutil.make_archive(str(tmp_path / "packed"), "zip", photos)), "flowers.zip"
        )
        rows = [
            (f"flowers/{each.relative_to(photos).as_posix()}", each.parent.name) for each in files
        ]
        pd.DataFrame(rows, columns=["image", "label"]).to_parquet(tmp_path / "labels.parquet")
        images.upload(tmp_path / "labels.parquet", "labels.parquet")
        with tarfile.open(tmp_path / "shard.tar", "w") as shard:
            for number, file in enumerate(files):
                for suffix, content in (
                    ("png", file.read_bytes()),
                    ("cls", file.parent.name.encode()),
                ):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
        images.upload(tmp_path / "shard.tar", "shards/flowers-000000.tar")
        yield running


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_every_command_works(tmp_path: Path) -> None:
    """Each command, in order; runs train for one epoch. Another test resumes a killed run."""
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'runs.db'}"}
    (tmp_path / "work").mkdir()
    for arguments in page_commands():
        if "--resume" in arguments:
            continue
        short = _SHORT if arguments[0] == "run" else ()
        done = patchline(*arguments, *short, cwd=tmp_path / "work", env=env, timeout=600)
        assert done.code == 0, f"{arguments}\n{done.out}\n{done.err}"
        assert "Traceback" not in done.err
    assert (tmp_path / "work/predictions.parquet").exists()
