"""The name of a class that a person types."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from patchline.pipeline.data.labels.answers.answer import looks_like_list
from patchline.pipeline.data.labels.class_names import alike, normalized
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.terminal_words import visible

LONGEST = 100
"""Characters."""
MOST_CLASSES = 1000
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def checked_class(name: str, classes: Collection[str]) -> str:
    """Return the name of a class as it is written; that of an existing one if it is the same.

    Raises:
        ConfigError: if it is empty, too long, cannot be seen, or looks like another class.
    """
    plain = normalized(" ".join(name.split()))
    if not plain:
        raise ConfigError("The name of a class is empty. Type a name.")
    if len(plain) > LONGEST:
        raise ConfigError(
            f"The name of a class has {len(plain)} characters, but at most {LONGEST} are allowed. "
            "Type a shorter name."
        )
    if any(unicodedata.category(each) in _HIDDEN for each in plain):
        raise ConfigError(
            f"The class '{visible(plain)}' has invisible characters. Type it without them."
        )
    if looks_like_list(plain):
        raise ConfigError(
            f"The class '{plain}' would be read as a list of labels. Type it without brackets."
        )
    if plain in classes:
        return plain
    like = next((each for each in classes if alike(each) == alike(plain)), None)
    if like is not None:
        raise ConfigError(
            f"The class '{plain}' looks like '{like}'. Use that one, or another name."
        )
    if len(classes) >= MOST_CLASSES:
        raise ConfigError(f"There are {MOST_CLASSES:,} classes already, which is the maximum.")
    return plain
