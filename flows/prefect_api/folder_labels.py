"""Labels that tell which folder a deployment or an event belongs to.

Machines that share a Prefect server may have folders of the same path. So a folder is known by its
path and by the id of the workspace in it (`patchline.pipeline.workspace.files.workspace_identity`).
Both have to match: a copy of a workspace on another machine has its id, and a path of its own.
Deployments of earlier versions have the path alone, which then decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchline.pipeline.workspace.files import workspace_identity
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder

FOLDER = "patchline.folder"
ID = workspace_identity.LABEL


def of(folder: Path) -> dict[str, str]:
    """Return the labels of what belongs to a folder; without an id if it has no workspace."""
    identity = workspace_identity.read(folder / WORKSPACE)
    return {FOLDER: str(folder.resolve()), **({ID: identity.id} if identity else {})}


def with_id(folder: Path) -> dict[str, str]:
    """Return the labels of a folder, whose workspace is created if there is none.

    Raises:
        StorageError: if it cannot be created.
    """
    with storage_errors(folder / WORKSPACE):
        make_folder(folder / WORKSPACE)
    return of(folder)


def are_of(labels: Mapping[str, Any], folder: Path) -> bool:
    """Return whether labels are those of a folder."""
    own = of(folder)
    return labels.get(FOLDER) == own[FOLDER] and labels.get(ID) in (None, own.get(ID))
