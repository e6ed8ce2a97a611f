"""Files that machines share: contents by digest, names that stand for them, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.object_store import ConflictError, FolderStore
from patchline.pipeline.workspace.shared_files import MARKER, Reference, SharedFiles, content_key
from patchline.plugins.stores.objects import RemoteStore
from tests.object_server import FaultyConnection


class Machine:
    """A machine with a folder of its own, on a store that it shares with others."""

    def __init__(self, top: Path, name: str) -> None:
        self.notes: list[str] = []
        self.files = SharedFiles(FolderStore(top / "store"), self.notes.append)
        self.files.open()
        self.folder = top / name

    def publish(self, name: str, **texts: str) -> Reference:
        """Write files and publish them."""
        self.folder.mkdir(exist_ok=True)
        for file, text in texts.items():
            (self.folder / file).write_text(text)
        return self.files.publish(name, self.folder, list(texts), {"epochs": 3})

    def fetch(self, name: str) -> dict[str, str] | None:
        """Fetch a name, and return the texts of its files."""
        if self.files.fetch_folder(name, self.folder) is None:
            return None
        return {file.name: file.read_text() for file in sorted(self.folder.iterdir())}


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Machine, Machine]:
    """Return two machines."""
    return Machine(tmp_path, "first"), Machine(tmp_path, "second")


def test_another_machine_has_the_same_files(machines: tuple[Machine, Machine]) -> None:
    """What one publishes another fetches, with what belongs to it; equal contents are kept once."""
    first, second = machines
    first.publish("runs/a", x="same", y="same")
    assert second.fetch("runs/a") == {"x": "same", "y": "same"}
    named = second.files.find("runs/a")
    assert named is not None
    assert named.reference.value == {"epochs": 3}
    assert len(list(first.files.store.list("files/"))) == 1
    assert second.files.names("runs/") == ["runs/a"]
    assert second.fetch("runs/b") is None


def test_a_kill_between_uploads_leaves_no_name(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name appears after its last content, so another machine sees all of it or nothing."""
    first, second = machines
    texts, upload, sent = {"x": "1", "y": "2", "z": "3"}, first.files.store.upload, list[str]()

    def dying(file: Path, key: str) -> None:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(key)
        upload(file, key)

    with monkeypatch.context() as patch:
        patch.setattr(first.files.store, "upload", dying)
        with pytest.raises(KeyboardInterrupt):
            first.publish("runs/a", **texts)
    assert second.files.find("runs/a") is None
    first.publish("runs/a", **texts)
    assert second.fetch("runs/a") == texts


def test_each_damaged_content_is_seen_and_uploaded_again(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Damage is said and nothing of the folder is used; who has the files repairs the store.

    That needs a look at every content, also at those behind the first that is damaged.
    """
    first, second = machines
    texts = {f"y{number}": f"{number:02}" for number in range(9)}
    files = first.publish("runs/a", x="first", **texts).files
    for name in texts:
        (tmp_path / "store" / content_key(files[name].sha256)).write_text("?!")
    assert second.fetch("runs/a") is None
    assert not second.folder.exists()
    assert all(any(f" ({name}) in" in note for note in second.notes) for name in texts)
    assert "does not match its checksum" in second.notes[0]
    Machine(tmp_path, "first").publish("runs/a", x="first", **texts)
    assert second.fetch("runs/a") == {"x": "first", **texts}


def test_of_two_writers_the_slower_hears_of_it(machines: tuple[Machine, Machine]) -> None:
    """A name is replaced only by whoever has seen what it stands for."""
    first, second = (each.files for each in machines)
    first.replace("splits/a", Reference(value={"n": 1}), None)
    seen = first.lasting("splits/a")
    second.replace("splits/a", Reference(value={"n": 2}), second.lasting("splits/a"))
    with pytest.raises(ConflictError):
        first.replace("splits/a", Reference(value={"n": 3}), seen)
    named = first.lasting("splits/a")
    assert named is not None
    assert named.reference.value == {"n": 2}
    # the same value again is no conflict: the answer to an earlier attempt was lost
    first.replace("splits/a", Reference(value={"n": 2}), seen)


@pytest.mark.parametrize("name", ["../outside", "/etc/x", ""])
def test_no_name_leads_out_of_the_store(machines: tuple[Machine, Machine], name: str) -> None:
    """A name is a path in the workspace."""
    with pytest.raises(DataError, match="is no name for files of a workspace"):
        machines[0].files.find(name)


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
    connection: FaultyConnection, bucket: str, condition: str
) -> None:
    """Where one has no effect, machines could overwrite each other's splits: also next time."""
    store = RemoteStore(parse_address(f"s3://{bucket}/team", "--workspace"))
    connection.drops = (f"{condition}:".lower().encode(),)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"ignores conditions on writes \({condition}\)"):
            SharedFiles(store).open()
    assert not list(store.list(""))
    connection.drops = ()
    SharedFiles(store).open()
    assert [each.key for each in store.list("")] == [MARKER]
