"""The command `patchline clean`."""

from __future__ import annotations

from collections.abc import Sequence

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, Switch, emit
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory.cleaning import (
    Cleaning,
    Removable,
    RemovableObject,
    find_removable,
    remove,
)

Gone = Sequence[Removable | RemovableObject]
_KINDS = {
    "checkpoint": "checkpoints of finished runs, which only `run --extend` needs",
    "store": "decoded images that no resumable run and no model's latest run uses",
    "features": "features of frozen models that no such run uses",
    "predictions": "predictions of teachers that no such run uses",
    "object": "objects on the store that nothing refers to, and checkpoints of finished runs",
}


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
    summary = _summary(cleaning, gone, removed=yes)
    emit(summary, *_lines(cleaning, gone, removed=yes), as_json=as_json)


def _summary(
    cleaning: Cleaning, gone: Sequence[Removable | RemovableObject], *, removed: bool
) -> dict[str, object]:
    return {
        "bytes": _bytes(gone),
        "files": sum(each.files for each in gone),
        "removed": removed,
        "items": [each.model_dump(mode="json") for each in gone],
        "kept": {
            "resumable_runs": cleaning.resumable_runs,
            "unknown_runs": cleaning.unknown_runs,
            "active_runs": cleaning.active_runs,
            "leases": cleaning.leases,
        },
    }


def _lines(
    cleaning: Cleaning, gone: Sequence[Removable | RemovableObject], *, removed: bool
) -> list[str]:
    lines = []
    for kind, meaning in _KINDS.items():
        of_kind = [each for each in gone if each.kind == kind]
        if of_kind:
            lines.append(f"{_size(_bytes(of_kind)):>11}  {meaning}:")
        lines += [f"  {_size(each.bytes):>9}  {each.path}" for each in of_kind]
    lines += _kept(cleaning)
    files = f"{counted(sum(each.files for each in gone), 'file')}, {_size(_bytes(gone))}"
    if removed:
        lines.append(f"Removed {files}.")
    elif gone:
        lines.append(f"{files}. Nothing was removed; `patchline clean --yes` frees the space.")
    else:
        lines.append("There is nothing to remove.")
    return lines


def _bytes(removable: Gone) -> int:
    return sum(each.bytes for each in removable)


def _kept(cleaning: Cleaning) -> list[str]:
    lines = []
    if cleaning.resumable_runs:
        runs = counted(cleaning.resumable_runs, "interrupted run")
        lines.append(f"Kept: everything that {runs} can be resumed with.")
    if cleaning.unknown_runs:
        runs = counted(cleaning.unknown_runs, "run folder")
        lines.append(f"Kept: {runs} that this MLflow store does not know.")
    if cleaning.active_runs:
        runs = counted(cleaning.active_runs, "active run")
        lines.append(f"Kept: decoded images and features, because of {runs}.")
    if cleaning.leases:
        runs = counted(cleaning.leases, "active run")
        lines.append(f"Kept: contents of the store without a name, because of {runs}.")
    return lines


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"  # noqa: PLR2004 - a billion
