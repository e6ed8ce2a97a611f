"""A declared exception is run, excuses a failure, and has to go when it is no longer one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patchline.plugin_api import ConfigError, PluginError
from patchline.plugin_checks import Check, CheckError, checks_of
from tests.pipeline.plugin_system.contract.faulty_augmentations import STILL

_CHANGES = "changes_something"


def _checks(**exceptions: str) -> dict[str, Check]:
    checks = checks_of(replace(STILL, expected_failed_checks=exceptions))
    return {check.name: check for check in checks}


def test_a_failure_without_an_exception_is_an_assertion_error() -> None:
    """A broken rule raises what pytest shows as a failed assertion, with the sentence."""
    check = _checks()[_CHANGES]
    with pytest.raises(AssertionError, match="12 seeds give the same image") as raised:
        check()
    assert (check.result().status, check.result().message) == ("failed", str(raised.value))
    assert str(check) == _CHANGES


def test_an_exception_excuses_one_check_with_its_reason() -> None:
    """The check passes, and its result gives the reason; the other checks are as they were."""
    checks = _checks(changes_something="it is for still images")
    checks[_CHANGES]()
    found = {name: check.result() for name, check in checks.items()}
    assert found[_CHANGES].message == "it is for still images"
    assert found.pop(_CHANGES).status == "excepted"
    assert {result.status for result in found.values()} == {"passed"}


def test_a_stale_exception_fails() -> None:
    """An exception from a check that the plugin passes is to be removed."""
    with pytest.raises(CheckError, match=r"among its expected_failed_checks\. Remove it\."):
        _checks(keeps_shape_and_type="not yet")["keeps_shape_and_type"]()


@pytest.mark.parametrize(
    ("exceptions", "words"),
    [
        ({"change_something": "still"}, r"'change_something', but .*changes_something, "),
        ({_CHANGES: "  "}, "no reason for 'changes_something'"),
    ],
)
def test_a_wrong_exception_is_refused(exceptions: dict[str, str], words: str) -> None:
    """An exception names a check that there is, and says why."""
    with pytest.raises(PluginError, match=words):
        _checks(**exceptions)


def test_wrong_settings_are_refused() -> None:
    """Settings that the plugin does not take are the caller's mistake, not the plugin's."""
    with pytest.raises(ConfigError, match="There is no setting strength"):
        checks_of(STILL, {"strength": 1})
