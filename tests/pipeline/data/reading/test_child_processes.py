"""Files described and decoded by child processes: the same, whatever happens to a child."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from patchline.pipeline.data.manifests.describing import KeptImageArray
from patchline.pipeline.data.manifests.describing_worker import rows_of
from patchline.pipeline.data.manifests.scanning import scan
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading import child_processes
from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from patchline.plugin_api import ListedImage
from tests.patience import until
from tests.pipeline.data.manifests.test_manifest import listed
from tests.pipeline.data.pixel_values.made_files import png_file
from tests.plugins.listings import two_classes

Files = list[tuple[ListedImage, bool]]
needs_two = pytest.mark.skipif(processors() == 1, reason="needs two processors")


def files_of(root: Path, times: int = 1) -> Files:
    """Return the PNG files below a folder, each several times."""
    found = sorted(root.rglob("*.png"))
    images = [ListedImage(each.relative_to(root).as_posix(), each.parent.name) for each in found]
    return [(image, True) for image in images] * times


@needs_two
def test_processes_and_threads_return_the_same_rows(tmp_path: Path) -> None:
    """Whole, damaged, foreign, missing, large and oddly named files, in their order."""
    root = two_classes(3)
    (root / "across/bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno image")
    Image.new("L", (4200, 4200), 9).save(root / "across/large.png", compress_level=1)
    files = files_of(root)
    files += [(ListedImage("down/000.png", "", None, "a group"), False)]
    files += [(ListedImage(name, "down", "test"), True) for name in ("gone.png", "a\nb", "\udcff")]
    kept = []
    for name in ("threads.npy", "processes.npy"):
        np.save(tmp_path / name, np.zeros((len(files), 8, 8, 3), np.uint8))
        kept.append(KeptImageArray(tmp_path / name, "squash"))
    by_threads = list(rows_of(root, files, fewest=10**9, kept=kept[0]))
    assert list(rows_of(root, files, fewest=1, kept=kept[1])) == by_threads
    images = [np.load(each.file) for each in kept]
    assert np.array_equal(*images)
    assert [bool(image.any()) for image in images[0]] == [r["status"] == "ok" for r in by_threads]


@needs_two
def test_killed_processes_cost_no_row() -> None:
    """The parent describes what a child was asked for, and what nobody is left to ask for."""
    root = two_classes(3)
    files = files_of(root, times=100)
    rows = rows_of(root, files, fewest=1)
    first = next(rows)
    for child in _children("manifests.describing"):
        child.kill()
    found = [first, *rows]
    assert [row["path"] for row in found] == [image.path for image, _ in files]
    assert {row["status"] for row in found} == {"ok"}


@pytest.mark.slow
@needs_two
def test_processes_end_with_a_killed_parent() -> None:
    """Nobody is left behind when a run is killed while it reads the images."""
    root = two_classes(3)
    code = f"""
from pathlib import Path
from patchline.pipeline.data.manifests.describing_worker import rows_of
from tests.pipeline.data.reading.test_child_processes import files_of
root = Path({str(root)!r})
rows = rows_of(root, files_of(root, times=20000), fewest=1)
next(rows)
print("began", flush=True)
for _ in rows:
    pass
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "began\n"
    children = psutil.Process(parent.pid).children()
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    until(lambda: not any(map(_lives, children)), "a child process lives on")


def _children(module: str) -> list[psutil.Process]:
    """Return the processes that this one has started for a module."""
    return [each for each in psutil.Process().children() if module in str(each.cmdline())]


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_reader_that_stops_early_leaves_no_process() -> None:
    """An error while the rows are used ends the children."""
    root = two_classes(3)
    rows = rows_of(root, files_of(root, times=300), fewest=1)
    assert len(list(itertools.islice(rows, 3))) == 3
    mine = _children("manifests.describing")
    assert mine
    rows.close()  # type: ignore[attr-defined]
    assert not any(map(_lives, mine))


def test_processes_decode_the_same_store() -> None:
    """Also a large image, which this process decodes, deep ones, and after children were killed."""
    root = two_classes(20)
    Image.new("L", (4200, 4200), 99).save(root / "across/large.png", compress_level=1)
    (root / "down/deep.png").write_bytes(png_file(np.full((9, 9, 1), 2000, np.uint16)))
    rows = scan(listed(root))
    spec = StoreSpec(3, 20, 24, "pad", PixelMapping((("uint16", 0.0, 4095.0),)))
    by_threads, _ = prepare(rows, root, spec, Path("threads"), fewest=10**9)
    by_processes, _ = prepare(rows, root, spec, Path("processes"), fewest=1)

    def kill_all(done: int, _total: int) -> None:
        for child in _children("decoding_processes") if done == 1 else ():
            child.kill()

    by_nobody, _ = prepare(rows, root, spec, Path("killed"), kill_all, fewest=1)
    expected = open_images(by_threads)[:]
    assert set(expected[list(rows["path"]).index("down/deep.png")].ravel()) == {125}
    for store in (by_processes, by_nobody):
        assert np.array_equal(open_images(store)[:], expected)
        assert prepare(rows, root, spec, store.parent) == (store, True)


def test_no_more_cores_are_used_than_a_launcher_has_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several workers may share a machine."""
    everything = processors()
    monkeypatch.setenv(child_processes.CORES_VARIABLE, "1")
    assert processors() == 1
    monkeypatch.setenv(child_processes.CORES_VARIABLE, "999")
    assert processors() == everything
