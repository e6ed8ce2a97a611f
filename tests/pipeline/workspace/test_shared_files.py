"""Files that machines share: contents by digest, names that stand for them, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.address import parsed
from patchline.pipeline.workspace.folder_store import FolderStore
from patchline.pipeline.workspace.object_store import ConflictError
from patchline.pipeline.workspace.remote_store import RemoteStore
from patchline.pipeline.workspace.shared_files import MARKER, Reference, SharedFiles, content_key
from tests.object_server import ObjectServer, faulty_connection


class Machine:
    """A machine with a folder of its own, on a store that it shares with others."""

    def __init__(self, store: FolderStore, folder: Path) -> None:
        self.notes: list[str] = []
        self.files = SharedFiles(store, self.notes.append)
        self.folder = folder

    def write(self, **texts: str) -> list[str]:
        """Write files and return their names."""
        self.folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        return list(texts)

    def texts(self) -> dict[str, str]:
        """Return the texts of its files."""
        return {file.name: file.read_text() for file in sorted(self.folder.iterdir())}


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Machine, Machine]:
    """Return two machines."""
    first = Machine(FolderStore(tmp_path / "store"), tmp_path / "first")
    second = Machine(FolderStore(tmp_path / "store"), tmp_path / "second")
    first.files.open()
    second.files.open()
    return first, second


def test_another_machine_has_the_same_files(machines: tuple[Machine, Machine]) -> None:
    """What one publishes another fetches, with what belongs to it; equal contents are kept once."""
    first, second = machines
    first.files.publish("runs/a", first.folder, first.write(x="same", y="same"), {"epochs": 3})
    reference = second.files.fetch_folder("runs/a", second.folder)
    assert reference is not None
    assert reference.value == {"epochs": 3}
    assert second.texts() == {"x": "same", "y": "same"}
    assert len(list(first.files.store.list("files/"))) == 1
    assert second.files.names("runs/") == ["runs/a"]
    assert second.files.fetch_folder("runs/b", second.folder) is None


def test_a_kill_between_uploads_leaves_no_name(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name appears after its last content, so another machine sees all of it or nothing."""
    first, second = machines
    names, upload = first.write(x="1", y="2", z="3"), first.files.store.upload
    sent: list[str] = []

    def dying(file: Path, key: str) -> None:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(key)
        upload(file, key)

    monkeypatch.setattr(first.files.store, "upload", dying)
    with pytest.raises(KeyboardInterrupt):
        first.files.publish("runs/a", first.folder, names)
    assert second.files.find("runs/a") is None
    monkeypatch.undo()
    first.files.publish("runs/a", first.folder, names)
    assert second.files.fetch_folder("runs/a", second.folder) is not None
    assert second.texts() == {"x": "1", "y": "2", "z": "3"}


def test_each_damaged_content_is_seen_and_uploaded_again(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Damage is said and nothing of the folder is used; who has the files repairs the store.

    That needs a look at every content, also at those behind the first that is damaged.
    """
    first, second = machines
    texts = {f"y{number:02}": f"{number:02}" for number in range(60)}
    reference = first.files.publish("runs/a", first.folder, first.write(x="1", **texts))
    keys = {name: content_key(reference.files[name].sha256) for name in texts}
    for key in keys.values():
        (tmp_path / "store" / key).write_text("?!")
    assert second.files.fetch_folder("runs/a", second.folder) is None
    assert not second.folder.exists()
    for name, key in keys.items():
        assert any(f"the object {key} ({name}) in" in note for note in second.notes)
    assert "does not match its checksum" in second.notes[0]
    first_again = Machine(FolderStore(tmp_path / "store"), first.folder)
    first_again.files.publish("runs/a", first.folder, ["x", *texts])
    assert second.files.fetch_folder("runs/a", second.folder) is not None


@pytest.mark.parametrize("damage", ["cut", "changed", "no JSON"])
def test_a_damaged_name_is_seen(
    machines: tuple[Machine, Machine], tmp_path: Path, damage: str
) -> None:
    """A name that was cut short or changed stands for nothing, and says so."""
    first, second = machines
    first.files.publish("runs/a", first.folder, first.write(x="1"), {"epochs": 3})
    file = tmp_path / "store/names/runs/a.json"
    text = file.read_text()
    changed = {"cut": text[:-9], "changed": text.replace("epochs", "epoch5"), "no JSON": "?"}[
        damage
    ]
    file.write_text(changed)
    assert second.files.find("runs/a") is None
    assert "does not match its checksum" in second.notes[0]


def test_of_two_writers_the_slower_hears_of_it(machines: tuple[Machine, Machine]) -> None:
    """A name is replaced only by whoever has seen what it stands for."""
    first, second = machines
    first.files.replace("splits/a", Reference(value={"n": 1}), None)
    before = [each.files.lasting("splits/a") for each in machines]
    second.files.replace("splits/a", Reference(value={"n": 2}), before[1])
    with pytest.raises(ConflictError):
        first.files.replace("splits/a", Reference(value={"n": 3}), before[0])
    named = first.files.lasting("splits/a")
    assert named is not None
    assert named.reference.value == {"n": 2}
    # the same value again is no conflict: the answer to an earlier attempt was lost
    first.files.replace("splits/a", Reference(value={"n": 2}), before[0])


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a//b", ""])
def test_no_name_leads_out_of_the_store(machines: tuple[Machine, Machine], name: str) -> None:
    """A name is a path in the workspace."""
    with pytest.raises(DataError, match="is no name for files of a workspace"):
        machines[0].files.find(name)


def test_no_reference_leads_out_of_its_folder(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """A reference that somebody wrote by hand cannot overwrite other files."""
    first, second = machines
    digest = first.files.publish("a", first.folder, first.write(x="1")).files["x"]
    evil = Reference(files={"../stolen": digest})
    first.files.replace("b", evil, None)
    with pytest.raises(DataError, match=r"names the path '\.\./stolen', which leads out"):
        second.files.fetch_folder("b", second.folder)
    assert not (tmp_path / "stolen").exists()
    assert not second.folder.exists()


def test_a_workspace_of_another_format_is_refused(tmp_path: Path) -> None:
    """Neither a newer workspace nor somebody else's file is overwritten."""
    store = FolderStore(tmp_path / "store")
    store.write(MARKER, json.dumps({"format": 99}).encode())
    with pytest.raises(ConfigError, match="has the format 99"):
        SharedFiles(store).open()
    store.write(MARKER, b"something else")
    with pytest.raises(ConfigError, match="was not written by Patchline"):
        SharedFiles(store).open()


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_store_without_conditions_is_refused(
    objects: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    """Where one has no effect, machines could overwrite each other's splits: also next time."""
    with faulty_connection(objects) as connection:
        for name, value in connection.environment.items():
            monkeypatch.setenv(name, value)
        store = RemoteStore(parsed(f"s3://{bucket}/team", "--workspace"))
        connection.drops = (f"{condition}:".lower().encode(),)
        for _ in range(2):
            with pytest.raises(ConfigError, match=rf"ignores conditions on writes \({condition}\)"):
                SharedFiles(store).open()
        assert not list(store.list(""))
        connection.drops = ()
        SharedFiles(store).open()
        assert [each.key for each in store.list("")] == [MARKER]
