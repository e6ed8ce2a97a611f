"""Choose the value range of a data set: which value is black, and which is white.

The rule, for each type of values:

- What the user sets: two values, or two percentiles of all pixels.
- Unsigned integers: 0 to the largest value that every file declares, or else to the largest one
  found, rounded up to a full number of bits (255, 1023, 4095, 65535, …).
- Floating-point numbers: 0 to 1, -1 to 1, or 0 to 255 if all lie there.
- Everything else, and everything of which these would leave fewer than 32 of the 256 grey levels:
  the percentiles 0.5 and 99.5, rounded outwards. Single values far from all others, which stand for
  missing pixels or are defects of a sensor, do not count.

A range that is found follows the data. When it changes as data grows, the same file looks different
to the new model than to the earlier one; each package keeps the range of its own training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from patchline.pipeline.data.config import percentiles_in
from patchline.pipeline.data.manifests.scanning import digest_of_root
from patchline.pipeline.data.pixel_values.pixel_mapping import (
    FLOAT,
    FileValues,
    Values,
    choose_bands,
    kind_words,
    number,
    scale_to_uint8,
)
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoding import UndecodableImageError, deep_values
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.terminal_words import by_number, counted
from patchline.plugin_api import PixelValues

_FEW_LEVELS = 32
_CORE = (0.5, 99.5)
_ALMOST_ALL = 99.95
_STRAY_BITS = 2
_MOST_ENDS = 4
_SAID_SHARE = 1e-4
_WHOLE_PERCENT = 10
"""From which on a share is written without decimals."""
_FLOAT_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))


class Observed(NamedTuple):
    """The values of one type in a data set."""

    kind: str
    low: float
    """The smallest value of all files."""
    high: float
    """The largest value of all files."""
    declared: float
    """The value of white that every file declares; 0 if they do not."""
    sample: Values
    """Sorted."""


class ChosenRange(NamedTuple):
    """The value range of one type of values."""

    low: float
    high: float
    origin: str
    """How it was found."""
    clipped: float
    """Share of the values outside of it, 0 to 1."""
    levels: int
    """Grey levels that hold the middle 99 % of the values."""
    values: int
    """Different values that these levels stand for."""


def choose_range(
    observed: Observed, value_range: tuple[float | str, float | str] | None
) -> ChosenRange:
    """Return the range of one type of values.

    Args:
        observed: the values.
        value_range: the two values or percentiles that the user has set; None for none.
    """
    percentiles = percentiles_in(value_range)
    if value_range is not None and percentiles is None:
        low, high = map(float, value_range)
        return _judge_range(observed, low, high, "set by data.value_range")
    kept, apart = _without_ends(observed.sample)
    if percentiles is not None:
        low, high = (float(each) for each in np.percentile(observed.sample, percentiles))
        if not observed.sample.size:
            low, high = 0.0, 1.0
        words = f"percentiles {percentiles[0]:g} and {percentiles[1]:g} of the pixels"
        return _judge_range(observed, low, high if high > low else low + 1, words)
    if not kept.size:
        return _judge_range(observed, 0.0, 1.0, "no pixel has a known value")
    nominal = _nominal(observed, kept, apart)
    if nominal is not None and not _loses_too_much(nominal, kept):
        return nominal
    low, high = _round_outwards(*(float(each) for each in np.percentile(kept, _CORE)))
    words = f"percentiles {_CORE[0]:g} and {_CORE[1]:g} of the pixels, rounded"
    if apart:
        stand = by_number(len(apart), "is", "are")
        words += f"; {' and '.join(map(number, apart))} {stand} apart and not counted"
    return _judge_range(observed, low, high, words)


def _nominal(observed: Observed, kept: Values, apart: Sequence[float]) -> ChosenRange | None:
    """Return the range that the type, the files or the largest value suggest; None without one."""
    low, high = (float(kept[0]), float(kept[-1])) if apart else (observed.low, observed.high)
    if observed.kind == FLOAT:
        fits = [each for each in _FLOAT_RANGES if each[0] <= low and high <= each[1]]
        if fits:
            words = f"all values are from {number(low)} to {number(high)}"
            return _judge_range(observed, *fits[0], words)
        if low < 0 or (kept != np.round(kept)).any():
            return None
    if low < 0:
        return None
    if observed.declared and high <= observed.declared:
        return _judge_range(observed, 0.0, observed.declared, "declared by the files")
    white = _full_bits(high)
    usual = _full_bits(float(np.percentile(kept, _ALMOST_ALL)))
    if usual << _STRAY_BITS <= white:
        return _judge_range(
            observed, 0.0, float(usual), f"almost all values are at most {number(usual)}"
        )
    return _judge_range(observed, 0.0, float(white), f"the largest value is {number(high)}")


def _judge_range(observed: Observed, low: float, high: float, reason: str) -> ChosenRange:
    """Return a range with what it loses."""
    sample = observed.sample
    if not sample.size:
        return ChosenRange(low, high, reason, 0.0, 0, 0)
    outside = float(np.mean((sample < low) | (sample > high)))
    core = _core(sample)
    core = core[(core >= low) & (core <= high)]
    levels = len(np.unique(scale_to_uint8(core, low, high))) if core.size else 1
    return ChosenRange(low, high, reason, outside, levels, len(np.unique(core)))


def _loses_too_much(chosen: ChosenRange, kept: Values) -> bool:
    core = _core(kept)
    levels = len(np.unique(scale_to_uint8(core, chosen.low, chosen.high)))
    return levels < _FEW_LEVELS and len(np.unique(core)) > levels


def loss_words(chosen: ChosenRange) -> str:
    """Return what a range loses, beside the rounding to 256 levels; empty if nothing."""
    words = []
    if chosen.clipped >= _SAID_SHARE:
        percent = 100 * chosen.clipped
        share = f"{percent:.2g} %" if percent < _WHOLE_PERCENT else f"{percent:.0f} %"
        words.append(f"about {share} of the pixels lie outside and are clipped")
    if chosen.levels < _FEW_LEVELS and chosen.values > chosen.levels:
        words.append(
            f"99 % of the pixels have only {counted(chosen.levels, 'grey level')} for "
            f"{chosen.values:,} different values"
        )
    return "; ".join(words)


def _core(values: Values) -> Values:
    """Return the middle 99 % of sorted values."""
    low, high = np.percentile(values, _CORE)
    core: Values = values[(values >= low) & (values <= high)]
    return core


def _without_ends(sample: Values) -> tuple[Values, list[float]]:
    """Return sorted values without single ones that are further away than all others reach.

    Returns:
        The others, and the values that are left out.
    """
    kept, apart = sample, list[float]()
    for _ in range(_MOST_ENDS):
        if not kept.size:
            break
        after = kept[np.searchsorted(kept, kept[0], "right") :]
        before = kept[: np.searchsorted(kept, kept[-1], "left")]
        if len(after) > 1 and after[0] - kept[0] > 2 * (after[-1] - after[0]) > 0:
            apart, kept = [*apart, float(kept[0])], after
        elif len(before) > 1 and kept[-1] - before[-1] > 2 * (before[-1] - before[0]) > 0:
            apart, kept = [*apart, float(kept[-1])], before
        else:
            break
    return kept, apart


def _full_bits(value: float) -> int:
    """Return the next number of 8 or more bits that are all set."""
    return int((1 << max(8, int(value).bit_length())) - 1)


def _round_outwards(low: float, high: float) -> tuple[float, float]:
    """Return round numbers around a range, at most a tenth of it away."""
    if not high > low:
        return low, low + 1.0
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return (
        round(math.floor(low / step) * step, digits),
        round(math.ceil(high / step) * step, digits),
    )


_FILES, _VALUES = 256, 4096
Listed = tuple[str, str]
"""The path of a file and its SHA-256."""


def value_sample(root: Path, files: Sequence[Listed], bands: tuple[int, ...]) -> Values:
    """Return known values of some files in ascending order, as 64-bit floating-point numbers.

    Args:
        root: the folder or archive that the paths are relative to.
        files: files with values of one type; those whose digests come first are read.
        bands: the bands that count, from 1; if empty, all but opacity.
    """
    chosen = sorted(files, key=lambda listed: listed[1])[:_FILES]

    def some(listed: Listed) -> Values:
        try:
            with root_image_bytes(root, listed[0]) as data, deep_values(data) as values:
                return _some(values, bands) if values else np.empty(0)
        except UndecodableImageError:  # gone since it was described, which decoding will say
            return np.empty(0)

    with threads() as pool:
        parts = list(pool.map(some, chosen))
    return np.sort(np.concatenate([np.empty(0), *parts]))


def _some(values: FileValues, bands: tuple[int, ...]) -> Values:
    samples = values.samples_HWN
    if bands:
        samples = choose_bands(samples, bands)
    elif values.opacity:
        samples = np.delete(samples, values.colors, axis=2)
    flat = samples.reshape(-1)
    kept = flat[:: max(1, -(-flat.size // _VALUES))]
    kept = kept[~values.missing(kept)]
    return kept.astype(np.float64)


_FORMAT = "value ranges 1"


def notes_on_change(values: PixelValues, root: Path, workspace: Path) -> list[str]:
    """Say which ranges differ from those of the last run.

    Args:
        values: the value ranges of this run.
        root: the folder or archive of the images.
        workspace: the folder `.patchline`.
    """
    earlier = PixelValues.from_file_or_none(_file(root, workspace))
    before = {each.kind: (each.low, each.high) for each in earlier.ranges} if earlier else {}
    changed = [
        (kind_words(each.kind), *before[each.kind])
        for each in values.ranges
        if before.get(each.kind, (each.low, each.high)) != (each.low, each.high)
    ]
    return [
        f"the range of {kind} values was {number(low)} to {number(high)} in the last run on these "
        f"images; to keep it, set --data.value-range {low:g} {high:g}"
        for kind, low, high in changed
    ]


def remember(values: PixelValues, root: Path, workspace: Path) -> None:
    """Remember the ranges of a run that trains on these images, for the next one."""
    file = _file(root, workspace)
    if values.ranges and PixelValues.from_file_or_none(file) != values:
        values.to_file(file)


def _file(root: Path, workspace: Path) -> Path:
    return workspace / "value_ranges" / f"{digest_of_root(root, _FORMAT)}.json"
