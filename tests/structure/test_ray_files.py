"""The files for Ray clusters are what the page says: tokens everywhere, and no telemetry."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchline.plugins.launchers.ray import RayConfig

FILES = Path(__file__).resolve().parents[2] / "examples" / "ray"
PAGE = FILES.parents[1] / "docs" / "how_to" / "ray.md"


def _cluster(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((FILES / name).read_text("utf-8"))
    spec: dict[str, Any] = read["spec"]
    return spec["rayClusterSpec"] if read["kind"] == "RayJob" else spec


@pytest.mark.parametrize("name", ["cluster.yaml", "job.yaml"])
def test_a_cluster_on_kubernetes_has_tokens_and_one_version_of_ray(name: str) -> None:
    """Its version is the pinned one, telemetry is off, and all pods mount the same folder."""
    spec = _cluster(name)
    pins = (FILES.parents[1] / "constraints.txt").read_text("utf-8").splitlines()
    assert f"ray=={spec['rayVersion']}" in pins
    assert spec["authOptions"] == {"mode": "token"}
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        assert group["rayStartParams"]["disable-usage-stats"] == "true"
        [container] = group["template"]["spec"]["containers"]
        [before] = container["command"]
        assert group["rayStartParams"]["temp-dir"] == f"{before.split()[-1]}/ray"
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]
        assert container["workingDir"] == container["volumeMounts"][0]["mountPath"]
    assert len({str(group["template"]["spec"]["volumes"]) for group in groups}) == 1


def test_the_batch_script_makes_a_token_and_uses_the_launcher() -> None:
    """The shell can read it; its flags are settings of the launcher."""
    script = FILES / "slurm.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text("utf-8")
    assert "RAY_AUTH_MODE=token" in text
    assert "--include-dashboard=false" in text
    assert text.count("  ray start ") == text.count('--temp-dir="$private/ray"') == 2
    for line in text.split("--launcher.")[1:]:
        flag = line.split()[0].replace("-", "_")
        assert flag == "name" or flag in RayConfig.model_fields


def test_the_page_lists_every_setting_with_its_default() -> None:
    """A setting that comes or goes changes the page."""
    text = PAGE.read_text("utf-8")
    listed = {
        line.split("`")[1].removeprefix("launcher.")
        for line in text.splitlines()
        if line.startswith("| `launcher.")
    }
    assert listed == {"name", *RayConfig.model_fields}
