"""The base class of what is written to files: settings, jobs of workers, and results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from patchline.pipeline.workspace.files.atomic_files import write_private_text, write_text


class FrozenModel(BaseModel):
    """A frozen model that rejects unknown keys, and may be kept in a JSON file."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Return what a file holds.

        Raises:
            OSError: if there is none, or it cannot be read.
            ValidationError: if it is damaged, or another version has written it.
        """
        return cls.model_validate_json(file.read_bytes())

    @classmethod
    def from_file_or_none(cls, file: Path) -> Self | None:
        """Return what a file holds; None if it is missing, damaged, or of another version."""
        try:
            return cls.from_file(file)
        except (OSError, ValueError):
            return None

    def to_file(self, file: Path, *, indent: int | None = 2, is_private: bool = False) -> None:
        """Write a file atomically, and create its folder if needed.

        Args:
            file: to write.
            indent: spaces for each level; None for one line.
            is_private: whether only its owner may read it.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        write = write_private_text if is_private else write_text
        write(file, self.model_dump_json(indent=indent) + "\n")


class DocumentedModel(FrozenModel):
    """A frozen model of settings: the docstring below each field is its help text.

    It is that on the command line, in the Prefect form and in the JSON schema. A worker shows none
    of them, and parsing the source of each class would take it a tenth of its start.
    """

    model_config = ConfigDict(
        use_attribute_docstrings="patchline-worker" not in sys._xoptions,  # noqa: SLF001 - see `worker_start`
    )
