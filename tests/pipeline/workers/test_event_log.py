"""Events of a worker: numbered without gaps, whole or absent, also after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.workers.event_log import EventReader, EventWriter, read_events


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a log that does not exist yet."""
    return tmp_path / "run" / "events.jsonl"


def test_events_are_numbered_from_zero_without_gaps(file: Path) -> None:
    """Each event has the next number, its time and its kind."""
    writer = EventWriter(file)
    for step in range(4):
        writer.write("metrics", step=step, values={"loss": 1 / (step + 1)})
    writer.close()
    events = read_events(file)
    assert [event["seq"] for event in events] == [0, 1, 2, 3]
    assert [event["step"] for event in events] == [0, 1, 2, 3]
    assert {event["kind"] for event in events} == {"metrics"}
    assert events[3]["values"] == {"loss": 0.25}
    times = [event["time"] for event in events]
    assert times == sorted(times)


def test_second_writer_goes_on_counting(file: Path) -> None:
    """A worker that continues a run continues its numbers."""
    for kind in ("first", "second"):
        writer = EventWriter(file)
        writer.write(kind)
        writer.write(kind)
        writer.close()
    events = read_events(file)
    assert [(event["seq"], event["kind"]) for event in events] == [
        (0, "first"), (1, "first"), (2, "second"), (3, "second"),
    ]  # fmt: skip


def test_half_a_line_of_a_killed_writer_is_cut_off(file: Path) -> None:
    """A line that was never finished disappears, and its number is given again."""
    writer = EventWriter(file)
    writer.write("metrics", step=0)
    writer.close()
    with file.open("a") as opened:
        opened.write('{"seq": 1, "time": 1.0, "kind": "met')
    writer = EventWriter(file)
    writer.write("metrics", step=1)
    writer.close()
    assert [(event["seq"], event["step"]) for event in read_events(file)] == [(0, 0), (1, 1)]
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_file_that_does_not_exist_holds_no_events(file: Path) -> None:
    """Reading before anything was written gives nothing and fails nothing."""
    assert read_events(file) == []
    assert EventReader(file).new_events() == []


def test_reader_sees_each_event_once(file: Path) -> None:
    """What was read is not read again, and what comes later is read later."""
    reader = EventReader(file)
    writer = EventWriter(file)
    seen: list[list[int]] = []
    for count in (2, 0, 3):
        for _ in range(count):
            writer.write("warning", message="…")
        seen.append([event["seq"] for event in reader.new_events()])
    writer.close()
    assert seen == [[0, 1], [], [2, 3, 4]]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_reader_takes_complete_lines_only(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    """However the bytes arrive, the reader gives every event whole, once and in order."""
    events = [{"seq": seq, "message": f"Blüte {seq}\nzwei"} for seq in range(5)]
    data = b"".join(json.dumps(e, ensure_ascii=False).encode() + b"\n" for e in events)
    file = tmp_path_factory.mktemp("log") / "events.jsonl"
    reader, seen = EventReader(file), []
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        file.write_bytes(data[:end])
        seen += reader.new_events()
        assert len(seen) == data[:end].count(b"\n")
    assert seen == events


def test_reader_leaves_half_a_line_to_its_writer(file: Path) -> None:
    """A reader never shortens the file of a writer that is still at work."""
    writer = EventWriter(file)
    writer.write("metrics", step=0)
    with file.open("a") as opened:
        opened.write('{"seq": 1')
    size = file.stat().st_size
    assert len(EventReader(file).new_events()) == 1
    assert file.stat().st_size == size
    writer.close()


def test_event_can_be_read_before_the_writer_closes(file: Path) -> None:
    """An event is on disk as soon as it is written."""
    writer = EventWriter(file)
    writer.write("artifact", name="grid", path="grid.png")
    assert [event["name"] for event in read_events(file)] == ["grid"]
    writer.close()


def test_progress_is_thinned_out_but_never_its_end(file: Path) -> None:
    """Between two looks of a person nothing is written, except that all is done."""
    writer = EventWriter(file, progress_interval_seconds=3600)
    for done in range(1, 101):
        writer.progress(done, 100, "images", loss=0.5)
    writer.close()
    events = read_events(file)
    assert len(events) <= 2
    last = {key: events[-1][key] for key in ("kind", "done", "total", "unit", "loss")}
    assert last == {"kind": "progress", "done": 100, "total": 100, "unit": "images", "loss": 0.5}


def test_progress_without_interval_is_written_each_time(file: Path) -> None:
    """With an interval of zero every call is an event."""
    writer = EventWriter(file, progress_interval_seconds=0)
    for done in range(5):
        writer.progress(done, 10, "steps")
    writer.close()
    assert [event["done"] for event in read_events(file)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", ["line\nbreak", "\u2028", "ü", {"a": [1, None]}, 1e-300])
def test_values_come_back_as_they_were(file: Path, value: Any) -> None:
    """Text with line breaks, nested values and small numbers survive."""
    writer = EventWriter(file)
    writer.write("warning", message=value)
    writer.close()
    assert read_events(file)[0]["message"] == value


def test_a_writer_goes_on_after_the_events_of_another_one(tmp_path: Path) -> None:
    """The processes of a training run write to the same file, one after the other."""
    file = tmp_path / "events.jsonl"
    first, second = EventWriter(file), EventWriter(file)
    second.write("note", message="of another process")
    second.close()
    first.catch_up()
    first.write("note", message="of this one")
    assert [event["seq"] for event in read_events(file)] == [0, 1]
