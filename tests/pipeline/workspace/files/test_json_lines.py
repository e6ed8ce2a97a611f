"""Lines that processes append: whole, each once and in order, also after a kill."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.json_lines import AppendLog
from tests.small_disks import small_disk


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_reader_takes_complete_lines_only(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    """However the bytes arrive, the reader gives every value whole, once and in order."""
    values = [{"seq": seq, "message": f"Blüte {seq}\nzwei"} for seq in range(5)]
    data = b"".join(json.dumps(e, ensure_ascii=False).encode() + b"\n" for e in values)
    file = tmp_path_factory.mktemp("log") / "log.jsonl"
    reader, seen = AppendLog(file), list[object]()
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        file.write_bytes(data[:end])
        seen += reader.new_values()
        assert len(seen) == data[:end].count(b"\n")
    assert seen == values


def test_what_a_kill_has_cut_is_no_line_and_hides_no_other(tmp_path: Path) -> None:
    """The next line begins after it; names that are not UTF-8 survive."""
    log = AppendLog(tmp_path / "log.jsonl")
    values = [{"name": "\udcff\u2028ü"}, {"next": [1, None]}, {"last": True}]
    log.append(values[0])
    with log.file.open("ab") as opened:
        opened.write(b'{"half')
    log.append(values[1])
    assert list(log.new_values()) == values[:2]
    assert [each.content for each in AppendLog(log.file).new_objects(lambda *_: None)][1] is None
    assert not log.repair()
    with log.file.open("ab") as opened:
        opened.write(b'{"half')
    assert log.repair()
    log.append(values[2])
    assert list(log.new_values()) == values[2:]


def _append(file: Path, process: int) -> None:
    for number in range(100):
        AppendLog(file).append([process, number])


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    """None of their lines is lost or mixed with another."""
    file, context = tmp_path / "log.jsonl", get_context("spawn")
    processes = [context.Process(target=_append, args=(file, each)) for each in range(3)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    lines = list(AppendLog(file).new_values())
    assert sorted(lines) == [[process, number] for process in range(3) for number in range(100)]


def test_a_full_disk_cuts_a_line_and_loses_no_other(tmp_path: Path) -> None:
    """What is left of it is no line; a link is not followed."""
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a link"):
        AppendLog(link).append(1)
    assert not (tmp_path / "elsewhere").exists()
    with small_disk(tmp_path / "disk", 1) as disk:
        log = AppendLog(disk / "log.jsonl")
        log.append("first")
        with pytest.raises(StorageError, match="no space left"):
            log.append("x" * 2**21)
        assert log.file.stat().st_size > len(b'"first"\n')
        assert list(AppendLog(log.file).new_values()) == ["first"]
        assert log.repair()
        log.append("last")
        assert list(log.new_values()) == ["first", "last"]
