"""Without a cluster, the launcher ray says what to do, and leaves no process behind.

Two nodes are in `tests/pipeline/training/processes/test_two_nodes.py`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.plugin_system.plugin_settings import build_launcher
from patchline.pipeline.workers.launcher import Resources
from patchline.plugins.launchers.ray_host import environment_of_nodes

HAS_RAY = importlib.util.find_spec("ray") is not None
_SILENT = """
import os, socket
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
from patchline.plugins.launchers import ray_driver
ray_driver._CONNECT_SECONDS = 1.0
with socket.create_server(("127.0.0.1", 0)) as server:
    stranger = ray_driver.UnauthenticatedProbe("127.0.0.1:%d" % server.getsockname()[1])
    print("let in:", stranger.was_let_in())
"""


def test_a_cluster_that_is_not_there_is_an_error_of_the_user(tmp_path: Path) -> None:
    """One sentence with the address and the remedy; without Ray, the extra to install."""
    choice = PluginChoice.model_validate({"name": "ray", "address": "127.0.0.1:1"})
    launcher = build_launcher(choice, tmp_path)
    try:
        if not HAS_RAY:
            with pytest.raises(PluginError, match=r"pip install 'patchline\[ray\]'"):
                launcher.slots(Resources())
            return
        with pytest.raises(ConfigError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*`ray start"):
            launcher.slots(Resources())
    finally:
        launcher.close()
    left = [each.cmdline() for each in psutil.Process().children(recursive=True)]
    assert [each for each in left if any("ray_driver" in word for word in each)] == []


def test_no_secret_goes_to_the_nodes() -> None:
    """Only variables that workers read do, and where an object store is."""
    secrets = ("PATCHLINE_SERVE_TOKEN", "PATCHLINE_WEBHOOK", "PATCHLINE_SERVER_SECRET")
    needed = {"PATCHLINE_CACHE_LIMIT": "1GB", "AWS_ENDPOINT_URL": "http://store.example:9000"}
    others = dict.fromkeys((*secrets, "AWS_SECRET_ACCESS_KEY", "PATCHLINE_OTHER"), "secret")
    assert environment_of_nodes({**needed, **others}, "") == needed
    uri = "s3://bucket/team"
    assert environment_of_nodes(needed, uri) == {**needed, "PATCHLINE_WORKSPACE": uri}


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is an optional extra")
def test_a_cluster_that_does_not_answer_a_stranger_is_not_taken_for_a_closed_one() -> None:
    """What is not known is said; clusters that answer are in `test_two_nodes.py`."""
    done = subprocess.run([sys.executable, "-P", "-c", _SILENT], capture_output=True, check=True)
    assert done.stdout == b"let in: None\n"
