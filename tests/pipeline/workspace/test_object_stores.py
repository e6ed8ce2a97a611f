"""What the stores of objects on servers do, and say."""

from __future__ import annotations

import os
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from patchline.pipeline.errors import ConfigError, DataError, PipelineError, StorageError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.workspace import chosen, remote_data
from patchline.pipeline.workspace.address import is_address, parse_address
from patchline.plugin_api import ConflictError
from patchline.plugin_checks import checks_of
from patchline.plugins.stores import objects as remote_store
from patchline.plugins.stores.objects import RemoteStore
from tests.google_server import google_server
from tests.object_server import Fault, FaultyConnection
from tests.patience import patient


def test_a_server_keeps_the_contract(bucket: str) -> None:
    """A server that speaks S3's protocol does what every store does; nothing of it is left."""
    address = f"s3://{bucket}/team/a"
    plugin = replace(plugin_loader.load_store("s3"), example=lambda _folder: address)
    results = [check.result() for check in checks_of(plugin)]
    assert len(results) == 9
    assert [each.message for each in results if each.status == "failed"] == []
    store = RemoteStore(parse_address(address, "x"), patience_seconds=3)
    assert list(store.list("")) == []
    store.write("mine", b"1")
    failed = [check.result().message for check in checks_of(plugin)][5:]
    assert all(message.startswith(f"There are objects at {address}.") for message in failed)
    assert store.read("mine") is not None


def test_google_takes_conditional_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a condition is the number of a version, which comes with what was read or written."""
    with google_server() as server:
        for name in [each for each in os.environ if each.startswith("GOOGLE_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", server.key)
        monkeypatch.setattr(remote_store, "_endpoint", lambda _: server.url)
        store = RemoteStore(parse_address("gs://bucket/team", "x"), patience_seconds=3)
        first = store.write("split", b"1", if_absent=True)
        with pytest.raises(ConflictError):
            store.write("split", b"2", if_absent=True)
        store.write("split", b"2", if_match=first)
        with pytest.raises(ConflictError):
            store.write("split", b"3", if_match=first)


@pytest.fixture
def slow(
    connection: FaultyConnection, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[RemoteStore, FaultyConnection]:
    """Return a store with a patience of a second, and the connection to it."""
    monkeypatch.setattr(remote_store, "_LEAST_SECONDS", 0.5)
    monkeypatch.setattr(remote_store, "_UPLOAD_PATIENCE", 1)
    return RemoteStore(parse_address(f"s3://{bucket}", "x"), patience_seconds=1), connection


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("slow_down", StorageError, "has limited the rate of requests"),
        ("denied", StorageError, "may not be written with these credentials"),
        ("wrong_key", ConfigError, "does not accept the credentials"),
        ("hang_up", StorageError, "cannot be reached"),
    ],
)
def test_what_a_server_answers_is_one_sentence(
    fault: Fault,
    kind: type[PipelineError],
    words: str,
    slow: tuple[RemoteStore, FaultyConnection],
) -> None:
    """Each kind of failure has a sentence, with the address and what helps."""
    store, connection = slow
    connection.fault, connection.methods = fault, ("PUT",)
    with pytest.raises(kind, match=rf"^{store.uri} {words}.*\.$") as caught:
        store.write("a", b"1")
    assert "\n" not in str(caught.value)
    assert "bucket-on-loopback" not in str(caught.value)


def test_new_credentials_are_read_when_the_old_ones_are_refused(
    connection: FaultyConnection, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running command uses what the file holds by then; without a change, it says what is wrong.

    The answer to a HEAD has no reason, which is asked for by another request.
    """
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    write("first")
    store = RemoteStore(parse_address(f"s3://{bucket}", "x"), patience_seconds=3)
    store.write("a", b"1")
    connection.fault, connection.methods, connection.count = "wrong_key", ("GET", "HEAD"), 2
    write("second")
    info = store.info("a")
    assert info is not None
    assert info.bytes == 1
    connection.count = 1
    with pytest.raises(ConfigError, match="does not accept the credentials"):
        list(store.list(""))
    connection.count = 1
    write("third")
    assert [each.key for each in store.list("")] == ["a"]


@pytest.mark.parametrize("fault", ["slow_down", "hang_up"])
def test_what_passes_by_itself_is_repeated(
    fault: Fault, slow: tuple[RemoteStore, FaultyConnection]
) -> None:
    """Throttling and a lost connection are waited for; a conditional write still counts once."""
    connection, store = slow[1], RemoteStore(parse_address(slow[0].uri, "x"), patience_seconds=20)
    connection.fault, connection.methods, connection.count = fault, ("PUT", "GET"), 3
    store.write("a", b"1", if_absent=True)
    content = store.read("a")
    assert content is not None
    assert content.data == b"1"
    assert connection.count < 0


@pytest.mark.slow
def test_a_long_download_survives_broken_connections(
    slow: tuple[RemoteStore, FaultyConnection], tmp_path: Path
) -> None:
    """What takes longer than the patience arrives, as long as something arrives within it."""
    store, connection = slow
    data = random.Random(0).randbytes(6 << 20)  # noqa: S311 - any bytes
    store.write("large", data)
    connection.seen.clear()
    connection.rate, connection.hangs_up_after = 4e6, 13 << 17
    assert store.download("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert len(connection.seen) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("action", ["download", "upload"])
def test_a_transfer_that_stalls_fails(
    slow: tuple[RemoteStore, FaultyConnection], tmp_path: Path, action: str
) -> None:
    """Once nothing arrives any more, the patience is short, however much has arrived before."""
    store, connection = slow
    file = tmp_path / "large"
    file.write_bytes(bytes(5 << 20))
    store.upload(file, "large")
    connection.stalls_after = 13 << 19
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot be reached.*timed out"):
        store.download("large", file) if action == "download" else store.upload(file, "large")
    assert time.monotonic() - began < patient(10)


@pytest.mark.parametrize("key", ["photos//a.jpg", 'photos/"a"/../b.png'])
def test_a_key_that_is_no_path_is_named(bucket: str, key: str) -> None:
    """It keeps the others from being listed, and is no matter of the network."""
    boto3.client("s3").put_object(Bucket=bucket, Key=key)
    words = re.escape(f"the object {key!r} in the bucket {bucket} has an empty part or dots")
    with pytest.raises(DataError, match=words):
        list(RemoteStore(parse_address(f"s3://{bucket}/photos", "x"), patience_seconds=3).list(""))


@pytest.mark.usefixtures("bucket")
def test_missing_credentials_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys in the environment, in `~/.aws` or of the machine, nothing is asked."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(
        ConfigError, match=r"^There are no credentials for s3://bucket/b\. Set AWS_ACC"
    ):
        RemoteStore(parse_address("s3://bucket/b", "--workspace"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/team", "holds more than a bucket and a path"),
        (
            "s3://bucket/team?token=secret",
            r"is s3://bucket/team\?…, .* Give s3://bucket/team ",
        ),
        ("s3://bucket/a#b.png", "is s3://bucket/a#…, but no query, "),
        ("s3://bucket/../other", "an empty part or dots"),
        ("s3://ab", "no bucket has the name 'ab': names have 3 to 63 lowercase"),
        ("gs://key:secret@bucket/x", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://key:secret@bucket/x", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("https://key:secret@host/x", "https://…, which is not an address of an object store"),
        ("s3://[x/y", "which is not an address"),
    ],
)
def test_a_wrong_address_is_refused(text: str, words: str) -> None:
    """A sentence says what is wrong, and shows no secret."""
    with pytest.raises(ConfigError, match=words) as caught:
        parse_address(text, "--workspace")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("s3:/bucket/team", "s3://bucket/team"),
        ("s3:bucket/team", "s3://bucket/team"),
        ("gcs:/bucket", "gs://bucket"),
        ("s3:/key:secret@bucket/team", "s3://bucket/path"),
    ],
)
def test_a_mistyped_address_is_no_folder(text: str, meant: str) -> None:
    """The sentence has the address that was probably meant, whatever it is given for."""
    for read in (lambda: chosen.use(text), lambda: remote_data.kind(text)):
        with pytest.raises(ConfigError, match=f"Write {meant}, if") as caught:
            read()
        assert "secret" not in str(caught.value)
    Path(text.partition("@")[0]).mkdir(parents=True)
    if "@" not in text:
        assert remote_data.kind(text) == "folder"


def test_addresses_have_one_spelling(tmp_path: Path) -> None:
    """Slashes at the end and other names of a scheme make no difference.

    A folder is what is written if it exists, else what is decoded.
    """
    for name in ("a%20b", "a b", "c d#1?"):
        (tmp_path / name).mkdir()
    uris = (f"file://{tmp_path}/{name}" for name in ("a%20b", "c%20d#1?", "new"))
    folders = [str(tmp_path / name) for name in ("a%20b", "c d#1?", "new")]
    assert [parse_address(uri, "x").prefix for uri in uris] == folders
    assert str(parse_address("s3a://bucket/team/", "x")) == str(
        parse_address("S3://bucket/team", "x")
    )
    assert str(parse_address(" s3://bucket/team ", "x")) == "s3://bucket/team"
    assert str(parse_address("file:///mnt/team", "x")) == "file:///mnt/team"
    assert is_address("s3://bucket")
    for text in ("C:\\photos", "photos", "torchvision:CIFAR10"):
        assert not is_address(text)
