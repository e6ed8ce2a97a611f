"""The error of every decoder.

This module is copied into every packaged model.
"""

from __future__ import annotations


class UndecodableImageError(ValueError):
    """The bytes are not a complete image, or nothing says what their values mean."""
