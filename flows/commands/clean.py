"""The command `patchline clean`."""

from __future__ import annotations

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, Switch, emit, terminal_lines
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory.cleaning import find_removable, remove


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
