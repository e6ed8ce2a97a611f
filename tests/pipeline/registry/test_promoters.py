"""Concurrent and killed promotions: the history explains every change of the champion."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.registry import aliases
from patchline.pipeline.registry.aliases import CHAMPION, CLAIM_PREFIX, AliasChange, claim_model
from patchline.pipeline.registry.promotion import Request, promote
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.mlflow_server import mlflow_server
from tests.patience import until
from tests.pipeline.registry.made_versions import QUICK, champion_version, make_version

ROUNDS = 4


class Promoter:
    """A process that has imported everything and waits for a version to promote."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        words = ("roses", str(folder), QUICK.model_dump_json())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.registry.promoter", *words],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"

    def start(self, version: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{version}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _three_versions(folder: Path) -> list[ModelReference]:
    """Make a champion, a better version and one that is better than both."""
    return [make_version("roses", folder, wrong=range(end)) for end in (90, 50, 10)]


def _first_again(first: ModelReference, folder: Path) -> None:
    promote(Request(first, QUICK, force_reason="the next round"), folder / "again")


def _lock_is_held() -> bool:
    with try_lock(WORKSPACE / "locks/roses.lock") as was_free:
        return not was_free


def _explained() -> tuple[str | None, list[AliasChange]]:
    """Return the champion and its changes, which have to lead to it one after the other."""
    with aliases.machine_lock("roses"), aliases.claim_model("roses"):
        entries = aliases.settle(client(), "roses")
    changes = [entry for entry in entries if entry.alias == CHAMPION]
    champion = champion_version()
    assert changes[-1].to_version == champion
    assert all(b.from_version == a.to_version for a, b in itertools.pairwise(changes))
    assert all(entry.state == "done" for entry in changes)
    assert "changed outside Patchline" not in {entry.action for entry in entries}
    return champion, changes


def _assert_none_was_stale(
    before: int, third: ModelReference, of_second: dict[str, Any], of_third: dict[str, Any]
) -> None:
    """Compare the answers of two promoters at once with the history.

    The best version wins in any order, and is compared with the current champion.
    """
    champion, changes = _explained()
    assert champion == third.version
    assert of_third["promoted"]
    promoted = [answer for answer in (of_second, of_third) if answer["promoted"]]
    assert len(changes) - before == len(promoted)
    for entry in changes[before:]:
        assert entry.from_version in {answer["against"] for answer in promoted}
    if not of_second["promoted"]:
        assert of_second["against"] == third.version


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
def test_promoters_at_once_or_killed_leave_an_explained_champion(tmp_path: Path) -> None:
    """A lock keeps processes of one machine apart; after a kill, the next one simply works.

    Two are repeatedly released together. Then one is killed before its first write, and the other
    once the alias has moved.
    """
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    first, second, third = _three_versions(tmp_path)
    with contextlib.ExitStack() as stack:
        left, right = rivals = [Promoter(tmp_path / name) for name in ("left", "right")]
        for rival in rivals:
            stack.callback(rival.kill)
        for number in range(ROUNDS):
            before = len(_explained()[1])
            pair = rivals if number % 2 else rivals[::-1]
            for rival, version in zip(pair, (second, third), strict=True):
                rival.start(version.version)
            _assert_none_was_stale(before, third, *[rival.answer() for rival in pair])
            _first_again(first, tmp_path)

        before = len(_explained()[1])
        writer = stack.enter_context(contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")))
        writer.execute("BEGIN IMMEDIATE")
        left.start(third.version)
        until(_lock_is_held, "it does not promote")
        left.kill()
        writer.rollback()
        assert _explained()[0] == first.version
        assert len(_explained()[1]) == before

        right.start(third.version)
        until(lambda: champion_version() == third.version, "it does not promote", pause=0.001)
        right.kill()
        champion, changes = _explained()
        assert (champion, len(changes)) == (third.version, before + 1)
        _first_again(first, tmp_path)
        decision, _ = promote(Request(third, QUICK), tmp_path / "after")
        assert decision is not None
        assert decision.promoted


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
def test_promoters_of_two_machines_never_decide_against_a_stale_champion(tmp_path: Path) -> None:
    """Their claims on a server keep them apart; this process is one of them."""
    with contextlib.ExitStack() as stack:
        os.environ["MLFLOW_TRACKING_URI"] = stack.enter_context(
            mlflow_server(tmp_path / "mlflow.db")
        )
        first, second, third = _three_versions(tmp_path)
        elsewhere = Promoter(tmp_path / "elsewhere")
        stack.callback(elsewhere.kill)
        for there, here in ((second, third), (third, second)):
            _first_again(first, tmp_path)
            before = len(_explained()[1])
            elsewhere.start(there.version)
            decision, _ = promote(Request(here, QUICK), tmp_path / "here" / here.version)
            assert decision is not None
            own: dict[str, Any] = {"promoted": decision.promoted, "against": decision.champion}
            answers = {there: elsewhere.answer(), here: own}
            _assert_none_was_stale(before, third, answers[second], answers[third])


@pytest.mark.usefixtures("champion")
def test_a_claim_that_a_dead_process_left_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits removes a claim that has not moved for the length of a lease."""
    # On SQLite the machine's lock is enough; here the store is taken for a server.
    monkeypatch.setattr(aliases, "sqlite_file", lambda: None)
    monkeypatch.setattr(aliases, "_LEASE_SECONDS", 0.5)
    store, dead = client(), f"{CLAIM_PREFIX}dead"
    store.set_registered_model_tag("roses", dead, "elsewhere 1")
    began = time.monotonic()
    with claim_model("roses") as still_held:
        assert time.monotonic() - began >= 0.5
        tags = store.get_registered_model("roses").tags
        assert dead not in tags
        [own] = [key for key in tags if key.startswith(CLAIM_PREFIX)]
        store.delete_registered_model_tag("roses", own)  # somebody took us for dead
        with pytest.raises(Exception, match="was lost"):
            still_held()
    tags = store.get_registered_model("roses").tags
    assert not [key for key in tags if key.startswith(CLAIM_PREFIX)]
