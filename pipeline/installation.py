"""Where Patchline's own files are: in a checkout, or installed from a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[1]
"""The folder of the package `patchline`. Not resolved: in a checkout, `pipeline` is a link in it
that leads out of it."""


def checkout() -> Path | None:
    """Return the checkout that Patchline is imported from; None if it was installed."""
    return PACKAGE.parent if (PACKAGE / "pipeline").is_symlink() else None
