"""What a server records, and how a killed server and a small folder leave it."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.serving.traffic_recorder import (
    PARTS,
    TrafficRecorder,
    features_of,
    is_traffic,
    rows_of,
)
from tests.pipeline.serving.served import NAME, Registry, png, serving


def recorder(folder: Path, *, with_images: bool = False, most: int = 1 << 30) -> TrafficRecorder:
    """Return a recorder of a folder."""
    return TrafficRecorder(folder, with_images=with_images, most_bytes=most)


def test_a_server_records_what_it_answers_and_a_kill_loses_nothing(
    own_registry: Registry, tmp_path: Path
) -> None:
    """Probabilities as the package computes them, the clients' own files, and no more answers."""
    folder, images = tmp_path / "traffic", [png(seed) for seed in range(12)]
    arguments = ("--record", str(folder), "--record-images")
    with serving(own_registry.folder, *arguments) as server:
        answers = [server.predict(image).json for image in images]
        assert server.predict(b"no image").status == 422
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    assert all("outputs" not in answer for answer in answers)
    rows = [row for part in folder.glob(PARTS) for row in rows_of(part)]
    assert len(rows) == len(images)
    package = own_registry.package(1)
    for row, image, answer in zip(rows, images, answers, strict=True):
        assert (row["model"], row["version"]) == (NAME, "1")
        assert (folder / row["image"]).read_bytes() == image
        assert row["digest"] == hashlib.sha256(image).hexdigest()
        assert max(row["probabilities"]) == pytest.approx(answer["probability"], abs=1e-6)
        expected = package.probabilities(package.pixels(image)[None])[0]
        np.testing.assert_allclose(row["probabilities"], expected, atol=1e-5)
        assert row["features"] is None  # this package has no such output
    assert folder.stat().st_mode & 0o077 == 0


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


def test_the_oldest_parts_go_with_their_images(tmp_path: Path) -> None:
    """The folder stays near its size, and what is left is the newest."""
    writer = recorder(tmp_path / "traffic", with_images=True, most=300_000)
    row = np.array([0.5, 0.5]), None
    for number in range(25):
        image = bytes([number]) * 100
        writer.record("flowers", str(number), [image] * 100, [row] * 100)
    writer.close()
    folder = tmp_path / "traffic"
    rows = [row for part in sorted(folder.glob(PARTS)) for row in rows_of(part)]
    assert {int(row["version"]) for row in rows} == set(range(25 - len(rows) // 100, 25))
    assert len(rows) < 2500
    assert {row["image"] for row in rows} == {
        f"images/{each.name}" for each in (folder / "images").iterdir()
    }


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """Parts between a person's photos would be removed one day."""
    (tmp_path / "holiday.jpg").write_bytes(b"any")
    with pytest.raises(ConfigError, match=r"holds other files, such as holiday\.jpg"):
        recorder(tmp_path)
    (tmp_path / "file").write_text("any", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        recorder(tmp_path / "file" / "below")


def test_a_disk_that_fails_ends_the_recording_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes ahead, and its log says it once."""
    writer = recorder(tmp_path / "traffic")

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    for _ in range(3):
        writer.record("flowers", "1", [b"any"], [(np.array([1.0]), None)])
    assert caplog.text.count("no longer recorded") == 1
