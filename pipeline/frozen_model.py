"""The base class of what is written to files: settings, jobs of workers, and results."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """A frozen model that rejects unknown keys.

    Of settings, the docstring below each field is its help text: on the command line, in the
    Prefect form and in the JSON schema.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
