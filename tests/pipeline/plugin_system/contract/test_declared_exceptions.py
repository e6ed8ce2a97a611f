"""A declared exception is run, excuses a failure, and has to go when it is no longer one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from patchline.plugin_api import (
    AugmentationPlugin,
    ConfigError,
    PluginConfig,
    PluginError,
)
from patchline.plugin_checks import Check, CheckError, checks_of


class NoSettings(PluginConfig):
    """There is nothing to set."""


built: list[int] = []


def _still(*_: Any) -> Any:
    import albumentations

    built.append(1)
    return albumentations.Compose([])


STILL: AugmentationPlugin[Any] = AugmentationPlugin(
    summary="For the tests", paper="", config_class=NoSettings, build=_still
)
_CHANGES = "changes_something"


def _check(exceptions: dict[str, str], name: str = _CHANGES) -> Check:
    [check] = [
        c for c in checks_of(replace(STILL, expected_failed_checks=exceptions)) if c.name == name
    ]
    return check


def test_a_failure_without_an_exception_is_an_assertion_error() -> None:
    """A broken rule raises what pytest shows as a failed assertion, with the sentence."""
    with pytest.raises(CheckError, match="12 seeds give the same image") as raised:
        _check({})()
    assert isinstance(raised.value, AssertionError)
    result = _check({}).result()
    assert (result.name, result.status) == (_CHANGES, "failed")
    assert result.message == str(raised.value)
    assert result.seconds >= 0


def test_a_declared_failure_is_excepted_with_its_reason() -> None:
    """The check is run, passes, and its result gives the reason."""
    check = _check({_CHANGES: "it is for still images"})
    built.clear()
    check()
    assert built
    result = check.result()
    assert (result.status, result.message) == ("excepted", "it is for still images")


def test_a_stale_exception_fails() -> None:
    """An exception from a check that the plugin passes is to be removed."""
    check = _check({"keeps_shape_and_type": "not yet"}, "keeps_shape_and_type")
    with pytest.raises(CheckError, match=r"among its expected_failed_checks\. Remove it\."):
        check()
    result = check.result()
    assert result.status == "failed"
    assert result.message.startswith("It passes keeps_shape_and_type, which is among")


def test_an_exception_excuses_one_check_alone() -> None:
    """The other checks are as they were."""
    checks = checks_of(replace(STILL, expected_failed_checks={_CHANGES: "still"}))
    assert {check.name: check.result().status for check in checks if check.name != _CHANGES} == {
        check.name: "passed" for check in checks_of(STILL) if check.name != _CHANGES
    }


def test_an_exception_from_an_unknown_check_is_refused() -> None:
    """A name that no check has is answered with those that there are."""
    with pytest.raises(PluginError) as raised:
        checks_of(replace(STILL, expected_failed_checks={"change_something": "still"}))
    sentence = str(raised.value)
    assert (
        "expected_failed_checks names 'change_something', but there is no such check." in sentence
    )
    for check in checks_of(STILL):
        assert check.name in sentence


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_exception_without_a_reason_is_refused(reason: str) -> None:
    """An exception says why."""
    with pytest.raises(PluginError, match=r"no reason for 'changes_something'\. Add the reason\."):
        checks_of(replace(STILL, expected_failed_checks={_CHANGES: reason}))


def test_wrong_settings_are_refused() -> None:
    """Settings that the plugin does not take are the caller's mistake, not the plugin's."""
    with pytest.raises(ConfigError, match="There is no setting strength"):
        checks_of(STILL, {"strength": 1})


def test_checks_are_told_apart_by_their_names() -> None:
    """Each has a name of its own, which is its text, and a summary that is a sentence."""
    checks = checks_of(STILL)
    assert len({str(check) for check in checks}) == len(checks)
    for check in checks:
        assert str(check) == check.name
        assert check.summary.endswith(".")


def test_a_result_is_read_only_data() -> None:
    """A result can be written as JSON, and not be changed."""
    result = _check({}).result()
    assert set(result.model_dump()) == {"name", "status", "seconds", "message"}
    with pytest.raises(ValidationError):
        result.status = "passed"  # type: ignore[misc]  # it is read-only
