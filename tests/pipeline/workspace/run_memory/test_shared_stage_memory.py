"""The results of stages in a shared workspace: what one machine has computed no other computes."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.object_store import FolderStore
from patchline.pipeline.workspace.run_memory.shared_stage_memory import SharedStageMemory
from patchline.pipeline.workspace.shared_files import Reference, SharedFiles
from tests.pipeline.workspace.run_memory.test_stage_memory import SAME, Made, recall
from tests.pipeline.workspace.run_memory.test_stage_memory import work as work_in

work = functools.partial(work_in, elsewhere=None)


def on_machine(
    tmp_path: Path, name: str, run: str, notes: list[str] | None = None, *, fresh: bool = False
) -> SharedStageMemory:
    """Return the memory of a run on a machine of its own, in a workspace that all share."""
    said = [] if notes is None else notes
    shared = SharedFiles(FolderStore(tmp_path / "store"), said.append)
    workspace = tmp_path / name / ".patchline"
    memory = SharedStageMemory(workspace, fresh=fresh, shared=shared, on_note=said.append)
    memory.enter(run, workspace / "runs" / run)
    return memory


def test_another_machine_recalls_a_result(tmp_path: Path) -> None:
    """It has the files in its own folder, and the paths of the result lead there.

    Also a run that may use nothing of others finds what it has done elsewhere.
    """
    made = work(on_machine(tmp_path, "a", "first"))
    memory = on_machine(tmp_path, "b", "second")
    recalled = recall(memory)
    assert recalled is not None
    assert memory.run_folder is not None
    assert recalled.folder == memory.run_folder / "bake"
    assert recalled.file.read_bytes() == made.file.read_bytes()
    assert recalled.value == made.value
    assert memory.reused == {"bake": "first"}
    assert not list(tmp_path.rglob("*.part"))
    for run in ("first", "other"):
        fresh = on_machine(tmp_path, "c", run, fresh=True)
        assert (recall(fresh) is not None) is (run == "first")


@pytest.mark.parametrize("part", ["files", "names"])
def test_a_damaged_object_is_computed_again(tmp_path: Path, part: str) -> None:
    """Damage is said, nothing of it is used, and the new result repairs the store."""
    work(on_machine(tmp_path, "a", "first"))
    for file in (tmp_path / "store" / part).rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-4] + b"oops")
    notes: list[str] = []
    memory = on_machine(tmp_path, "b", "second", notes)
    assert recall(memory) is None
    assert any("does not match its checksum" in note for note in notes)
    work(memory)
    assert recall(on_machine(tmp_path, "c", "third")) is not None


def test_a_result_that_was_not_sent_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away when a result was ready; whoever uses the result here makes up for it."""
    memory = on_machine(tmp_path, "a", "first")
    assert memory.shared is not None

    def away(*_: object) -> None:
        raise StorageError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(memory.shared.store, "upload", away)
        with pytest.raises(StorageError):
            work(memory)
    assert recall(on_machine(tmp_path, "b", "second")) is None
    assert recall(on_machine(tmp_path, "a", "first")) is not None  # resumed: nothing is lost
    assert recall(on_machine(tmp_path, "b", "second")) is not None


def test_a_result_that_names_other_places_is_not_used(tmp_path: Path) -> None:
    """A run would log what is there as its own."""
    work_in(on_machine(tmp_path, "a", "first"), elsewhere=Path("/etc"))
    notes: list[str] = []
    assert recall(on_machine(tmp_path, "b", "second", notes)) is None
    assert any("it names /etc, which is outside the workspace" in note for note in notes)


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("prepared/../../../stolen", "x"),
        ("/nowhere/stolen", "x"),
        ("prepared/x", "../../../stolen"),
        ("prepared/x", "..\\..\\stolen"),
        ("runs", "x"),
    ],
)
def test_a_hostile_result_writes_nothing_outside_its_folder(
    tmp_path: Path, folder: str, path: str
) -> None:
    """Whoever may write to the store decides what results are, not what else is on this machine."""
    memory = on_machine(tmp_path, "a", "first")
    work(memory)
    assert memory.shared is not None
    [name] = memory.shared.names("stages/")
    named = memory.shared.lasting(name)
    assert named is not None
    own = named.reference
    files = {**own.files, path: own.files["inside/bread.bin"]}
    memory.shared.replace(
        name, Reference(files=files, value={**own.value, "folder": folder}), named
    )
    notes: list[str] = []
    victim = on_machine(tmp_path, "b", "second", notes)
    write_text(victim.workspace / "runs/mine/last.safetensors", "mine")
    before = {each for each in tmp_path.rglob("*") if each.is_file()}
    if folder == "runs":
        assert victim.recall("bake", SAME, Made) is None
        assert any("runs is no folder of its own" in note for note in notes)
    else:
        with pytest.raises(DataError, match=r"names the path '.*', which (leads out|is abs)"):
            victim.recall("bake", SAME, Made)
    assert (victim.workspace / "runs/mine/last.safetensors").read_text() == "mine"
    assert not [each for each in {*tmp_path.rglob("*")} - before if "stolen" in each.name]
