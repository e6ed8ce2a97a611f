"""Labels that are paths of a taxonomy, such as `["Animal", "Cat"]`: the last name is the label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import visible

TaxonomyPath = tuple[str, ...]


def innermost_paths(paths: Sequence[TaxonomyPath]) -> tuple[TaxonomyPath, ...]:
    """Return the paths of an answer that no other one continues: a cat is said to be an animal."""
    return tuple(
        each
        for each in paths
        if not any(other != each and other[: len(each)] == each for other in paths)
    )


def check_branches(paths: Iterable[TaxonomyPath], place: str) -> list[str]:
    """Return a note on a label that is a part of another label.

    Args:
        paths: of all labels.
        place: where they are from, for messages.

    Raises:
        DataError: if one name is in two branches.
    """
    seen: dict[str, TaxonomyPath] = {}
    for path in paths:
        first = seen.setdefault(path[-1], path)
        if first != path:
            one, other = (visible(" > ".join(each)) for each in (first, path))
            raise DataError(
                f"{place} has the label '{visible(path[-1])}' in two branches, '{one}' and "
                f"'{other}', which would make one class of two. Rename one of them."
            )
    nested = ((above, path[-1]) for path in seen.values() for above in path[:-1] if above in seen)
    return [
        f"'{visible(whole)}' is a class of its own beside its part '{visible(part)}', and an image "
        "of the part may be called either"
        for whole, part in list(nested)[:1]
    ]
