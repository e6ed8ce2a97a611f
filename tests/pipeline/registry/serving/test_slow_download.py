"""A package that cannot be downloaded in time, and what downloads leave behind that were killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patchline.pipeline.registry import served_package
from patchline.pipeline.registry.serving import alias_watch
from patchline.pipeline.registry.serving.alias_watch import AliasWatch
from patchline.pipeline.registry.serving.model_host import ModelHost, Served
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.server_metrics import ServerMetrics
from patchline.pipeline.workspace.files import file_locks


class _Elsewhere:
    """A registry whose champion is version 2, on a store that is far away."""

    def __init__(self) -> None:
        self.asked = 0

    def reader(self) -> Any:
        """Return what answers."""
        return self

    def version_of(self, name: str, alias: str) -> str:
        """Return the champion."""
        del name, alias
        return "2"

    def place_of(self, name: str, version: str) -> str:
        """Return where its files are."""
        del name, version
        self.asked += 1
        return "s3://nowhere/package"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of downloads, in which none may take longer than a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(served_package, "_SECONDS", 0.02)
    monkeypatch.setattr(alias_watch, "_POLL_SECONDS", 3600)  # the test itself asks
    folder = tmp_path / ".patchline" / "served"
    for name in ("killed", "under way"):
        (folder / f".part-{name}").mkdir(parents=True)
    return folder


def test_a_download_that_takes_too_long_is_rejected_and_tried_less_often(cache: Path) -> None:
    """`/status` says so, the pause doubles up to 16 minutes, and nothing stays on the disk."""

    async def follow() -> list[float]:
        host, registry = ModelHost("a", "champion", ServingConfig(), ServerMetrics()), _Elsewhere()
        host._served = Served("1", SimpleNamespace(pending=0))  # type: ignore[arg-type]  # idle
        watch, pauses = AliasWatch(host, registry), []  # type: ignore[arg-type]  # as the registry
        for attempt in range(1, 7):
            watch.check()
            watch.check()  # it is not tried a second later
            assert registry.asked == attempt
            assert host.registry.rejected == ("2", "its files could not be fetched")
            pauses.append(watch._pause)
            watch._rejected_at -= watch._pause + 1  # the time has passed
        return pauses

    with file_locks.hold_lock(cache / ".part-under way.lock"):
        assert asyncio.run(follow()) == [60, 120, 240, 480, 960, 960]
    left = {each.name for each in cache.iterdir() if each.is_dir()}
    assert left == {".part-under way"}


def test_a_download_is_no_package_yet(cache: Path) -> None:
    """The four newest packages are kept beside what is being downloaded."""
    for age in range(6):
        (cache / str(age)).mkdir()
        os.utime(cache / str(age), (1e9 - age, 1e9 - age))
    served_package._keep_newest(cache)
    assert sorted(each.name for each in cache.iterdir()) == [
        ".part-killed", ".part-under way", "0", "1", "2", "3",
    ]  # fmt: skip
