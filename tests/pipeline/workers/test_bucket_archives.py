"""Shards and other archives in a bucket, read by a node as the machine of the run reads them."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config_files import requested
from patchline.pipeline.data.manifests.describing_job import DescribingJob
from patchline.pipeline.data.manifests.describing_processes import Files, rows_in_process
from patchline.pipeline.data.manifests.describing_worker import describe_part
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.data.reading.image_root import archive_of
from patchline.pipeline.errors import StorageError
from patchline.pipeline.files.placeholders import FOLDER
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import stays_here
from patchline.pipeline.workers.part_files import read_lines, write_lines
from patchline.pipeline.workers.remote_job import ReceivedJob
from patchline.pipeline.workspace import cache, chosen
from patchline.pipeline.workspace.address import parsed
from patchline.pipeline.workspace.remote_ranges import PART_BYTES
from patchline.plugin_api import ImageListing
from tests.conftest import write_photos
from tests.object_server import FaultyConnection, ObjectServer, faulty_connection
from tests.pipeline.workers.test_remote_job import node, sent_job, share
from tests.pipeline.workers.wide_launcher import Wide
from tests.plugins.test_webdataset_source import samples, shard_of

_LARGE = random.Random(0).randbytes(2 * PART_BYTES)  # noqa: S311 - cannot be compressed


@pytest.fixture
def connection(
    objects: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyConnection]:
    """Return a connection to a bucket, on which the machine of a run has its workspace."""
    with faulty_connection(objects) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        share(bucket, tmp_path, monkeypatch)
        yield made


def put(bucket: str, file: Path, key: str) -> str:
    """Write a file as an object, and return its address."""
    chosen.opened(parsed(f"s3://{bucket}", "-")).upload(file, key)
    return f"s3://{bucket}/{key}"


def put_shards(bucket: str, tmp_path: Path, mode: str) -> str:
    """Write two shards of four images each, the first and the last of which are 2 MiB apart."""
    for number in range(2):
        photos = write_photos(tmp_path / f"photos-{number}", classes=2, images=2, side=30 + number)
        members = {f"{number}-{name}": data for name, data in samples(photos).items()}
        first, last = (dict(list(members.items())[part]) for part in (slice(6), slice(6, None)))
        shard = shard_of(tmp_path / "shard", {**first, "filler.bin": _LARGE, **last}, mode)
        suffix = ".gz" if mode.endswith("gz") else ""
        put(bucket, shard, f"shards/{number:06d}.tar{suffix}")
    return f"s3://{bucket}/shards"


def listed(path: str, **data: str) -> ImageListing:
    """List the images of a path, as a run does."""
    config = requested(path, preset_name="none", flags={"data": data})
    return listing_of(config, WORKSPACE.resolve())


def send_description(root: Path, files: Files) -> str:
    """Send the job to describe files, and return its name."""
    folder = WORKSPACE.resolve() / "part-0"
    listed_files = write_lines(folder / "files.jsonl", files)
    job = DescribingJob(root=root, files=listed_files, rows=folder / "rows.jsonl")
    return sent_job(folder, job).name


def described(name: str) -> list[Any]:
    """Do a job on this node, and return the rows that it has written."""
    received = ReceivedJob(name)
    job = DescribingJob.model_validate_json((received.folder / "job.json").read_text())
    assert job.root.is_relative_to(WORKSPACE.resolve())
    describe_part(job, EventWriter(received.folder / "events.jsonl"))
    return list(read_lines(job.rows))


def rows_here(root: Path, files: Files) -> list[Any]:
    """Return the rows that this machine writes, as JSON."""
    rows: list[Any] = json.loads(json.dumps(list(rows_in_process(root, files))))
    assert {row["status"] for row in rows} == {"ok"}
    return rows


def is_read_here(root: Path) -> bool:
    """Return whether a launcher of nodes far away leaves a root to this machine."""
    wide = Wide()
    wide.is_far = True
    with active_launcher.using("far", lambda: wide):
        return stays_here(root, ())


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_node_reads_the_shards_of_its_part(
    connection: FaultyConnection, bucket: str, tmp_path: Path, mode: str
) -> None:
    """By ranges, or a compressed one as a whole; rows are those of one machine.

    If a shard has changed since, that is an error: rows of two states are never mixed.
    """
    there = listed(put_shards(bucket, tmp_path, mode))
    suffix = ".gz" if mode.endswith("gz") else ""
    first, second = (
        [(each, True) for each in there.images if each.path.startswith(f"00000{number}.tar")]
        for number in range(2)
    )
    assert (len(there.images), len(second)) == (8, 4)
    expected = rows_here(there.root, second)
    assert not is_read_here(there.root)
    name = send_description(there.root, second)
    with node(f"s3://{bucket}/team") as place:
        connection.received = 0
        assert described(name) == expected
        assert connection.received < (2.2 if suffix else 1.3) * PART_BYTES
        connection.received = 0
        assert described(name) == expected
        assert connection.received < 0.1 * PART_BYTES
        present = [each.name for each in (place / FOLDER).rglob("0*") if each.is_file()]
        assert present == ([] if suffix else ["000001.tar"])
    name = send_description(there.root, first)
    put(bucket, tmp_path / "shard", f"shards/000000.tar{suffix}")
    words = rf"{bucket}/shards/000000\.tar{suffix} has changed or was deleted while it was read"
    with node(f"s3://{bucket}/team"), pytest.raises(StorageError, match=words):
        described(name)


def test_a_node_reads_a_tar_whose_names_have_an_encoding(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compressed, so it is decompressed there, and goes when the cache is full."""
    share(bucket, tmp_path, monkeypatch)
    photos, file = write_photos(tmp_path / "Bäume", classes=2, images=2), tmp_path / "trees.tar.gz"
    with tarfile.open(file, "w:gz", encoding="cp1252", format=tarfile.GNU_FORMAT) as tar:
        tar.add(photos, photos.name)
    there = listed(put(bucket, file, file.name), name_encoding="cp1252")
    assert there.root.parts[-1] == "Bäume"
    assert not is_read_here(there.root)
    files = [(each, True) for each in there.images]
    expected = rows_here(there.root, files)
    name = send_description(there.root, files)
    with node(f"s3://{bucket}/team") as place:
        assert described(name) == expected
        [unpacked] = place.glob("sources/archive/*.tar")
        monkeypatch.setenv(cache.VARIABLE, "1kB")
        assert unpacked in {each.path for each in cache.shrink().removed}
        assert not unpacked.exists()


def test_shards_on_a_disk_are_read_by_the_machine_that_has_them(tmp_path: Path) -> None:
    """Whether other nodes have them is unknown here; compressed ones, too."""
    photos = write_photos(tmp_path / "photos", classes=2, images=2)
    for mode, suffix in (("w", ""), ("w:gz", ".gz")):
        shard_of(tmp_path / f"shards{suffix}/000000.tar{suffix}", samples(photos), mode)
        there = listed(str(tmp_path / f"shards{suffix}"))
        assert archive_of(there.root) == there.root
        assert is_read_here(there.root)
