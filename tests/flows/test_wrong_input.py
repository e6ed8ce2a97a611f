"""What a user gets wrong is answered in one sentence, with nothing half-made left behind."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.sorting import FlowRunSort

from patchline.pipeline.data.store.store_builds import DRAFT_FILE
from patchline.pipeline.workspace.run_memory import live_runs
from tests.conftest import write_photos
from tests.made.servers import Command
from tests.small_disks import small_disk as mounted


def _refused(
    run_here: Command, *arguments: str | Path, words: Iterable[str], code: int = 2
) -> None:
    """Check for exit code, a single sentence with the words, and no trace."""
    said = run_here.refusal(*arguments, code=code)
    assert not [word for word in words if word not in said], said
    assert re.search(r"^Error: .*[.?]$", said, re.MULTILINE)


def _nothing_left(folder: Path, *, images_were_read: bool = False) -> None:
    """Check that no run, no model and no store was made.

    Args:
        folder: of the command.
        images_were_read: so that the workspace may hold what is known about them.
    """
    assert images_were_read or not (folder / ".patchline").exists()
    assert not (folder / "mlflow.db").exists()
    assert not (folder / "mlruns").exists()
    assert not list(folder.glob(".patchline/runs/*"))
    begun = [f for f in folder.rglob("*") if f.name.endswith(".part") or "building" in f.name]
    assert not [each for each in begun if not (each / DRAFT_FILE).exists()]
    stores = folder.glob(".patchline/prepared/*")
    assert not [each for each in stores if not each.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run no/such/folder", ["no/such/folder", "Check the path"]),
        ("run --training.epochz 3", ["--training.epochz", "--training.epochs"]),
        ("run --training.full-size-from 0.8", ["no longer a setting", "Leave it out"]),
        ("promote x --promotion.max-calibration-error 0.1", ["promotion.maximum.ece"]),
        ("serve x --max-batch 4", ["--max-batch is no longer a setting", "16 images"]),
        ("data inspect --training.epocs 3", ["--training.epocs", "`patchline run`"]),
        ("data inspect --promotion.minimum.accuracy 1", ["`patchline run`"]),
        ("sweep --sweep.first-rung 4", ["no longer a setting", "two rungs"]),
        ("run --training.sampling balanced", ["Set training.class_balance."]),
        ("run --training.refit", ["Set training.final_model."]),
        ("run --training.average-last 3", ["a plan averages the last weights where"]),
        ("run --training.max-epochs 3", ["training.epochs is the maximum in"]),
        ("run --training.epochs 0", ["training.epochs", "0", "from 1 to 100000"]),
        ("run --model.name vti", ["vti", "Did you mean 'vit'"]),
        ("down now please", ["Unexpected argument 'now please'", "--help"]),
        ("run --model.download false", ["Write --model.download=false."]),
        ("run x --rehearse no", ["Write --rehearse=no."]),
        ("run --config none.yaml", ["none.yaml", "does not exist"]),
        ("run --data.options.sise 3", ["--data.options.sise"]),
        ("run --plugin none.py", ["none.py", "does not exist"]),
        ("run --model.patch-embedding.name thick", ["--plugin FILE.py"]),
        ("models roses", ["roses", "No models are registered yet in", "mlflow.db"]),
        ("predict roses@ .", ["roses@", "NAME@ALIAS"]),
    ],
)
def test_a_wrong_command_line_is_answered_at_once(
    run_here: Command, tmp_path: Path, arguments: str, words: list[str]
) -> None:
    """The value, the rule and the remedy stand in one sentence; exit code 2."""
    _refused(run_here, arguments, words=words)
    _nothing_left(tmp_path)


@pytest.mark.usefixtures("prefect_server")  # which spares the run the start of its own
def test_images_of_no_use_are_refused(
    run_here: Command, tmp_path: Path, client: SyncPrefectClient
) -> None:
    """A class whose files are all damaged is named with a file.

    The flow run has failed on the server, for the same reason, without a retry.
    """
    photos = write_photos(tmp_path / "photos", images=6)
    (photos / "broken").mkdir()
    (photos / "broken/a.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut off")
    _refused(run_here, "run", "photos", words=("'broken'", "broken/a.jpg"))
    _nothing_left(tmp_path, images_were_read=True)
    [newest] = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
    assert newest.state is not None
    assert (newest.state.is_failed(), newest.run_count) == (True, 1)
    assert "'broken'" in str(newest.state.message)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a file system of 1 MiB, and work there."""
    with mounted(tmp_path / "disk", mebibytes=1) as place:
        monkeypatch.chdir(place)
        yield place
        with live_runs.owner(tmp_path / "elsewhere"):  # lets go of the lock of a run on the disk
            pass


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_full_disk_ends_the_run_with_a_sentence(
    run_here: Command, tmp_path: Path, small_disk: Path
) -> None:
    """A store that does not fit is an error at run time, and leaves no part of itself."""
    photos = write_photos(tmp_path / "photos", images=50, side=64)
    given = ("run", photos, "--preset=none")
    _refused(run_here, *given, words=("no space left", "Free some"), code=1)
    assert not list(small_disk.glob(".patchline/prepared/[!.]*"))
    assert not list(small_disk.glob(".patchline/prepared/.building*"))


@pytest.mark.usefixtures("prefect_server")
def test_a_read_only_disk_ends_the_run_with_a_sentence(
    run_here: Command, tmp_path: Path, small_disk: Path
) -> None:
    """A folder that may not be written is named."""
    photos = write_photos(tmp_path / "photos", images=6)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    words = (str(small_disk), "may not be written")
    _refused(run_here, "run", photos, "--preset=none", words=words, code=1)
