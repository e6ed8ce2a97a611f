"""A job and its results travel between machines that share nothing but the store of a workspace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest

from patchline.pipeline.errors import WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE, paths_of
from patchline.pipeline.workers.launcher import WorkerTask
from patchline.pipeline.workers.worker_parts import read_lines, write_lines
from patchline.pipeline.workspace import chosen, remote_data
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugins.launchers import remote_job
from patchline.plugins.launchers.remote_job import ReceivedJob, SentJob, enter_workspace
from tests.conftest import contents
from tests.patience import until


class Job(FrozenModel):
    store: Path
    model: Path
    folder: Path
    table: Path
    images: Annotated[Path, SAME_PLACE]
    workspace: Path


def share(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Work in a shared workspace at this address; the node keeps its caches in `node`."""
    (tmp_path / "a").mkdir()
    monkeypatch.setenv(remote_job.NODE_FOLDER_VARIABLE, str(tmp_path / "node"))
    monkeypatch.delenv(chosen.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path / "a")
    chosen.use(address)
    assert chosen.find_shared_files() is not None
    return address


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a shared workspace, which is a folder."""
    (tmp_path / "team").mkdir()
    return share((tmp_path / "team").as_uri(), tmp_path, monkeypatch)


@contextlib.contextmanager
def node(uri: str) -> Iterator[Path]:
    """Work as another machine, and yield its folder `.patchline`."""
    with contextlib.chdir("."), contextlib.ExitStack() as held:
        held.push(remote_job._held.pop_all())
        yield enter_workspace(uri)
        remote_job._held.close()


def sent_job(folder: Path, job: FrozenModel) -> SentJob:
    """Write a job into a folder, and send it."""
    (folder / "job.json").write_text(job.model_dump_json())
    named = paths_of(job)
    return SentJob(WorkerTask("m", folder, files=named.files, same_place=named.same_place))


def job_of(tmp_path: Path) -> SentJob:
    """Send the job of a fit, as the machine of a run has it."""
    workspace = WORKSPACE.resolve()
    for name, content in {
        "prepared/x/images.npy": "pixels",
        "runs/r/training/best-1/model": "old weights",
        "runs/r/training/worker.log": "lines of before\n",
        "runs/r/training/events.jsonl": '{"seq": 0}\n{"half',
    }.items():
        write_text(workspace / name, content)
    (tmp_path / "model.onnx").write_text("a model elsewhere")
    folder = workspace / "runs/r/training"
    job = Job(
        store=workspace / "prepared/x",
        model=tmp_path / "model.onnx",
        folder=folder,
        table=workspace / "runs/r/table.parquet",
        images=tmp_path / "photos",
        workspace=workspace,
    )
    assert paths_of(job).same_place == (tmp_path / "photos",)
    return sent_job(folder, job)


def work(received: ReceivedJob, place: Path) -> None:
    """Do what a worker does."""
    job = Job.model_validate_json((received.folder / "job.json").read_text())
    assert received.folder == place / "runs/r/training" == job.folder
    assert (job.store / "images.npy").read_text() == "pixels"
    assert (job.model.name, job.model.read_text()) == ("model.onnx", "a model elsewhere")
    assert (job.workspace, job.images.name) == (place, "photos")
    assert (received.folder / "events.jsonl").read_text() == '{"seq": 0}\n'
    received.report()
    picture = received.folder / "picture.png"
    picture.write_text("a picture")
    with (received.folder / "events.jsonl").open("a") as events:
        event = {"seq": 1, "kind": "artifact", "path": str(picture), "name": "picture.png"}
        events.write(json.dumps(event) + "\n")
    (received.folder / "worker.log").write_text("a line\n")
    (received.folder / "best-1/model").unlink()
    write_text(received.folder / "best-2/model", "new weights")
    write_text(place / "teacher/answers.npy", "answers")
    job.table.write_text("a table")
    result = {"best": str(received.folder / "best-2"), "answers": str(place / "teacher")}
    (received.folder / "result.json").write_text(json.dumps({"result": result}))


def test_a_job_is_done_elsewhere(tmp_path: Path, uri: str) -> None:
    """Inputs arrive, events with their files come back as they are written, results afterwards."""
    workspace = WORKSPACE.resolve()
    training, sent = workspace / "runs/r/training", job_of(tmp_path)
    with node(uri) as place:
        assert place.is_relative_to(tmp_path / "node")
        received = ReceivedJob(sent.name)
        work(received, place)
        until(lambda: bool(received._ready), "nothing has grown", seconds=20)
        grown = received.grown()
        assert grown is not None
        assert not received.is_sent
        received.end()
        until(lambda: received.is_sent, "the result is not sent", seconds=20)
        assert received.error == ""
        received.remove()
        assert (place / "prepared/x/images.npy").exists()
        assert not received.folder.exists()
    assert not (training / "picture.png").exists()
    sent.grow(grown)
    [before, event] = map(json.loads, (training / "events.jsonl").read_text().splitlines())
    assert (before["seq"], event["seq"]) == (0, 1)
    assert Path(event["path"]) == training / "picture.png"
    sent.take_result()
    result = json.loads((training / "result.json").read_text())["result"]
    assert Path(result["answers"]).is_relative_to(workspace)
    for file, text in {
        training / "picture.png": "a picture",
        training / "worker.log": "lines of before\na line\n",
        Path(result["best"], "model"): "new weights",
        Path(result["answers"], "answers.npy"): "answers",
        workspace / "runs/r/table.parquet": "a table",
    }.items():
        assert file.read_text() == text
    assert not (training / "best-1").exists()
    sent.forget()
    shared = chosen.find_shared_files()
    assert shared is not None
    assert shared.names("jobs/") == []


def test_what_was_damaged_on_the_way_is_not_used(tmp_path: Path, uri: str) -> None:
    """An input by the node, a result by the machine of the run."""
    sent = job_of(tmp_path)
    for file in (tmp_path / "team/files").rglob("*"):
        if file.is_file() and file.read_text() == "pixels":
            file.write_text("pixelz")
    with node(uri), pytest.raises(WorkerError, match="is damaged"):
        ReceivedJob(sent.name)
    with pytest.raises(WorkerError, match="AWS_ENDPOINT_URL"):
        sent.take_result()


def test_each_process_of_a_node_has_a_cache_of_its_own(tmp_path: Path, uri: str) -> None:
    """What a killed one has left of jobs is gone, decoded images stay, and no one has both."""
    with node(uri) as first:
        (first / "prepared/x").mkdir(parents=True)
        (first / "runs/r").mkdir(parents=True)
        with contextlib.chdir(tmp_path):
            second = enter_workspace(uri)
        assert first != second
    with node(uri) as again:
        assert again == first
        assert (again / "prepared/x").is_dir()
        assert not (again / "runs").exists()


class Listed(FrozenModel):
    images: Annotated[Path, SAME_PLACE]
    archive: Annotated[Path, SAME_PLACE]
    files: Path


def test_a_node_downloads_the_listed_images_of_a_bucket(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative and absolute ones, and archives as a whole; no others."""
    team = share(f"s3://{bucket}/team", tmp_path, monkeypatch)
    store = chosen.open_store(parse_address(f"s3://{bucket}/data", "-"))
    for key in ("photos/cat/1.png", "photos/cat/2.png", "photos/dog/ü.png", "other/3.png", "a.zip"):
        store.write(key, key.encode())
    images, other, archive = (
        Path(remote_data.local_path(f"s3://{bucket}/data/{name}"))
        for name in ("photos", "other", "a.zip")
    )
    folder = WORKSPACE.resolve() / "part-0"
    lines = [["cat/2.png", "cat"], ["dog/ü.png", "dog"], [str(other / "3.png"), None]]
    files = write_lines(folder / "files.jsonl", lines)
    sent = sent_job(folder, Listed(images=images, archive=archive, files=files))
    with node(team) as place:
        received = ReceivedJob(sent.name)
        there = Listed.model_validate_json((received.folder / "job.json").read_text())
        top = place / f"sources/objects/s3/{bucket}/data"
        assert (there.images, there.archive) == (top / "photos", top / "a.zip")
        assert contents(top).keys() == {
            "photos/cat/2.png",
            "photos/dog/ü.png",
            "other/3.png",
            "a.zip",
        }
        assert Path(list(read_lines(there.files))[2][0]).read_text() == "other/3.png"
