"""Events of a worker: numbered without gaps, whole or absent, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.workers.event_log import EventWriter, read_events


def test_a_writer_goes_on_after_the_events_of_another_one(tmp_path: Path) -> None:
    """The processes of a run write to one file; what a killed one has begun disappears."""
    file = tmp_path / "run" / "events.jsonl"
    first, second = EventWriter(file), EventWriter(file)
    second.write("note")
    first.catch_up()
    first.write("warning")
    with file.open("a") as opened:
        opened.write('{"seq": 2, "kind": "met')
    EventWriter(file).write("metrics", step=1)
    events = read_events(file)
    kinds = [(0, "note"), (1, "warning"), (2, "metrics")]
    assert [(each["seq"], each["kind"]) for each in events] == kinds
    assert events == sorted(events, key=lambda each: each["time"])
    assert file.read_bytes().count(b"\n") == 3


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
