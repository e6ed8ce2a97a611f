"""A workspace that may not be written: a read-only disk, or another user's folder.

A command that only reads works on it as it is, and leaves its caches in a temporary folder, which
ends with the command. Every other command is refused. The workspace keeps every byte.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.workspace.files import workspace_folder

READERS = frozenset(
    {"models", "predict", "plugins", "workspace", "down", "notify list"}
    | {"schedule list", "data inspect", "data diff", "data preview"}
)
"""Commands that need not write to the workspace."""


def check(arguments: list[str]) -> None:
    """Refuse a command that writes to the workspace.

    Args:
        arguments: the command line.

    Raises:
        StorageError: if the command writes.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    removes = any(argument.split("=")[0] == "--yes" for argument in arguments)
    dry = "--dry-run" in arguments or (words[:1] == ["clean"] and not removes)
    readers = READERS | {
        command.words
        for tool in tools().usable
        for command in tool.plugin.commands
        if command.reads_only
    }
    if not words or dry or words[0] in readers or " ".join(words[:2]) in readers:
        return
    has_words = words[0] in {"schedule", "data", "notify"}
    command = " ".join(words[:2] if has_words else words[:1])
    raise make_read_only_error(f"patchline {command}{' --yes' if command == 'clean' else ''}")


def make_read_only_error(call: str) -> StorageError:
    """Return the error for a command, or a function of the Python API, that writes."""
    return StorageError(
        f"The workspace {Path.cwd()} may not be written, and `{call}` writes to it. "
        "Make it writable, or copy it (`cp -r`, or `patchline workspace export FILE`) to a folder "
        "of yours and work there."
    )


def enter() -> str:
    """Let this command read the workspace of the working directory; return what to say."""
    here = Path.cwd()
    workspace_folder.use_scratch(_scratch(here))
    return f"The workspace {here} is read-only: this command records nothing in it."


@functools.cache
def _scratch(here: Path) -> Path:  # noqa: ARG001 - a folder for each workspace
    """Return where this process keeps its caches of a workspace."""
    folder = Path(tempfile.mkdtemp(prefix="patchline-read-only-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
