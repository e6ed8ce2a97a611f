"""The heartbeat of a process without a port."""

from __future__ import annotations

from pathlib import Path

from pipeline.supervision import heartbeat


def test_only_a_new_beat_counts(tmp_path: Path) -> None:
    """A process is well if it has beaten since the last check, and only under its own name."""
    heartbeat.beat(tmp_path, "runner")
    has_beaten = heartbeat.is_beating(tmp_path, "runner")
    assert not has_beaten()
    heartbeat.beat(tmp_path, "keeper")
    assert not has_beaten()
    heartbeat.beat(tmp_path, "runner")
    assert has_beaten()
    assert not has_beaten()
