"""Events of a worker: numbered without gaps, whole or absent, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.workers.event_log import EventWriter, read_events
from patchline.pipeline.workspace.files.json_lines import AppendLog


def test_what_a_killed_writer_has_left_is_continued(tmp_path: Path) -> None:
    """A whole event is on disk at once and numbered on; a line without end disappears.

    Readers shorten nothing, for its writer may still be at work.
    """
    file = tmp_path / "run" / "events.jsonl"
    reader = AppendLog(file)
    assert list(reader.new_values()) == []
    values = ["line\nbreak", "\u2028", "ü", {"a": [1, None]}, 1e-300]
    writer = EventWriter(file)
    for value in values:
        writer.write("warning", message=value)
    assert [event["message"] for event in reader.new_values()] == values
    with file.open("a") as opened:
        opened.write('{"seq": 5, "time": 1.0, "kind": "met')
    size = file.stat().st_size
    assert list(reader.new_values()) == []
    assert file.stat().st_size == size
    writer = EventWriter(file)
    writer.write("metrics", step=1)
    events = read_events(file)
    assert [event["seq"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert [event["kind"] for event in events] == ["warning"] * 5 + ["metrics"]
    times = [event["time"] for event in events]
    assert times == sorted(times)


@pytest.mark.parametrize("interval", [0, 3600])
def test_progress_is_thinned_out_but_never_its_end(tmp_path: Path, interval: float) -> None:
    """Between two looks of a person nothing is written, except that all is done."""
    file = tmp_path / "events.jsonl"
    writer = EventWriter(file, progress_interval_seconds=interval)
    for done in range(1, 101):
        writer.progress(done, 100, "images", loss=0.5)
    events = read_events(file)
    assert len(events) <= 2 if interval else len(events) == 100
    last = {key: events[-1][key] for key in ("kind", "done", "total", "unit", "loss")}
    assert last == {"kind": "progress", "done": 100, "total": 100, "unit": "images", "loss": 0.5}


def test_a_writer_goes_on_after_the_events_of_another_one(tmp_path: Path) -> None:
    """The processes of a training run write to the same file, one after the other."""
    file = tmp_path / "events.jsonl"
    first, second = EventWriter(file), EventWriter(file)
    second.write("note", message="of another process")
    first.catch_up()
    first.write("note", message="of this one")
    assert [event["seq"] for event in read_events(file)] == [0, 1]
