"""Two nodes of a Ray cluster: one run with the weights of one machine, whatever is killed.

What the nodes share is an object store, or a folder. The last test leaves no cluster.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from patchline.pipeline.data import ingestion
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.workers.event_log import read_events
from patchline.pipeline.workspace.files.placeholders import placeholder
from tests.patience import patient, until
from tests.pipeline.training.processes.conftest import ON_TWO_NODES
from tests.pipeline.training.processes.ray_nodes import Cluster
from tests.pipeline.training.processes.training_ranks import let_ranks_do
from tests.pipeline.training.trained_jobs import Make, same

pytestmark = [pytest.mark.slow, ON_TWO_NODES]
MODEL = ("--model.depth", "1", "--model.embed-dim", "32", "--model.num-heads", "2")
TRAINING = (
    *("--preset", "none", "--training.epochs", "1", "--training.batch-size", "128"),
    *("--training.processes", "2", "--training.precision", "float32", "--training.threads", "1"),
)
WITHOUT = (
    *("--evaluation.no-explanations", "--promotion.no-package-check"),
    "--data.no-mirror-symmetric",
)
PHOTOS = 4100
"""From 4,000 on, reading is divided."""
SHARDS = 7
ARCHIVED = 1500
"""Photos in an archive, which are worth three processes that predict."""
ON_STORE = "s3://nodes/photos"


def patchline(cluster: Cluster, *words: str) -> str:
    """Run a command on the first node; return its lines."""
    main = "from patchline.flows.command_line import main; main()"
    done = subprocess.run(
        cluster.command("a", sys.executable, "-c", main, *words),
        env=cluster.environment,
        cwd=cluster.work,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(600),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def photos() -> dict[str, bytes]:
    """Return the files of small photos by their names, which begin with the class."""
    random, files = np.random.default_rng(0), dict[str, bytes]()
    for number in range(PHOTOS):
        image_HWC = random.integers(0, 256, (8, 8, 3), np.uint8) // (1 + number % 2)
        name = f"{('bright', 'dark')[number % 2]}/{number}.png"
        files[name] = cv2.imencode(".png", image_HWC)[1].tobytes()
    return files


@pytest.fixture(scope="module")
def folder(
    both: Cluster, photos: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder with all photos in shards, and some in a zip and in a compressed tar.

    Copies are on the store.
    """
    top, files = tmp_path_factory.mktemp("photos"), list(photos.items())
    (top / "shards").mkdir()
    for number in range(SHARDS):
        with tarfile.open(top / f"shards/{number}.tar", "w") as shard:
            for name, content in files[number::SHARDS]:
                label, _, file = name.partition("/")
                _add(shard, file, content)
                _add(shard, file.replace("png", "cls"), label.encode())
    with (
        zipfile.ZipFile(top / "photos.zip", "w") as zipped,
        tarfile.open(top / "photos.tar.gz", "w:gz") as compressed,
    ):
        for name, content in files[:ARCHIVED]:
            zipped.writestr(name, content)
        for name, content in files[ARCHIVED : 2 * ARCHIVED]:
            _add(compressed, name, content)
    put = (
        "import sys; from pathlib import Path; from patchline.pipeline.workspace import chosen; "
        "from patchline.pipeline.workspace.address import parse_address; "
        "top = Path(sys.argv[1]); store = chosen.open_store(parse_address(sys.argv[2], '-')); "
        "files = [each for each in top.rglob('*') if each.is_file()]; "
        "[store.upload(each, each.relative_to(top).as_posix()) for each in files]"
    )
    command = both.command("a", sys.executable, "-c", put, str(top), ON_STORE)
    subprocess.run(command, env=both.environment, check=True)
    return top


def trained_alone(of_nodes: TrainingJob, shards: Path, folder: Path) -> Path:
    """Read and train on this machine what two nodes have trained; return the best weights."""
    config = of_nodes.config
    of_machine = config.training.model_copy(update={"threads": 2})  # one for each rank
    own = {"training": of_machine, "data": config.data.model_copy(update={"path": str(shards)})}
    config = config.model_copy(update=own)
    data = ingestion.ingest(config, folder)
    prepared = ingestion.prepare(config, data, folder)
    job = job_of(config, data, prepared, folder / "alone", "no run")
    let_ranks_do({"alone": job}, folder / "ranks", 2)
    return job.folder / "best/model.safetensors"


def test_a_run_reads_trains_and_predicts_on_both_nodes(
    cluster: Cluster, photos: dict[str, bytes], folder: Path, tmp_path: Path
) -> None:
    """The weights are those of one machine, bit for bit, and so are the labels it predicts.

    What both read of shards, and predict of other archives, they fetch themselves.
    """
    ray = ("--launcher.name", "ray", "--launcher.address", cluster.address, "--launcher.cpus", "1")
    own = ("--workspace", cluster.workspace, "--launcher.nodes", "2")
    patchline(cluster, "run", f"{ON_STORE}/shards", "--name", "photos", *TRAINING, *MODEL, *WITHOUT,
              *ray, *own)  # fmt: skip
    assert cluster.ours() == []
    [cache] = cluster.files_of("b").glob("home/.cache/patchline/nodes/*/0/.patchline")
    assert list(cache.glob("prepared/*"))
    assert list(cache.glob("sources/webdataset/indexes/*.shards"))
    objects = cache / "sources/objects/s3/nodes/photos"
    assert {placeholder(each) is None for each in objects.glob("shards/*.tar")} == {False}

    out = cluster.work / "table.parquet"
    archives = (f"{ON_STORE}/photos.zip", f"{ON_STORE}/photos.tar.gz")
    lines = patchline(cluster, "predict", "photos@champion", *archives, "--out", str(out), *ray)
    assert list(cache.glob(".building-*"))  # a part of the images was predicted there
    assert placeholder(objects / "photos.zip") is not None
    assert list(cache.glob("sources/archive/*.tar"))
    assert "on this machine alone" not in lines
    assert cluster.ours() == []

    [training] = cluster.work.glob(".patchline/runs/*/training")
    job = TrainingJob.model_validate_json((training / "job.json").read_text("utf-8"))
    alone = trained_alone(job, folder / "shards", tmp_path)
    assert same(load_file(training / "best/model.safetensors"), load_file(alone))
    [model] = training.parent.rglob("model.onnx")
    table = pd.read_parquet(out)
    names = ["/".join(Path(image).parts[-2:]) for image in table["image"]]
    assert sorted(names) == sorted(list(photos)[: 2 * ARCHIVED])
    answers = PackagedModel(model, model.with_name("model.json"), threads=1).answers(
        [photos[name] for name in names]
    )
    assert list(table["label"]) == [answer["label"] for answer in answers]


class Attempts:
    """A process of the first node that tries to train a job, each time with other settings.

    Args:
        cluster: of two nodes.
        process: see `ray_training.py`.
    """

    def __init__(self, cluster: Cluster, process: subprocess.Popen[str]) -> None:
        self._settings = {"name": "ray", "nodes": 2, "address": cluster.address}
        self._process = process

    def train(self, **settings: Any) -> Iterator[dict[str, Any]]:
        """Yield the events; the last one says how it has ended."""
        assert self._process.stdin is not None
        print(json.dumps({**self._settings, **settings}), file=self._process.stdin, flush=True)
        for line in self._process.stdout or ():
            event: dict[str, Any] = json.loads(line)
            yield event
            if event["kind"] == "ended":
                return

    def assert_refused(self, words: str, *, code: int = 2, **settings: Any) -> None:
        """Try to train, which ends with an exit code and words."""
        *_, ended = self.train(**settings)
        assert ended["code"] == code, ended
        assert words in ended["message"]


@contextmanager
def attempts(cluster: Cluster, job: TrainingJob, folder: Path) -> Iterator[Attempts]:
    """Start what trains a job, in a working directory."""
    file = folder / "asked.json"
    file.write_text(job.model_dump_json(), "utf-8")
    program = [sys.executable, "-P", "-m", f"{__package__}.ray_training", str(file)]
    with subprocess.Popen(
        cluster.command("a", *program),
        env=cluster.environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Attempts(cluster, process)


def _end(cluster: Cluster) -> None:
    """End Ray on both nodes: a node that comes back alone is not seen at once."""
    for node in cluster.spaces:
        cluster.kill(node)
    time.sleep(1)


def _assert_nothing_left(cluster: Cluster) -> None:
    until(lambda: not cluster.ours(), "processes are left", seconds=90)


def test_nodes_that_share_a_folder_give_the_same_weights_whatever_is_killed(
    cluster: Cluster, make: Make, tmp_path: Path
) -> None:
    """Bit for bit, each node runs one rank; a rank that is killed is started again by itself.

    Without the driver, nothing is left, and the same command resumes. All events are numbered.
    """
    training = {"processes": 2, "epochs": 60, "threads": 1}
    alone = make("alone", training={**training, "threads": 2})  # one each
    let_ranks_do({"alone": alone}, tmp_path / "ranks", 2)
    job, seen, messages = make("job", training=training), list[int](), list[str]()
    last = job.folder / "last.safetensors"
    with attempts(cluster, job, tmp_path) as command:
        for event in command.train(shared_folder=True):
            messages.append(str(event.get("message")))
            if last.exists() and not seen:
                seen.extend(len(cluster.pids(node, "processes.rank")) for node in cluster.spaces)
                cluster.kill("b", "processes.rank")
            elif messages[-1].startswith("resuming from step"):
                cluster.kill("a", "ray_driver")
        assert seen == [1, 1]
        assert (event["code"], "resume the run" in messages[-1]) == (1, True), messages
        assert any("ended unexpectedly" in each for each in messages)
        _assert_nothing_left(cluster)
        again = list(command.train(shared_folder=True))
    assert again[-1] == {"kind": "ended", "code": 0, "threads": 1}  # of a node, as asked for
    assert any(str(each.get("message", "")).startswith("resuming from step") for each in again)
    assert same(*(load_file(each.folder / last.name) for each in (alone, job)))
    numbered = read_events(job.folder / "events.jsonl")
    assert [each["seq"] for each in numbered] == list(range(len(numbered)))
    _assert_nothing_left(cluster)


OCCUPANT = """
import time, ray
from ray.util.placement_group import placement_group
ray.init(address={address!r}, log_to_driver=False)
ray.get(placement_group([{{"CPU": 2}}]).ready())
print("occupied", flush=True)
time.sleep(3600)
"""


@contextmanager
def occupied(cluster: Cluster) -> Iterator[None]:
    """Reserve both cores of the second node."""
    with subprocess.Popen(
        cluster.command("a", sys.executable, "-c", OCCUPANT.format(address=cluster.address)),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as occupant:
        try:
            assert occupant.stdout is not None
            assert occupant.stdout.readline() == "occupied\n"
            yield
        finally:
            occupant.kill()


def test_what_a_user_has_to_change_is_one_sentence(cluster: Cluster, make: Make) -> None:
    """With the value, the rule and the remedy: of the settings, of the nodes and of the cluster.

    Whoever reaches a cluster without tokens runs code on it. Ray gives its folders mode 0777: on
    each node one above them has to be closed.
    """
    job = make("job", training={"processes": 2, "epochs": 1})
    folder = cluster.folder / "refused"
    folder.mkdir()
    shared: dict[str, Any] = {"shared_folder": True}
    with attempts(cluster, job, folder) as command:
        command.assert_refused(
            "is a folder of one machine. Use one on an object store (--workspace"
        )
        words = (
            "A worker needs 64 CPU cores on each of 2 nodes, which the Ray cluster does not have"
        )
        command.assert_refused(words, cpus=64, **shared)
        words = "No node of the Ray cluster had 2 CPU cores on one node within 2 seconds."
        small: dict[str, Any] = {"nodes": 1, "cpus": 2, "wait_seconds": 2, **shared}
        with occupied(cluster):
            command.assert_refused(words, code=1, **small)
            command.assert_refused(words, code=1, first_look=True, **small)
        cluster.private.chmod(0o750)
        try:
            words = f"on this machine, {cluster.private / 'ray'}, is open"
            command.assert_refused(words, **shared)
        finally:
            cluster.private.chmod(0o700)
    _end(cluster)
    with tempfile.TemporaryDirectory(prefix="plr") as other:
        Path(other).chmod(0o711)
        cluster.start("a")
        cluster.start("b", Path(other) / "ray", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
        with attempts(cluster, job, folder) as command:
            command.assert_refused(f"on the node 10.78.0.2, {other}/ray, is open", **shared)
            Path(other).chmod(0o700)
            words = "The node 10.78.0.2 cannot use the workspace s3://nodes/team"
            command.assert_refused(words, workspace=cluster.workspace)
        _end(cluster)
    cluster.start("a", RAY_AUTH_MODE="disabled")
    with attempts(cluster, job, folder) as command:
        command.assert_refused("without token authentication", nodes=1)
    assert not (job.folder / "last.safetensors").exists()
    _assert_nothing_left(cluster)
