"""Flags without a value: `--now`, and the `--json` that commands with an answer share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Switch = Annotated[bool, Parameter(negative="")]
"""A flag that has no `--no-` form."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]
"""Whether the answer is one JSON object on standard output."""
