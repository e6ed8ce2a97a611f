"""Groups of images that belong together, by a regular expression on their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from patchline.pipeline.data.config import GROUP_NAME
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.labels.answer_columns import NEAR, joined_groups
from patchline.pipeline.terminal_words import counted
from patchline.plugin_api import ImageListing

_EXAMPLES = 2


def with_groups(listing: ImageListing, text: str) -> ImageListing:
    """Return a listing whose images are grouped by what a pattern captures in their paths.

    Images in whose path the pattern is not found are in no group, unless near duplicates of them
    are in one.

    Raises:
        ConfigError: if it is found in no path, or the source has named groups itself.
    """
    given = [image.group or "" for image in listing.images]
    if not all(group.startswith(NEAR) for group in given if group):
        raise ConfigError(
            f"data.group_pattern is '{text}', but the data names groups itself. Leave out "
            "data.group_pattern, or data.group_column if that names them."
        )
    pattern = re.compile(text)
    name = GROUP_NAME if GROUP_NAME in pattern.groupindex else 1
    matches = [pattern.search(image.path) for image in listing.images]
    names = [match[name] or "" if match else "" for match in matches]
    if not any(names):
        paths = " or ".join(image.path for image in listing.images[:_EXAMPLES])
        raise ConfigError(
            f"data.group_pattern '{text}' captures no text in any path, such as {paths}. Change "
            "it: it is searched for in the path below the data's folder, with forward slashes."
        )
    images = [
        image._replace(group=group or None)
        for image, group in zip(listing.images, joined_groups(names, given), strict=True)
    ]
    return replace(listing, images=images, notes=[*listing.notes, _note(names)])


def _note(names: Sequence[str]) -> str:
    grouped = [name for name in names if name]
    alone = len(names) - len(grouped)
    rest = f"; {counted(alone, 'image is', 'images are')} in no group" if alone else ""
    groups = counted(len(set(grouped)), "group")
    return f"data.group_pattern: {counted(len(grouped), 'image')} in {groups}{rest}"
