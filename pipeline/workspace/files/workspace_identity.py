"""Who a workspace is: a random id and the folder that it was last used in, beside its files.

So a workspace knows that its folder was moved, or that it is a copy:
`patchline.pipeline.workspace.relocation` compares the record with where the record lies. This
module imports nothing heavy; every command reads it.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FILE = "workspace.json"
LABEL = "patchline.workspace_id"
"""Label of what a Prefect server holds of a workspace: the id."""
_MOST_FOLDERS = 20


@dataclass(frozen=True)
class Identity:
    """What a workspace records about itself."""

    id: str
    folder: str
    """The absolute path of the folder that holds `.patchline`, when it was last used."""
    device: int
    inode: int
    """Device and inode of the folder `.patchline`: a moved folder keeps them on its disk, a copy
    does not."""
    earlier: tuple[str, ...] = ()
    """Folders where the workspace lay before, the latest first; a copy has none."""
    copied_from: str = ""
    """The id of the workspace that this one is a copy of."""


def read(workspace: Path) -> Identity | None:
    """Return the record of a workspace; none if it has none that can be read."""
    try:
        content = json.loads((workspace / FILE).read_text(encoding="utf-8"))
        return Identity(
            id=str(content["id"]),
            folder=str(content["folder"]),
            device=int(content["device"]),
            inode=int(content["inode"]),
            earlier=tuple(str(each) for each in content["earlier"]),
            copied_from=str(content["copied_from"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(workspace: Path, identity: Identity) -> None:
    """Write the record of a workspace atomically.

    Raises:
        OSError: if it may not be written.
    """
    temporary = workspace / f".{FILE}.{uuid.uuid4().hex[:8]}.part"
    try:
        text = json.dumps(asdict(identity), indent=2, ensure_ascii=True) + "\n"
        temporary.write_text(text, encoding="ascii")
        temporary.replace(workspace / FILE)
    finally:
        temporary.unlink(missing_ok=True)


def new(workspace: Path, copied_from: str = "") -> Identity:
    """Return a record with a new id for a workspace where it lies now."""
    status = workspace.stat()
    folder = str(workspace.resolve().parent)
    return Identity(uuid.uuid4().hex, folder, status.st_dev, status.st_ino, (), copied_from)


def follow_move(identity: Identity, workspace: Path) -> Identity:
    """Return the record of a workspace that has been moved to where it lies now."""
    now = new(workspace)
    earlier = [folder for folder in (identity.folder, *identity.earlier) if folder != now.folder]
    kept = tuple(dict.fromkeys(earlier))[:_MOST_FOLDERS]
    return replace(now, id=identity.id, earlier=kept, copied_from=identity.copied_from)


def is_at_home(workspace: Path, identity: Identity) -> bool:
    """Return whether a workspace lies where it was last used."""
    status = workspace.stat()
    same_folder = (status.st_dev, status.st_ino) == (identity.device, identity.inode)
    return same_folder and str(workspace.resolve().parent) == identity.folder


def present_path(workspace: Path, path: Path) -> Path:
    """Return where a file lies now that lay in an earlier folder of a moved workspace."""
    identity = read(workspace)
    for folder in identity.earlier if identity else ():
        if path.is_relative_to(folder) and not os.access(path, os.F_OK):
            return workspace.resolve().parent / path.relative_to(folder)
    return path
