"""What a server records, and how a killed server and a small folder leave it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import signal
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.registry.serving import traffic_recorder
from patchline.pipeline.registry.serving.traffic_recorder import (
    PARTS,
    TrafficRecorder,
    features_of,
    is_traffic,
    rows_of,
)
from patchline.pipeline.web.server_metrics import ServerMetrics
from tests.patience import until
from tests.pipeline.registry.serving.served import NAME, Registry, png, serving

ROW = np.array([0.5, 0.5]), None
"""Probabilities of an image without features."""


def recorder(folder: Path, *, with_images: bool = False, most: int = 1 << 30) -> TrafficRecorder:
    """Return a recorder of a folder."""
    return TrafficRecorder(folder, with_images=with_images, most_bytes=most)


def test_a_server_records_what_it_answers_and_a_kill_loses_nothing(
    registry: Registry, tmp_path: Path
) -> None:
    """Probabilities as the package computes them, the clients' own files, and no more answers.

    A second server is refused while the first lives.
    """
    folder, images = tmp_path / "traffic", [png(seed) for seed in range(12)]
    arguments = ("--record", str(folder), "--record-images")
    with serving(registry.folder, *arguments) as server:
        answers = [server.predict(image).json for image in images]
        assert server.predict(b"no image").status == 422
        with pytest.raises(ConfigError, match=r"another server records.*Name another folder\."):
            recorder(folder)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    [part] = folder.glob(PARTS)
    rows = rows_of(part)
    package = registry.package(1)
    for row, image, answer in zip(rows, images, answers, strict=True):
        assert (row["model"], row["version"]) == (NAME, "1")
        assert (folder / row["image"]).read_bytes() == image
        assert row["digest"] == hashlib.sha256(image).hexdigest()
        assert max(row["probabilities"]) == pytest.approx(answer["probability"], abs=1e-6)
        expected = package.probabilities(package.pixels(image)[None])[0]
        np.testing.assert_allclose(row["probabilities"], expected, atol=1e-5)
        assert row["features"] is None  # this package has no such output
    assert folder.stat().st_mode & 0o077 == 0
    recorder(folder).close()
    assert rows_of(part) == rows


def test_features_and_arrays_are_kept_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    """Features as float16; an array becomes a PNG file, a file stays what it is."""
    writer = recorder(tmp_path / "traffic", with_images=True)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    row = np.array([0.25, 0.75]), np.array([1.5, -1e9], np.float32)
    writer.record("flowers", "3", [pixels, b"\xff\xd8\xff any"], [row, (row[0], None)])
    writer.close()
    [part] = (tmp_path / "traffic").glob(PARTS)
    with part.open("a", encoding="utf-8") as opened:
        opened.write('{"id": "cut", "probabil')
    first, second = rows_of(part)
    np.testing.assert_array_equal(features_of(first), np.array([1.5, -65504], np.float16))
    assert features_of(second) is None
    assert [Path(each["image"]).suffix for each in (first, second)] == [".png", ".jpg"]
    assert is_traffic(tmp_path / "traffic")
    assert not is_traffic(tmp_path)


def test_the_folder_keeps_its_size_and_its_newest_images(tmp_path: Path) -> None:
    """The oldest parts go with their images, also where many images fill a part."""
    folder, most = tmp_path / "traffic", 60_000
    writer = recorder(folder, with_images=True, most=most)
    for number in range(500):
        writer.record("flowers", str(number), [bytes([number % 256]) * 100], [ROW])

    def size() -> int:
        total = 0
        for each in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                total += each.stat().st_size if each.is_file() else 0
        return total

    until(lambda: size() <= most, lambda: f"the folder has {size():,} bytes")
    writer.close()
    rows = [row for part in sorted(folder.glob(PARTS)) for row in rows_of(part)]
    assert [int(row["version"]) for row in rows] == list(range(500 - len(rows), 500))
    assert most / 2 < size() <= most
    assert {row["image"] for row in rows} == {
        f"images/{each.name}" for each in (folder / "images").iterdir()
    }


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """Parts between a person's photos would be removed one day."""
    (tmp_path / "holiday.jpg").write_bytes(b"any")
    with pytest.raises(ConfigError, match=r"holds other files, such as holiday\.jpg"):
        recorder(tmp_path)
    (tmp_path / "file").write_text("any", "utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        recorder(tmp_path / "file" / "below")


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Somebody else could link its files to others; nothing is written, and nothing removed."""
    folder = tmp_path / "traffic"
    recorder(folder, with_images=True).close()
    before = sorted(folder.rglob("*"))
    for place in (folder, folder / "images"):
        place.chmod(0o777)
        with pytest.raises(ConfigError, match=r"every user .* \(mode 0777\).*chmod go-w"):
            recorder(folder, with_images=True)
        place.chmod(0o700)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", [traffic_recorder.MARKER, "images", "part-1-a.jsonl"])
def test_links_in_the_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    """Neither a file nor the folder of images; what they lead to stays as it is."""
    folder, own = tmp_path / "traffic", tmp_path / "own"
    recorder(folder).close()
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(own if name == "images" else own / "thesis.txt")
    (folder / traffic_recorder.MARKER).touch()
    with pytest.raises(ConfigError, match=f"{name} is a link to .*, and --record follows none"):
        recorder(folder, with_images=True)
    assert (own / "thesis.txt").read_text() == "mine"
    assert [each.name for each in own.iterdir()] == ["thesis.txt"]


def test_an_old_record_removes_no_other_files(tmp_path: Path) -> None:
    """Its images are those that a recorder has named, in the folder of images."""
    folder, own = tmp_path / "traffic", tmp_path / "own.png"
    recorder(folder, with_images=True).close()
    own.write_text("mine")
    (folder / "images/holiday.jpg").write_text("mine")
    recorded = f"images/{'0a' * 16}.png"
    (folder / recorded).write_text("old")
    paths = ("../own.png", str(own), "images/../../own.png", "..", "images/holiday.jpg", recorded)
    lines = "".join(json.dumps({"image": path}) + "\n" for path in paths)
    (folder / "part-20200101-000000.0-aaaaaaaa.jsonl").write_text(lines + " " * 30_000)
    writer = recorder(folder, with_images=True, most=20_000)
    writer.record("flowers", "1", [b"any"], [ROW])
    until(lambda: not (folder / recorded).exists(), "nothing was removed")
    writer.close()
    assert own.read_text() == (folder / "images/holiday.jpg").read_text() == "mine"
    [part] = folder.glob("part-*.jsonl")
    [image] = [folder / row["image"] for row in rows_of(part)]
    assert [each.stat().st_mode & 0o777 for each in (part, image)] == [0o600, 0o600]


def test_a_disk_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes ahead, its log says it once, and its metrics as long as it lasts."""
    caplog.set_level(logging.INFO)

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    writer = recorder(tmp_path / "traffic", with_images=True)
    metrics = ServerMetrics()
    metrics.recording(lambda: writer.problem is None)
    writer.record("flowers", "1", [b"any"], [ROW])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_unfinished_part", full)
        for _ in range(3):
            writer.record("flowers", "1", [b"any"], [ROW])
    assert caplog.text.count("not recorded at the moment") == 1
    assert b"patchline_recording_up 0.0" in metrics.text()
    assert (writer.problem, writer.missed) == ("No space left on device", 3)
    monkeypatch.setattr(writer, "_paused_until", 0.0)  # the time has passed
    writer.record("flowers", "1", [b"any"], [ROW])
    assert b"patchline_recording_up 1.0" in metrics.text()
    assert "3 images are missing" in caplog.text
    writer.close()
    assert sum(len(rows_of(part)) for part in (tmp_path / "traffic").glob(PARTS)) == 2
    assert len(list((tmp_path / "traffic" / "images").iterdir())) == 2
