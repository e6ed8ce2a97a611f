"""Two nodes of a Ray cluster that share nothing but an object store: one run, whatever dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.files.file_digest import digest_of
from patchline.pipeline.files.placeholders import placeholder
from tests.patience import patient
from tests.pipeline.training.processes.conftest import ON_TWO_NODES
from tests.pipeline.training.processes.ray_nodes import Cluster

pytestmark = [pytest.mark.slow, ON_TWO_NODES]
HAS_STORE = True
MODEL = ("--model.depth", "1", "--model.embed-dim", "32", "--model.num-heads", "2")
TRAINING = (
    *("--preset", "none", "--training.epochs", "1", "--training.batch-size", "128"),
    *("--training.processes", "2", "--training.precision", "float32"),
)
PHOTOS = 4100
"""From 4,000 on, reading is divided."""
SHARDS = 8


def patchline(cluster: Cluster, folder: Path, *words: str) -> tuple[int, str]:
    """Run a command on the first node, in a folder; return its exit code and its lines."""
    main = "from patchline.flows.command_line import main; main()"
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        cluster.command("a", sys.executable, "-c", main, *words),
        env=cluster.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(600),
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def photos(both: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of small photos on the store: in shards, a zip and a compressed tar."""
    top, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    (top / "photos/shards").mkdir(parents=True)
    for number in range(PHOTOS):
        image_HWC = random.integers(0, 256, (8, 8, 3), np.uint8) // (1 + number % 2)
        file = top / "all" / ("bright", "dark")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(file), image_HWC)
    files = sorted((top / "all").rglob("*.png"))
    for number in range(SHARDS):
        with tarfile.open(top / f"photos/shards/{number}.tar", "w") as shard:
            for file in files[number::SHARDS]:
                shard.add(file, file.name)
                (top / "label").write_text(file.parent.name)
                shard.add(top / "label", f"{file.stem}.cls")
    for form in ("zip", "gztar"):
        shutil.make_archive(str(top / "photos/photos"), form, top / "all")
    put = (
        "import sys; from pathlib import Path; from patchline.pipeline.workspace import chosen; "
        "from patchline.pipeline.workspace.address import parsed; "
        "top = Path(sys.argv[1]); store = chosen.opened(parsed('s3://nodes/photos', '-')); "
        "files = [each for each in top.rglob('*') if each.is_file()]; "
        "[store.upload(each, each.relative_to(top).as_posix()) for each in files]"
    )
    command = both.command("a", sys.executable, "-c", put, str(top / "photos"))
    subprocess.run(command, env=both.environment, check=True)
    return "s3://nodes/photos"


def weights(folder: Path) -> str:
    """Return the digest of the weights of the only run in a working directory."""
    [file] = folder.glob(".patchline/runs/*/training/best/model.safetensors")
    return digest_of(file).sha256


def test_a_run_reads_trains_and_predicts_on_both_nodes(cluster: Cluster, photos: str) -> None:
    """The weights are those of one machine, bit for bit, and so are the labels it predicts.

    What both read of shards, and predict of other archives, they fetch themselves.
    """
    run = ("run", f"{photos}/shards", "--name", "photos", *TRAINING, *MODEL)
    ray = ("--launcher.name", "ray", "--launcher.address", cluster.address)
    own = ("--workspace", cluster.workspace)
    on_two = ("--launcher.nodes", "2", "--launcher.cpus", "1")
    one, two = (("--training.threads", threads) for threads in "12")  # for the ranks of a machine
    code, said = patchline(cluster, cluster.work, *run, *one, *ray, *on_two, *own)
    assert code == 0, said
    assert cluster.ours() == []
    alone = cluster.folder / "alone"
    code, said = patchline(cluster, alone, *run, *two)
    assert code == 0, said
    assert weights(cluster.work) == weights(alone)
    [cache] = cluster.files_of("b").glob("home/.cache/patchline/nodes/*/0/.patchline")
    assert list(cache.glob("prepared/*"))
    assert list(cache.glob("sources/webdataset/indexes/*.shards"))
    objects = cache / "sources/objects/s3/nodes/photos"
    assert {placeholder(each) is None for each in objects.glob("shards/*.tar")} == {False}

    out = cluster.work / "table.parquet"
    archives = (f"{photos}/photos.zip", f"{photos}/photos.tar.gz")
    predict = ("predict", "photos@champion", *archives, "--out")
    code, said = patchline(cluster, cluster.work, *predict, str(out), *ray, "--launcher.cpus", "1")
    assert code == 0, said
    assert list(cache.glob(".building-*"))  # a part of the images was predicted there
    assert placeholder(objects / "photos.zip") is not None
    assert list(cache.glob("sources/archive/*.tar"))
    assert "on this machine alone" not in said
    other = cluster.work / "alone.parquet"
    code, said = patchline(cluster, cluster.work, *predict, str(other))
    assert code == 0, said
    ours, theirs = pd.read_parquet(out), pd.read_parquet(other)
    names = ["image", "label"]
    assert ours[names].equals(theirs[names])
    assert cluster.ours() == []


def test_what_a_node_lacks_is_exit_code_2(cluster: Cluster) -> None:
    """A workspace of one machine, and a node without credentials: what to set, in one sentence."""
    ray = ("--launcher.name", "ray", "--launcher.nodes", "2", "--launcher.address", cluster.address)
    code, said = patchline(cluster, cluster.folder / "local", "run", *TRAINING, *MODEL, *ray)
    assert code == 2
    assert "Use one on an object store (--workspace s3://" in said
    try:
        cluster.restart(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
        own = ("--workspace", cluster.workspace)
        code, said = patchline(cluster, cluster.work, "run", *TRAINING, *MODEL, *ray, *own)
        assert code == 2
        assert "The node 10.78.0.2 cannot use the workspace s3://nodes/team" in said
    finally:
        cluster.restart()
    assert cluster.ours() == []
