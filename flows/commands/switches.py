"""Flags without a value, such as `--now`, and the `--json` that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Switch = Annotated[bool, Parameter(negative="")]
"""A flag without a `--no-` form."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]
"""Whether the result is printed as one JSON object."""
