"""Data that other machines cannot read is named, and archives in buckets are made there."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.manifests.describing import rows_in_process
from patchline.pipeline.data.manifests.describing_worker import DescribingJob, describe_part
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import stays_here
from patchline.pipeline.workers.worker_parts import ROWS_FILE, read_lines, write_lines
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.remote_ranges import PART_BYTES
from patchline.plugin_api import ImageListing
from patchline.plugins.launchers.remote_job import ReceivedJob
from tests.conftest import write_photos
from tests.object_server import FaultyConnection
from tests.pipeline.workers.wide_launcher import Wide
from tests.plugins.test_remote_job import node, sent_job, share
from tests.plugins.test_webdataset_source import samples, shard_of


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("/mnt/photos", r"has no /mnt/photos, where the images are\. Mount it there"),
        ("n/.patchline/sources/objects/s3/b/photos", r"has no n/.patchline/sources/objects/s3/b"),
        ("n/.patchline/sources/webdataset/indexes/1.shards", r"Unpack the data into a folder that"),
        ("n/.patchline/sources/archive/12.tar/flowers", r"(?!.*12\.tar).*\(launcher.shared_folder"),
    ],
)
def test_a_node_without_the_data_says_what_to_do(tmp_path: Path, root: str, words: str) -> None:
    """A folder can be mounted; an index or an unpacked tar of another machine cannot be named."""
    job = DescribingJob(root=Path(root))
    with pytest.raises(DataError, match=words):
        describe_part(job, EventWriter(tmp_path / "events.jsonl"))


_LARGE = random.Random(0).randbytes(2 * PART_BYTES)  # noqa: S311 - cannot be compressed


def listed(path: str) -> tuple[ImageListing, bool]:
    """Return the images of a path, and whether a launcher of nodes far away leaves it here."""
    listing = listing_of(build_config(path, preset_name="none"), WORKSPACE.resolve())
    wide = Wide()
    wide.is_far = True
    with worker_start.use_launcher("far", lambda: wide):
        return listing, stays_here(listing.root, ())


def described(name: str) -> list[Any]:
    """Do a job on this node, and return the rows that it has written."""
    received = ReceivedJob(name)
    job = DescribingJob.model_validate_json((received.folder / "job.json").read_text())
    assert job.root.is_relative_to(WORKSPACE.resolve())
    describe_part(job, EventWriter(received.folder / "events.jsonl"))
    return list(read_lines(received.folder / "described.jsonl"))


@pytest.mark.parametrize(("mode", "suffix"), [("w", ""), ("w:gz", ".gz")])
def test_a_node_reads_the_shards_of_its_part(
    connection: FaultyConnection,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    suffix: str,
) -> None:
    """By ranges, or a compressed one as a whole; rows are those of one machine.

    If a shard has changed since, that is an error: rows of two states are never mixed.
    """
    share(f"s3://{bucket}/team", tmp_path, monkeypatch)
    top = chosen.open_store(parse_address(f"s3://{bucket}", "-"))
    for number in range(2):
        photos = write_photos(tmp_path / f"{number}", classes=2, images=2, side=30 + number)
        members = [(f"{number}-{name}", data) for name, data in samples(photos).items()]
        members.insert(6, ("filler.bin", _LARGE))
        shard = shard_of(tmp_path / "shard", dict(members), mode)
        top.upload(shard, f"shards/{number:06d}.tar{suffix}")
    there, is_read_here = listed(f"s3://{bucket}/shards")
    assert not is_read_here
    assert len(there.images) == 8
    folder, jobs, expected = WORKSPACE.resolve() / "part-0", list[str](), list[Any]()
    for number in range(2):
        prefix = f"{number:06d}.tar"
        files = [(each, True) for each in there.images if each.path.startswith(prefix)]
        expected.append(json.loads(json.dumps(list(rows_in_process(there.root, files)))))
        write_lines(folder / ROWS_FILE, files)
        jobs.append(sent_job(folder, DescribingJob(root=there.root)).name)
    with node(f"s3://{bucket}/team") as place:
        for most in (2.2 if suffix else 1.3, 0.1):
            connection.received = 0
            assert described(jobs[1]) == expected[1]
            assert connection.received < most * PART_BYTES
        present = [each.name for each in (place / FOLDER).rglob("0*") if each.is_file()]
        assert present == ([] if suffix else ["000001.tar"])
    assert [row["status"] for row in expected[1]] == ["ok"] * 4
    top.upload(shard, f"shards/000000.tar{suffix}")
    words = rf"{bucket}/shards/000000\.tar{suffix} has changed or was deleted while it was"
    with node(f"s3://{bucket}/team"), pytest.raises(StorageError, match=words):
        described(jobs[0])


def test_shards_on_a_disk_are_read_by_the_machine_that_has_them(tmp_path: Path) -> None:
    """Whether other nodes have them is unknown here; compressed ones, too."""
    photos = write_photos(tmp_path / "photos", classes=2, images=2)
    for mode, suffix in (("w", ""), ("w:gz", ".gz")):
        shard_of(tmp_path / f"shards{suffix}/000000.tar{suffix}", samples(photos), mode)
        assert listed(str(tmp_path / f"shards{suffix}"))[1]
