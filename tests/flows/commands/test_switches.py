"""What the commands print for people, and for programs with `--json`."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from patchline.flows.commands.switches import emit


class _Result(BaseModel):
    name: str


@pytest.mark.parametrize("content", [{"name": "Löwe"}, _Result(name="Löwe")])
def test_a_result_is_printed_in_words_or_as_json(
    capsys: pytest.CaptureFixture[str], content: BaseModel | dict[str, str]
) -> None:
    """Words are lines in which names cannot move the cursor; JSON is one object and no words."""
    emit(content, "one", "two\x1b[2J", as_json=False)
    assert capsys.readouterr().out == "one\ntwo\\x1b[2J\n"
    emit(content, "one", as_json=True)
    said = capsys.readouterr().out
    assert json.loads(said) == {"name": "Löwe"}
    assert said.startswith('{\n  "name"')
