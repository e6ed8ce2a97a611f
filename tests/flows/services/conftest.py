"""The servers of `patchline up`, started once for all tests of this folder that need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from patchline.pipeline import local_services
from tests.conftest import Finished
from tests.flows.services.local_servers import Servers, ended, listening
from tests.surroundings import OF_OTHERS, recording_proxy


@pytest.fixture(scope="session")
def started(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Servers, list[Finished]]]:
    """Start the servers of one folder by two commands at once, while both ports are taken.

    All variables name a proxy, and a file has Prefect's settings for another server.
    """
    folder = tmp_path_factory.mktemp("services")
    (folder / "prefect.toml").write_text(OF_OTHERS, encoding="utf-8")
    try:
        with recording_proxy() as proxy, ExitStack() as stack:
            servers = Servers(folder, {**os.environ, **proxy.environment})
            for port in servers.ports:
                stack.enter_context(listening(port))
            begun = [servers.begin_up(), servers.begin_up()]
            done = [ended(process) for process in begun]
            assert proxy.heard == []
        assert [each.code for each in done] == [0, 0], [each.err for each in done]
        (folder / "prefect.toml").unlink()
        servers.env = dict(os.environ)
        yield servers, done
    finally:
        servers.down("--now")


@pytest.fixture
def servers(started: tuple[Servers, list[Finished]], monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Return those servers, which run; the working directory is their folder."""
    servers, _ = started
    monkeypatch.chdir(servers.folder)
    if not local_services.find_running(servers.folder):  # a test of `patchline down` came before
        assert servers.up().code == 0
    return servers
