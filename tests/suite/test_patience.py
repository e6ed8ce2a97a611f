"""Deadlines of tests are for hangs: each is multiplied by what the machine was measured to need."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience
from tests.patience import patient, until

_TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("given", "deadline"), [("4", 240.0), ("1", 60.0), ("0.2", 60.0)])
def test_a_deadline_grows_with_the_machine(
    monkeypatch: pytest.MonkeyPatch, given: str, deadline: float
) -> None:
    """A machine four times slower gets four times as long; a faster one no less than written."""
    monkeypatch.setenv(patience.VARIABLE, given)
    assert patient(60) == deadline


def test_what_never_comes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting ends with the complaint and how long it took."""
    monkeypatch.setenv(patience.VARIABLE, "1")
    with pytest.raises(AssertionError, match=r"nobody came \(waited 0 s\)"):
        until(lambda: False, "nobody came", seconds=0.2)


def test_the_limit_of_a_test_is_patient_too(request: pytest.FixtureRequest) -> None:
    """What pytest-timeout gives each test is the limit of pyproject.toml times the factor."""
    marker = request.node.get_closest_marker("timeout")
    assert marker.args == (patient(float(request.config.getini("timeout"))),)


def _bare_deadlines(source: str) -> Iterator[int]:
    """Yield the lines with a number of seconds to wait that no factor multiplies."""
    found: list[object]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="patchline")):
                continue  # it multiplies its limit itself
            case ast.Call(
                func=ast.Attribute(attr="wait"),
                args=[ast.Constant(value=float() | int() as seconds)],
            ):
                found = [seconds] if seconds > 1 else []
            case ast.Call(keywords=keywords):
                given = [word.value for word in keywords if word.arg == "timeout"]
                found = [value.value for value in given if isinstance(value, ast.Constant)]
            case ast.BinOp(
                left=ast.Call(func=ast.Attribute(attr="monotonic")), right=ast.Constant(value=value)
            ):
                found = [value]
            case _:
                continue
        if any(found):
            yield node.lineno


def test_no_deadline_is_a_bare_number() -> None:
    """Seconds to wait for something go through `patient`: a slow machine is no failure."""
    bare = [
        f"{file.relative_to(_TESTS)}:{line}"
        for file in sorted(_TESTS.rglob("*.py"))
        for line in _bare_deadlines(file.read_text(encoding="utf-8"))
    ]
    assert bare == []


@pytest.mark.parametrize(
    "line", ["process.wait(20)", "run(command, timeout=60)", "end = time.monotonic() + 5.0"]
)
def test_a_bare_number_would_be_found(line: str) -> None:
    """The same check finds what is written on purpose."""
    assert list(_bare_deadlines(line)) == [1]
