"""A worker without its data says what to do, also where its data is made by the run's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.manifests.describing_job import DescribingJob
from patchline.pipeline.data.manifests.describing_worker import describe_part
from patchline.pipeline.errors import DataError
from patchline.pipeline.workers.event_log import EventWriter


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
    job = DescribingJob(root=Path(root), files=tmp_path / "files", rows=tmp_path / "rows")
    with pytest.raises(DataError, match=words):
        describe_part(job, EventWriter(tmp_path / "events.jsonl"))
