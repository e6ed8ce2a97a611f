"""What the manifest notes about the values of an image file that is not of 8 bits per color."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash

from patchline.pipeline.data.pixel_values.pixel_mapping import EIGHT_BITS, FileValues, Values


@dataclass(frozen=True)
class FileSummary:
    """The values of one file."""

    kind: str = EIGHT_BITS
    """The type of its values."""
    colors: int = 3
    """1 for grey, 3 for RGB, as the format says."""
    bands: int = 0
    """Samples per pixel, opacity included; 0 if image libraries read it as it is meant."""
    opacity: str = ""
    """How opacity is stored, if the format says that there is one."""
    low: tuple[float, ...] = ()
    """The smallest value of each band."""
    high: tuple[float, ...] = ()
    """The largest value of each band."""
    declared: float = 0.0
    """The value of white that the file declares; 0 if none."""
    missing: int = 0
    """Samples that are no number, or stand for a missing one."""
    pages: int = 1
    """Or frames of an animation; the first is used."""
    clear: float = -1.0
    """Share of pixels that are wholly opaque or wholly transparent; -1 without opacity."""
    hidden: bool = False
    """Whether every pixel is wholly transparent."""
    reduced: int = 0
    """Bits per color, if the decoder of its format reduces them to 8; 0 otherwise."""

    @classmethod
    def of(cls, values: FileValues) -> FileSummary:
        """Return the summary of a file's values."""
        flat_PN = values.samples_HWN.reshape(-1, values.bands)
        missing_PN = values.missing(flat_PN)
        known = [
            flat_PN[~missing_PN[:, band], band] if missing_PN[:, band].any() else flat_PN[:, band]
            for band in range(values.bands)
        ]
        clear, hidden = -1.0, False
        if values.opacity:
            clear, hidden = clarity(flat_PN[:, values.colors])
        return cls(
            kind=values.kind,
            colors=values.colors,
            bands=values.bands,
            opacity=values.opacity,
            low=tuple(float(each.min()) if each.size else float("inf") for each in known),
            high=tuple(float(each.max()) if each.size else float("-inf") for each in known),
            declared=values.declared,
            missing=int(missing_PN.sum()),
            pages=values.pages,
            clear=clear,
            hidden=hidden,
        )

    @classmethod
    def read(cls, text: str) -> FileSummary:
        """Return the summary that `text` has written."""
        values: dict[str, Any] = json.loads(text) if text else {}
        values |= {key: tuple(values[key]) for key in ("low", "high") if key in values}
        return cls(**values)

    @property
    def text(self) -> str:
        """The summary in one line; empty for an ordinary image."""
        if self == ORDINARY:
            return ""
        usual = asdict(ORDINARY)
        kept = {key: value for key, value in asdict(self).items() if value != usual[key]}
        return json.dumps(kept, separators=(",", ":"))

    @property
    def is_deep(self) -> bool:
        """Whether its values have to be mapped, or its bands chosen."""
        return self.bands > 0

    @property
    def unknown_bands(self) -> int:
        """Number of bands of which the format does not say what they are."""
        return max(0, self.bands - self.colors - bool(self.opacity))

    def extremes(self, bands: tuple[int, ...]) -> tuple[float, float]:
        """Return the smallest and the largest value of the bands that are used.

        Args:
            bands: counted from 1; those that are not there do not count, none means all but
                opacity.
        """
        used = [band - 1 for band in bands if band <= self.bands] or [
            place for place in range(self.bands) if not self.opacity or place < self.colors
        ]
        return min(self.low[place] for place in used), max(self.high[place] for place in used)


ORDINARY = FileSummary()
"""Of an ordinary image."""


def clarity(opacity: Values) -> tuple[float, bool]:
    """Return the share of pixels that are wholly opaque or transparent, and whether none shows."""
    if not opacity.size:
        return 1.0, False
    most = float(np.iinfo(opacity.dtype).max) if opacity.dtype.kind in "iu" else 1.0
    highest = float(opacity.max())
    full = highest if 0 < highest <= most else most
    if float(opacity.min()) == highest:
        return 1.0, highest == 0
    return float(np.mean((opacity == 0) | (opacity == full))), False


def values_digest(values: FileValues) -> str:
    """Return 32 hexadecimal digits over the values of a file, whatever range maps them."""
    samples = values.samples_HWN
    digest = xxhash.xxh3_128(repr((samples.shape, values.kind, values.inverted)).encode())
    digest.update(np.ascontiguousarray(samples).data)
    return digest.hexdigest()
