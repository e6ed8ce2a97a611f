"""The provenance of a result: code, packages, hardware."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.installation import checkout
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import list_chosen_plugins
from patchline.pipeline.workers.host.processors import this_processor

_PACKAGES = (
    "patchline",
    "torch",
    "torchvision",
    "albumentations",
    "numpy",
    "onnxruntime",
    "mlflow",
)
_GIT_SECONDS = 5


def commit() -> tuple[str, bool]:
    """Return the commit of Patchline's own source, and whether the source has changed since.

    The commit is empty if Patchline was installed: the folder that it was installed into may be in
    a repository of somebody else's.
    """
    source = checkout()
    if source is None or not (source / ".git").exists():
        return "", False
    status = _git(source, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    entries = [line for line in status.splitlines() if not line.startswith("# ")]
    [head] = re.findall(r"^# branch\.oid ([0-9a-f]+)$", status, re.MULTILINE) or [""]
    return head, bool(head and entries)


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    return {name: metadata.version(name) for name in _PACKAGES}


def hardware() -> dict[str, str]:
    """Return a description of processor, cores, memory and system."""
    import psutil

    return {
        "processor": this_processor().name,
        "cores": str(psutil.cpu_count(logical=True)),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def as_tags() -> dict[str, str]:
    """Return code, packages and hardware as tags for a run."""
    head, dirty = commit()
    facts = hardware()
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    tags = {
        "patchline.packages": f"{versions}, Python {facts['python']}",
        "patchline.hardware": (
            f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, "
            f"{facts['system']}"
        ),
    }
    if head:
        tags |= {"mlflow.source.git.commit": head, "patchline.dirty": str(dirty).lower()}
    return tags


def plugin_tags(config: RunConfig) -> dict[str, str]:
    """Return a tag with the plugins of a run, their distributions and versions."""
    entries = [plugin_loader.find(*chosen) for chosen in list_chosen_plugins(config).items()]
    named = (f"{e.kind} {e.name} ({e.distribution} {e.version})" for e in entries)
    return {"patchline.plugins": ", ".join(named)}


def _git(folder: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
