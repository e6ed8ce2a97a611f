"""Decide once for a data set what becomes of the values and the bands of its images.

What a model was trained with is compared with the images that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from patchline.pipeline.data.config import DataConfig, percentiles_in
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.pixel_values.file_summary import FileSummary
from patchline.pipeline.data.pixel_values.pixel_mapping import (
    EIGHT_BITS,
    PixelMapping,
    ValueFit,
    Values,
    kind_words,
    number,
    white_of,
)
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoding import UndecodableImageError, reserve_and_decode
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.value_ranges.range_choice import (
    ChosenRange,
    Observed,
    choose_range,
    loss_words,
    value_sample,
)
from patchline.pipeline.data.value_ranges.value_fit import FitCounts
from patchline.pipeline.errors import ConfigError, DataError, PipelineError
from patchline.pipeline.terminal_words import by_number, counted
from patchline.plugin_api import PixelValues, ValueRange

_LIKE_OPACITY = 0.25
"""An opacity is whole or none in at least this share of the pixels; a near-infrared band is not."""
_MODE_BANDS = {"1": 1, "L": 1, "LA": 2, "RGBA": 4}
"""Bands of the color modes of Pillow; all others are read as RGB."""
_GREY_MODES = {"1", "L", "LA"}
_SIDE_BY_SIDE = 3
_LEAST_HOUNSFIELD, _MOST_HOUNSFIELD = -4096, 32767
"""Values that computed tomography may have, metal and what is outside of the scan included."""


class DataValues(NamedTuple):
    """What becomes of the values and the bands of a data set."""

    spec: PixelValues
    """The ranges and bands for the store, the package and everything else that decodes an image."""
    is_grey: bool
    """Whether all images are without color then."""
    notes: tuple[str, ...]
    """What a person should know about values and bands, in sentences."""
    frames: tuple[str, ...]
    """A sentence on pages and frames that are not read, if there are some."""
    losses: tuple[str, ...]
    """Those of the notes that say what training may miss."""
    problem: PipelineError | None
    """Why a run cannot use the images as they are."""
    problem_kind: Literal["bands", "value_range"] = "bands"
    """What the problem is about."""

    @property
    def mapping(self) -> PixelMapping:
        """The same for the decoder."""
        return PixelMapping.of(self.spec.model_dump())


class ValuedFile(NamedTuple):
    """A file, and what the manifest notes about its values."""

    path: str
    sha256: str
    mode: str
    summary: FileSummary

    @property
    def bands(self) -> int:
        """The number of its bands."""
        return self.summary.bands or _MODE_BANDS.get(self.mode, 3)


def summaries(rows: pd.DataFrame) -> list[FileSummary]:
    """Return what the manifest notes about the values of each file."""
    texts = rows["values"] if "values" in rows else [""] * len(rows)
    summary_of = {text: FileSummary.read(text or "") for text in set(texts)}
    return [summary_of[text] for text in texts]


def list_valued_files(rows: pd.DataFrame) -> list[ValuedFile]:
    """Return the files of a manifest with what it notes about their values."""
    columns = (rows["path"], rows["sha256"], rows["mode"], summaries(rows))
    return [ValuedFile(*each) for each in zip(*columns, strict=True)]


def choose_values(rows: pd.DataFrame, root: Path, settings: DataConfig) -> DataValues:
    """Decide what becomes of the values and bands of a data set.

    All usable images count, whatever their split: a range is two numbers, and the splits of images
    that are added later are not known yet.

    Args:
        rows: the usable images of a manifest.
        root: the folder or archive that their paths are relative to.
        settings: may fix the range and the bands.
    """
    files = list_valued_files(rows)
    problem = _problem(files, settings)
    no_values: PipelineError | None = None
    bands = settings.bands or ()
    if problem and files:  # what an inspection shows
        bands = (1, 2, 3) if min(file.bands for file in files) >= _SIDE_BY_SIDE else (1,)
    opacity, opacity_notes = _opacity(files, bands)
    ranges, notes, losses = list[ValueRange](), list[str](), list[str]()
    is_set = settings.value_range is not None and not percentiles_in(settings.value_range)
    deep: dict[str, list[ValuedFile]] = {}
    for file in files:
        if file.summary.kind != EIGHT_BITS:
            deep.setdefault(file.summary.kind, []).append(file)
    for kind, group in sorted(deep.items()):
        chosen = _range(kind, group, root, settings, bands)
        ranges.append(ValueRange(kind=kind, low=chosen.low, high=chosen.high, origin=chosen.origin))
        note = _range_note(kind, len(group), len(files), chosen, is_set)
        no_values = no_values or (_flat(group, kind, chosen, bands) if is_set else None)
        notes.append(note)
        losses += [note] if loss_words(chosen) else []
    spec = PixelValues(
        ranges=tuple(ranges),
        bands=bands,
        opacity=opacity,
        eight_bit=not files or any(file.summary.kind == EIGHT_BITS for file in files),
    )
    return DataValues(
        spec=spec,
        is_grey=len(bands) == 1 if bands else all(map(_is_grey, files)),
        notes=(
            *notes,
            *opacity_notes,
            *_notes_on_white(deep),
            *_notes_on_bands(files, settings),
            *_other_notes(files),
            *_find_unused_settings(bool(deep), settings),
        ),
        frames=tuple(_note_on_frames(files)),
        losses=(*losses, *opacity_notes),
        problem=problem or no_values,
        problem_kind="bands" if problem or not no_values else "value_range",
    )


def _is_grey(file: ValuedFile) -> bool:
    return file.summary.colors == 1 if file.summary.is_deep else file.mode in _GREY_MODES


def _problem(files: Sequence[ValuedFile], settings: DataConfig) -> PipelineError | None:
    """Return why nothing says which bands are used; None if something does."""
    if settings.bands:
        named = " ".join(map(str, settings.bands))
        few = [file for file in files if file.bands < max(settings.bands)]
        if not few:
            return None
        return ConfigError(
            f"data.bands is {named}, but {_describe_files(few)} only "
            f"{counted(few[0].bands, 'band')}. Choose bands that every image has, or leave out the "
            "others with data.exclude."
        )
    unknown = [file for file in files if file.summary.unknown_bands]
    if unknown:
        count = max(file.bands for file in unknown)
        choice = "--data.bands 1 2 3" if count >= _SIDE_BY_SIDE else "--data.bands 1"
        return DataError(
            f"{_describe_files(unknown)} {count} bands, and nothing says which of them are used. "
            f"Choose three as red, green and blue ({choice}), or a single one (--data.bands "
            f"{count})."
            if count >= _SIDE_BY_SIDE
            else f"{_describe_files(unknown)} {count} bands, and nothing says which of them is "
            f"used. Choose one ({choice})."
        )
    doubtful = [file for file in files if 0 <= file.summary.clear < _LIKE_OPACITY]
    if doubtful and 2 * len(doubtful) > sum(file.summary.clear >= 0 for file in files):
        count = doubtful[0].bands
        rest = " ".join(map(str, range(1, count)))
        return DataError(
            f"{_describe_files(doubtful)} a band {count} that is declared as opacity, but does not "
            f"look like one: few of its pixels are wholly opaque or transparent. Leave it out with "
            f"--data.bands {rest}, or choose bands with it."
        )
    return None


def _describe_files(files: Sequence[ValuedFile]) -> str:
    """Return how many files there are, and an example: `3 images, such as a.tif, have`."""
    if len(files) == 1:
        return f"the image {files[0].path} has"
    return f"{len(files):,} images, such as {files[0].path}, have"


def _opacity(files: Sequence[ValuedFile], bands: tuple[int, ...]) -> tuple[bool, list[str]]:
    """Return whether opacity is applied, and a note if it would hide the images."""
    with_opacity = [file for file in files if file.summary.clear >= 0]
    hidden = [file for file in with_opacity if file.summary.hidden]
    if bands or 2 * len(hidden) <= len(with_opacity):
        return True, []
    note = (
        f"{len(hidden):,} of {len(with_opacity):,} images with opacity "
        f"{by_number(len(hidden), 'is', 'are')} wholly transparent and "
        "would show nothing, so opacity is ignored"
    )
    return False, [note]


def _range(
    kind: str, group: Sequence[ValuedFile], root: Path, settings: DataConfig, bands: tuple[int, ...]
) -> ChosenRange:
    lows, highs, declared = list[float](), list[float](), list[float]()
    for file in group:
        low, high = file.summary.extremes(bands)
        lows.append(low)
        highs.append(high)
        declared.append(file.summary.declared)
    most = max(bands, default=0)
    listed = [(file.path, file.sha256) for file in group if most <= file.bands]
    observed = Observed(
        kind=kind,
        low=min(lows),
        high=max(highs),
        declared=max(declared) if all(declared) else 0.0,
        sample=value_sample(root, listed, bands),
    )
    return choose_range(observed, settings.value_range)


def _flat(
    group: Sequence[ValuedFile], kind: str, chosen: ChosenRange, bands: tuple[int, ...]
) -> ConfigError | None:
    """Return why images cannot be used whose values all lie on one side of the range."""
    extremes = [file.summary.extremes(bands) for file in group]
    low, high = min(low for low, _ in extremes), max(high for _, high in extremes)
    if low == high or (chosen.low < high and low < chosen.high):
        return None
    color = "black" if high <= chosen.low else "white"
    return ConfigError(
        f"data.value_range is {number(chosen.low)} {number(chosen.high)}, but "
        f"{_describe_files(group)} {kind_words(kind)} values from {number(low)} to {number(high)} "
        f"and would be wholly {color}. Choose a range that contains values of the images, or leave "
        "it out."
    )


def _range_note(kind: str, count: int, total: int, chosen: ChosenRange, is_set: bool) -> str:
    many = f"all {total:,}" if count == total else f"{count:,} of {total:,}"
    words = (
        f"{many} images {by_number(count, 'has', 'have')} {kind_words(kind)} values: "
        f"{number(chosen.low)} to "
        f"{number(chosen.high)} become 256 grey levels ({chosen.origin})"
    )
    losses = loss_words(chosen)
    may_be_ct = _LEAST_HOUNSFIELD <= chosen.low < 0 < chosen.high <= _MOST_HOUNSFIELD
    window = "; for CT, set a window such as --data.value-range -160 240"
    hint = "" if is_set else window if may_be_ct else "; data.value_range sets another"
    return f"{words}{'; ' if losses else ''}{losses}{hint}"


def _notes_on_bands(files: Sequence[ValuedFile], settings: DataConfig) -> Iterator[str]:
    if settings.bands:
        most = max((file.bands for file in files), default=0)
        named = " and ".join(map(str, settings.bands[-2:]))
        named = ", ".join([*map(str, settings.bands[:-2]), named])
        plural = by_number(len(settings.bands), "band", "bands")
        yield f"{plural} {named} of up to {most} are used; the others are dropped"


def _notes_on_white(deep: dict[str, list[ValuedFile]]) -> Iterator[str]:
    """Say that files of one type declare different values of white, although one range maps all."""
    for kind, group in sorted(deep.items()):
        whites = sorted({file.summary.declared for file in group} - {0.0})
        if len(whites) > 1:
            darker = [file for file in group if file.summary.declared == whites[0]]
            many = f"{len(darker):,} of {len(group):,}, such as {darker[0].path}"
            yield (
                f"images of {kind_words(kind)} values declare different values of white, "
                f"{number(whites[0])} ({many}) to {number(whites[-1])}; one range maps all of them"
            )


def _other_notes(files: Sequence[ValuedFile]) -> Iterator[str]:
    """Say which files have more than is used of them."""
    reduced = [file for file in files if file.summary.reduced]
    if reduced:
        most = max(file.summary.reduced for file in reduced)
        yield (
            f"{counted(len(reduced), 'image has', 'images have')} up to {most} bits per color, "
            f"such as {reduced[0].path}, which the decoder of "
            f"{by_number(len(reduced), 'its', 'their')} format "
            "reduces to 8; grey and RGB images keep all bits in 16-bit PNG and TIFF files"
        )
    missing = [file for file in files if file.summary.missing]
    if missing:
        yield (
            f"{counted(len(missing), 'image has', 'images have')} pixels without a known value, "
            f"such as {missing[0].path}; they become black"
        )


def _note_on_frames(files: Sequence[ValuedFile]) -> Iterator[str]:
    several = [file for file in files if file.summary.pages > 1]
    if several:
        yield (
            f"{counted(len(several), 'file has', 'files have')} several pages or frames, such as "
            f"{several[0].path}; the first is used"
        )


def _find_unused_settings(deep: bool, settings: DataConfig) -> Iterator[str]:
    if settings.value_range is not None and not deep:
        yield "data.value_range has no effect, because all images are decoded to 8 bits per color"


OnImage = Callable[[str, bytes, Values], None]


def decide_values(
    manifest: pd.DataFrame,
    root: Path,
    settings: DataConfig,
    on_image: OnImage | None = None,
    *,
    only_usable: bool = False,
) -> DataValues:
    """Decide what becomes of values and bands, then decode the images that had to wait for it.

    Args:
        manifest: the manifest of all files.
        root: the folder or archive that its paths are relative to.
        settings: may fix the range and the bands.
        on_image: called for these images, in a thread.
        only_usable: raise the problem, if there is one.

    Raises:
        DataError: if nothing says which bands are used, and `only_usable` is set.
        ConfigError: likewise, if the bands that are set are not there.
    """
    rows = manifests.usable(manifest)
    values = choose_values(rows, root, settings)
    if values.problem and only_usable:
        raise values.problem
    if on_image:
        hides, mapping = not values.spec.opacity, values.mapping
        waiting = [each.is_deep or (each.hidden and hides) for each in summaries(rows)]
        for _ in decode_each(root, rows["path"][waiting], mapping, on_image):
            pass
    return values


def decode_each(
    root: Path, paths: Iterable[str], mapping: PixelMapping, on_image: OnImage
) -> Iterator[None]:
    """Call a function for each of some images, and yield when it is done.

    Args:
        root: the folder or archive that the paths are relative to.
        paths: the paths of the images.
        mapping: what becomes of their values.
        on_image: called in a thread with the path, the file and the decoded RGB image (H, W, 3).

    Raises:
        DataError: if a file has changed meanwhile.
    """

    def show(path: str) -> None:
        try:
            with (
                root_image_bytes(root, path) as data,
                reserve_and_decode(data, 3, mapping=mapping) as image_HWC,
            ):
                on_image(path, data, image_HWC)
        except UndecodableImageError as error:
            raise DataError(f"{path}: {error}. Restore it, or run again.") from error

    with threads() as pool:
        yield from pool.map(show, paths)


_MARGIN = 0.25
"""Of the range: values that far outside of it are said, because few are always clipped."""


def notes_on_fit(rows: pd.DataFrame, mapping: PixelMapping) -> list[str]:
    """Say which images have other values than those that a model was trained with.

    Args:
        rows: the usable images of a manifest.
        mapping: the value ranges and bands that the model was trained with.

    Raises:
        DataError: if the model cannot take some images.
    """
    files, counts = list_valued_files(rows), FitCounts()
    for file in files:
        if reason := _unfit(file, mapping):
            raise DataError(f"{file.path}: {reason}. Convert it, or remove it from the data.")
    for file in files:
        counts.add(_fit(file.summary, mapping), mapping, file.path)
    return list(counts.notes(mapping))


def with_unfit_damaged(manifest: pd.DataFrame, mapping: PixelMapping) -> pd.DataFrame:
    """Return a manifest in which images with values that a mapping does not know are damaged."""
    rows = manifest[manifest["status"] == "ok"]
    manifest = manifest.copy()
    for place, file in zip(rows.index, list_valued_files(rows), strict=True):
        if reason := _unfit(file, mapping):
            manifest.loc[place, ["status", "reason"]] = ["damaged", reason]
    return manifest


def _fit(summary: FileSummary, mapping: PixelMapping) -> ValueFit:
    """Return how the smallest and the largest value of a file fit the range of its type."""
    if not summary.is_deep or summary.kind == EIGHT_BITS:
        return ValueFit(reduced=summary.reduced)
    low, high = summary.extremes(mapping.bands)
    value_range = mapping.range_of(summary.kind)
    if value_range is None or not low <= high:
        return ValueFit(summary.kind, 0.0, *(value_range or (low, high)))
    margin = _MARGIN * (value_range[1] - value_range[0])
    is_outside = high > value_range[1] + margin or low < value_range[0] - margin
    return ValueFit(summary.kind, float(is_outside), low, high)


def _unfit(file: ValuedFile, mapping: PixelMapping) -> str:
    """Return why the model cannot take an image; empty if it can."""
    bands, summary = file.bands, file.summary
    if mapping.bands:
        if bands < max(mapping.bands):
            named = ", ".join(map(str, mapping.bands))
            return f"it has {bands} band{'' if bands == 1 else 's'}, but the model reads {named}"
    elif summary.unknown_bands:
        return f"it has {bands} bands, and the model was trained on images of grey or RGB"
    kinds = {kind for kind, _, _ in mapping.ranges} | {EIGHT_BITS}
    highest = max(summary.high[: summary.colors], default=0.0)
    if summary.kind not in kinds and not white_of(summary.kind, highest, summary.declared):
        there = [kind_words(kind) for kind, _, _ in mapping.ranges] or ["8-bit"]
        return (
            f"it has {kind_words(summary.kind)} values up to {number(highest)}, and the model was "
            f"trained on "
            f"{' and '.join(there)} values, so that nothing says which are black and white"
        )
    return ""
