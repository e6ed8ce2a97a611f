"""The commands `patchline workspace export` and `import`, and `patchline clean`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, Switch, emit, terminal_lines
from patchline.flows.progress.progress_display import display, show_progress
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory.cleaning import find_removable, remove


def export(
    file: Path, /, *, with_caches: Annotated[Switch, Parameter()] = False, as_json: Json = False
) -> None:
    """Write the workspace of this folder into one archive, for a backup or another machine.

    Parameters
    ----------
    file
        The archive to write, a tar file. It must not exist.
    with_caches
        Include decoded images and scans, which the next run makes again from the images.
    """
    from patchline.pipeline.workspace.relocation import workspace_archive

    with show_progress():
        display().stage(f"Exporting the workspace {Path.cwd()}")
        contents = workspace_archive.export(
            Path.cwd().resolve(), file.absolute(), _megabytes, caches=with_caches
        )
        elsewhere = workspace_archive.store_elsewhere(Path.cwd().resolve())
        cached = chosen.read_cached_address(WORKSPACE)
    size = file.stat().st_size
    summary = contents.model_dump(mode="json", exclude={"members", "format"})
    answer = {"file": str(file.resolve()), "bytes": size, "files": len(contents.members)}
    answer |= {"runs_elsewhere": elsewhere, "cache_of": str(cached) if cached else ""}
    lines = terminal_lines(
        "workspace_export.txt.j2", __package__, file=file, contents=contents, answer=answer
    )
    emit({**answer, **summary}, *lines, as_json=as_json)


def restore(file: Path, folder: Path | None = None, /, *, as_json: Json = False) -> None:
    """Restore a workspace from an archive into an empty folder.

    Parameters
    ----------
    file
        Written by `patchline workspace export`.
    folder
        Empty, or created; without it, the working directory.
    """
    from patchline.flows.prefect_api import prefect_database
    from patchline.pipeline.workspace.relocation import following, workspace_archive

    target = (folder or Path()).resolve()
    with show_progress():
        display().stage(f"Restoring {file} into {target}")
        contents = workspace_archive.restore(file.absolute(), target, _megabytes)
        before = Path.cwd()
        try:
            os.chdir(target)
            prefect_database.make_key()
            following.follow()
        finally:
            os.chdir(before)
    summary = contents.model_dump(mode="json", exclude={"members", "format"})
    emit(
        {"imported": str(target), "files": len(contents.members), **summary},
        f"Restored {counted(contents.runs, 'run')} and "
        f"{counted(contents.models, 'registered model')} of {contents.folder} into {target}.",
        as_json=as_json,
    )


def _megabytes(label: str, done: int, total: int) -> None:
    display().advance(label, done // 1_000_000, max(1, total // 1_000_000), unit="MB")


def clean(*, yes: Switch = False, as_json: Json = False) -> None:
    """List files that no version, resumed run or repeated run needs; --yes removes them.

    Parameters
    ----------
    yes
        Remove what is listed. Without it, nothing is removed.
    """
    tell_closed()
    cleaning = find_removable(WORKSPACE)
    gone = remove(WORKSPACE, cleaning) if yes else cleaning.removable
    summary = {
        "bytes": sum(each.bytes for each in gone),
        "files": sum(each.files for each in gone),
        "removed": yes,
        "items": [each.model_dump(mode="json") for each in gone],
        "kept": cleaning.model_dump(exclude={"removable"}),
    }
    lines = terminal_lines(
        "clean.txt.j2", __package__, cleaning=cleaning, gone=gone, summary=summary
    )
    emit(summary, *lines, as_json=as_json)
