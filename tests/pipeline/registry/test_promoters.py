"""Concurrent and killed promotions: the history explains every change of the champion."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.registry import alias_lock, history
from patchline.pipeline.registry.alias_lock import CLAIM_PREFIX, claimed
from patchline.pipeline.registry.history import CHAMPION, AliasChange
from patchline.pipeline.registry.promotion import Request, changing, promote
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.tracking.tracking_store import client
from tests.mlflow_server import mlflow_server
from tests.pipeline.registry.made_versions import QUICK, make_version

ROUNDS, KILLS, SERVER_ROUNDS = 12, 8, 4


class Promoter:
    """A process that has imported everything and waits for a version to promote."""

    def __init__(self, name: str, folder: Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.registry.promoter", name, str(folder)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, **environment},
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


def _explained() -> tuple[str | None, list[AliasChange]]:
    """Return the champion and its changes, which have to lead to it one after the other."""
    with changing("roses") as (store, _):
        entries = history.settle(store, "roses")
    changes = [entry for entry in entries if entry.alias == CHAMPION]
    champion = history.alias_of(client(), "roses", CHAMPION)
    assert changes[-1].to_version == champion
    assert all(b.from_version == a.to_version for a, b in itertools.pairwise(changes))
    assert all(entry.state == "done" for entry in changes)
    assert "changed outside Patchline" not in {entry.action for entry in entries}
    return champion, changes


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
@pytest.mark.parametrize("machines", [1, 2])
def test_two_promoters_at_once_never_decide_against_a_stale_champion(
    tmp_path: Path, machines: int
) -> None:
    """Two processes are repeatedly released together.

    On one machine a lock keeps them apart, and on two machines their claims on a server.
    """
    with contextlib.ExitStack() as stack:
        store = f"sqlite:///{tmp_path / 'mlflow.db'}"
        if machines > 1:
            store = stack.enter_context(mlflow_server(tmp_path / "mlflow.db"))
        os.environ["MLFLOW_TRACKING_URI"] = store
        first, second, third = _three_versions(tmp_path)
        rivals: list[Promoter] = []
        for name in ("left", "right"):
            (tmp_path / name).mkdir()
            rivals.append(Promoter("roses", tmp_path / name, TMPDIR=str(tmp_path / name)))
            stack.callback(rivals[-1].kill)
        for number in range(ROUNDS if machines == 1 else SERVER_ROUNDS):
            before = len(_explained()[1])
            pair = rivals if number % 2 else rivals[::-1]
            for rival, version in zip(pair, (second, third), strict=True):
                rival.start(version.version)
            answers = [rival.answer() for rival in pair]
            champion, changes = _explained()
            # The best one wins in any order, and is compared with the current champion.
            assert champion == third.version
            assert answers[1]["promoted"]
            assert len(changes) - before == sum(answer["promoted"] for answer in answers)
            for entry in changes[before:]:
                assert entry.from_version in {a["against"] for a in answers if a["promoted"]}
            if not answers[0]["promoted"]:
                assert answers[0]["against"] == third.version
            _first_again(first, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
def test_a_promoter_killed_at_any_moment_leaves_an_explained_champion(tmp_path: Path) -> None:
    """A process is killed somewhere in a promotion, eight times, and the next one simply works."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    first, _, third = _three_versions(tmp_path)
    promoter = Promoter("roses", tmp_path / "whole")
    began = time.monotonic()
    promoter.start(third.version)
    assert promoter.answer()["promoted"]
    length = time.monotonic() - began
    promoter.kill()
    moments = np.random.default_rng(0)
    for number in range(KILLS):
        _first_again(first, tmp_path)
        before = len(_explained()[1])
        promoter = Promoter("roses", tmp_path / str(number))
        promoter.start(third.version)
        time.sleep(moments.uniform(0.2, 1.1) * length)
        promoter.kill()
        champion, changes = _explained()
        assert champion in {first.version, third.version}
        assert len(changes) - before == (champion == third.version)
        decision, _ = promote(Request(third, QUICK), tmp_path / "after")
        assert decision is not None
        assert decision.promoted


@pytest.mark.usefixtures("champion")
def test_a_claim_that_a_dead_process_left_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits removes a claim that has not moved for the length of a lease."""
    # On SQLite the machine's lock is enough; here the store is taken for a server.
    monkeypatch.setattr(alias_lock, "sqlite_file", lambda: None)
    monkeypatch.setattr(alias_lock, "_LEASE_SECONDS", 0.5)
    store, dead = client(), f"{CLAIM_PREFIX}dead"
    store.set_registered_model_tag("roses", dead, "elsewhere 1")
    began = time.monotonic()
    with claimed("roses") as still_held:
        assert time.monotonic() - began >= 0.5
        tags = store.get_registered_model("roses").tags
        assert dead not in tags
        [own] = [key for key in tags if key.startswith(CLAIM_PREFIX)]
        store.delete_registered_model_tag("roses", own)  # somebody took us for dead
        with pytest.raises(Exception, match="was lost"):
            still_held()
    tags = store.get_registered_model("roses").tags
    assert not [key for key in tags if key.startswith(CLAIM_PREFIX)]
