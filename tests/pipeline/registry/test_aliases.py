"""The alias history agrees with the aliases, wherever a process dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from patchline.pipeline.registry import aliases
from patchline.pipeline.registry.aliases import AliasChange
from patchline.pipeline.registry.promotion import Request, promote
from patchline.pipeline.registry.registered_models import ModelReference, resolve, summaries
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.registry.made_versions import QUICK

WRITES = (
    "set_registered_model_tag",
    "set_registered_model_alias",
    "set_model_version_tag",
    "delete_registered_model_tag",
    "log_artifacts",
)


class Crash(BaseException):
    """The process dies here; `except Exception` does not catch it."""


def _settled(name: str) -> list[AliasChange]:
    with aliases.machine_lock(name), aliases.claim_model(name):
        return aliases.settle(client(), name)


def test_after_a_crash_at_any_write_the_history_explains_the_champion(
    challenger: ModelReference, tmp_path: Path
) -> None:
    """Whichever write is the last, the entries form a chain that ends at the champion.

    A version is said to have been promoted only if it was, and always then.
    """
    first, writes, last = resolve("roses/1"), 0, 0
    outcomes: set[str | None] = set()

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(store: MlflowClient, *values: Any, **named: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes >= last:  # that is after the write before
                raise Crash
            return method(store, *values, **named)

        return write

    for last in range(1, 20):
        writes = 0
        with pytest.MonkeyPatch.context() as patch:
            for name in WRITES:
                patch.setattr(MlflowClient, name, dying(getattr(MlflowClient, name)))
            try:
                promote(Request(challenger, QUICK), tmp_path / str(last))
                finished = True
            except Crash:
                finished = False
        entries = _settled("roses")
        champion = aliases.alias_of(client(), "roses", aliases.CHAMPION)
        changes = [
            (each.from_version, each.to_version)
            for each in entries
            if each.alias == aliases.CHAMPION
        ]
        outcomes.add(champion)
        assert changes[-1][1] == champion
        assert all(b[0] == a[1] for a, b in itertools.pairwise(changes))
        assert {entry.state for entry in entries} == {"done"}
        assert [entry.sequence for entry in entries] == sorted({e.sequence for e in entries})
        decision = summaries("roses")[0].versions[0].decision
        assert (decision is not None) == any(to == challenger.version for _, to in changes)
        assert decision is None or decision["promoted"]
        if champion == challenger.version:
            back = Request(first, QUICK, force_reason="the next round")
            promote(back, tmp_path / f"{last} back")
        if finished:
            break
    else:
        pytest.fail(f"{writes} writes were not enough to finish")
    assert outcomes == {first.version, challenger.version}


@pytest.mark.usefixtures("challenger")
def test_a_change_outside_patchline_gets_an_entry_when_it_is_noticed() -> None:
    """An alias that was set by hand in MLflow, or removed, is in the history afterwards."""
    store = client()
    store.set_registered_model_alias("roses", aliases.CHAMPION, "2")
    by_hand = _settled("roses")[-1]
    assert (by_hand.alias, by_hand.from_version, by_hand.to_version) == ("champion", "1", "2")
    assert by_hand.action == "changed outside Patchline"
    store.delete_registered_model_alias("roses", aliases.CHAMPION)
    removed = _settled("roses")[-1]
    assert (removed.from_version, removed.to_version) == ("2", None)
    assert _settled("roses")[-1] == removed  # noticed once


def _change(to_version: str, action: aliases.Action) -> AliasChange:
    return AliasChange(
        sequence=1,
        alias=aliases.CHAMPION,
        from_version=None,
        to_version=to_version,
        action=action,
        reason="",
        at="",
    )


@pytest.mark.parametrize(
    ("changes", "earlier"),
    [
        ("", ""),
        ("p1 p2 p3", "21"),
        ("p1 p2 p3 r2", "1"),
        ("p1 p2 r1 p3", "1"),
        ("p1 p2 p1 r2 r1", ""),
    ],
)
def test_rollbacks_go_back_one_promotion_each(changes: str, earlier: str) -> None:
    """A rollback undoes the last promotion that stands, and another one the promotion before."""
    actions: dict[str, aliases.Action] = {"p": "promoted", "r": "rolled back"}
    entries = [_change(change[1], actions[change[0]]) for change in changes.split()]
    assert "".join(aliases.earlier_champions(entries)) == earlier
