"""Assign images to splits by their content and by earlier assignments.

Images that belong together form a unit that is never divided: images of one group, and images with
the same pixels or the same file. A new unit gets a number in [0, 1) from the SHA-256 of the split
seed and its key (the first of its group names, else of its file digests). New units bring each
class to its share of each split; the numbers decide which ones (`stratification`). If a class has
no image in a split nevertheless, the new unit with the lowest number goes there; where units hold
several classes, more of the new ones may move (`class_coverage`). Assignments are remembered and
never change, however the data grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    LabelPairs,
    Task,
    by_task,
    label_pairs,
)
from patchline.pipeline.data.manifests.same_images import (
    FILE,
    GROUP,
    PIXELS,
    column_of,
    content_numbers,
    unite,
)
from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.data.splits.class_coverage import (
    NEW,
    SPLITS,
    Gap,
    Parts,
    fill_gaps,
    notes_on_gaps,
    too_few,
)
from patchline.pipeline.data.splits.stratification import Stratum, chance_of, rank_units, stratify
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import by_number, counted, few_names

Array = np.ndarray[Any, Any]

RULE = 2
"""Of what is remembered: under another number images would be assigned again."""

REMEMBERED = ["kind", "key", "split"]
"""Columns of earlier assignments; kind is a column that identifies a content or a group."""
_KEY_DIGITS = 32


def assign(
    manifest: pd.DataFrame,
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
    remembered: pd.DataFrame | None = None,
    scope: str = "",
    task: Task = SINGLE_LABEL,
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with every usable image in a split, and notes on what is unusual.

    Splits that the source gives are kept. A missing test or validation split is split off from
    train. A remembered image stays in its split.

    Args:
        manifest: the manifest, with the splits that the source gives.
        validation_fraction: share of the images, if the source gives no such split.
        test_fraction: likewise for the test split.
        seed: the split seed.
        remembered: columns `REMEMBERED` of images and groups that were assigned before.
        scope: a prefix for the names of groups that are remembered, such as the name of the data.
        task: whether an image has one class, or a set of labels.

    Raises:
        DataError: if a class has too few images for the splits, or a label none to train on.
    """
    manifest = manifest.copy()
    usable = manifest["status"] == "ok"
    fractions = split_fractions(manifest, validation_fraction, test_fraction)
    movable = movable_rows(manifest)
    rows = manifest[movable]
    if remembered is None:
        remembered = pd.DataFrame(columns=REMEMBERED, dtype=object)
    pairs = label_pairs(rows["label"], task)
    new = _NewUnits(pairs, fractions, seed, task, random_draws.find_chosen(rows).to_numpy())
    codes, notes, gaps = _decide_splits(rows, new, remembered, scope)
    manifest.loc[movable, "split"] = np.array(SPLITS, dtype=object)[codes]
    manifest.loc[~usable, "split"] = ""
    stuck = {pairs.names[gap.label] for gap in gaps if SPLITS[gap.split] == "train"}
    _check_training_images(manifest[usable], stuck, task)
    _check_no_split_is_empty(manifest[movable], fractions)
    return manifest, [*notes, *notes_on_gaps(gaps, pairs.names, task)]


def split_fractions(
    manifest: pd.DataFrame, validation_fraction: float, test_fraction: float
) -> dict[str, float]:
    """Return the splits that the source does not give, with their shares."""
    given = set(manifest.loc[manifest["status"] == "ok", "split"].unique())
    fractions = {"test": test_fraction, "validation": validation_fraction}
    return {split: share for split, share in fractions.items() if split not in given}


def origin(manifest: pd.DataFrame, missing_splits: Iterable[str]) -> str:
    """Return where the splits come from, in a few words.

    Args:
        manifest: the manifest, with the splits that the source gives.
        missing_splits: the splits that it does not give.
    """
    split_off = " and ".join(missing_splits)
    if not split_off:
        return "as given by the data"
    has_given = (manifest.loc[manifest["status"] == "ok", "split"] != "").any()
    drawn = ""
    if random_draws.find_chosen(manifest[movable_rows(manifest)]).any():
        drawn = ", the test images of those that were drawn at random"
    return f"{split_off} split off from {'train' if has_given else 'all images'}{drawn}"


def movable_rows(manifest: pd.DataFrame) -> pd.Series[bool]:
    """Return which images are not in a split that the source fixes."""
    return (manifest["status"] == "ok") & manifest["split"].isin(["", "train"])


def collect_assignments(rows: pd.DataFrame, scope: str = "") -> pd.DataFrame:
    """Return the assignments to remember; groups in several splits are left out.

    Args:
        rows: images with their splits.
        scope: a prefix for the names of groups, because another dataset may call other groups the
            same.
    """
    tables = []
    for kind in (FILE, PIXELS, GROUP):
        table = pd.DataFrame({"kind": kind, "key": column_of(rows, kind), "split": rows["split"]})
        table = table[table["key"] != ""].drop_duplicates()
        table["key"] = _derive_remembered_keys(table["key"], kind, scope)
        tables.append(table[~table["key"].duplicated(keep=False)])
    return pd.concat(tables, ignore_index=True)[REMEMBERED]


def all_known(rows: pd.DataFrame, remembered: pd.DataFrame, scope: str = "") -> bool:
    """Return whether nothing is to be learned: there is an entry for each image and each group."""
    for kind in (FILE, PIXELS, GROUP):
        keys = column_of(rows, kind)
        held = remembered.loc[remembered["kind"] == kind, "key"]
        if not _derive_remembered_keys(keys[keys != ""], kind, scope).isin(held).all():
            return False
    return True


def _derive_remembered_keys(keys: pd.Series[str], kind: str, scope: str) -> pd.Series[str]:
    """Return the keys of a kind as they are remembered: those of contents are the same anywhere."""
    if kind != GROUP:
        return keys.str[:_KEY_DIGITS]
    return keys.map(lambda name: f"{scope}/{name}") if scope else keys


def _decide_splits(
    rows: pd.DataFrame, new: _NewUnits, remembered: pd.DataFrame, scope: str
) -> tuple[Array, list[str], list[Gap]]:
    """Return the split of each row as an index of `SPLITS`, notes on conflicts, and gaps."""
    groups = column_of(rows, GROUP)
    units = unite(column_of(rows, FILE), column_of(rows, PIXELS), groups)
    of_file = _look_up(rows, remembered, FILE)
    of_content = of_file
    if of_file.isna().any():
        of_content = of_file.fillna(_look_up(rows, remembered, PIXELS))
    of_group = _look_up(rows, remembered, GROUP, scope)
    count = int(units.max()) + 1 if len(units) else 0
    fixed = np.full(count, NEW)
    lowest = np.full(count, len(SPLITS))
    for places in (of_content, of_group):
        there = places.notna().to_numpy()
        values = places[there].to_numpy(np.int64)
        np.maximum.at(fixed, units[there], values)
        np.minimum.at(lowest, units[there], values)
    row_codes = fixed[units]
    torn = ((fixed != NEW) & (lowest != fixed))[units]
    notes = []
    if torn.any():
        parts = _Conflicts(rows[torn], units[torn], of_content[torn], of_group[torn], groups[torn])
        row_codes[torn] = parts.codes()
        notes = parts.notes(is_new=of_file[torn].isna())
    names = _names(rows, units, count)
    codes, gaps = new.decided(units, names, row_codes)
    return codes, notes, gaps


def _look_up(
    rows: pd.DataFrame, remembered: pd.DataFrame, kind: str, scope: str = ""
) -> pd.Series[float]:
    """Return the remembered split of each row as an index of `SPLITS`, NaN if there is none."""
    keys = column_of(rows, kind)
    if not (keys != "").any():
        return pd.Series(np.nan, index=rows.index)
    keys = _derive_remembered_keys(keys, kind, scope).where(keys != "", "")
    own = remembered[remembered["kind"] == kind]
    places = own["split"].map({split: place for place, split in enumerate(SPLITS)})
    by_key = pd.Series(places.to_numpy(np.float64), index=own["key"].to_numpy(object))
    return keys.map(by_key).astype(np.float64)


def _names(rows: pd.DataFrame, units: Array, count: int) -> list[str]:
    """Return the key of each unit: the first of its groups' names, else of its file digests."""
    groups, files = column_of(rows, GROUP), column_of(rows, FILE)
    keys = groups.where(groups != "", files).to_numpy(object)
    names = np.empty(count, dtype=object)
    names[units] = keys  # right for every unit of one row
    shared = (np.bincount(units, minlength=count) > 1)[units]
    if shared.any():
        table = pd.DataFrame(
            {"unit": units[shared], "file": (groups == "").to_numpy()[shared], "key": keys[shared]}
        )
        first = table.drop_duplicates().sort_values(["unit", "file", "key"]).drop_duplicates("unit")
        names[first["unit"]] = first["key"]
    return list(names)


@dataclass(frozen=True)
class _Conflicts:
    """Images that belong together but were assigned to different splits before."""

    rows: pd.DataFrame
    units: Array
    of_content: pd.Series[float]
    of_group: pd.Series[float]
    groups: pd.Series[str]

    def codes(self) -> Array:
        """Return the split of each row: its own, its copies', its group's, or train."""
        contents = content_numbers(self.rows)[0]
        groups = self.groups.where(self.groups != "")
        own = self.of_content.fillna(self.of_content.groupby(contents).transform("min"))
        others = self.of_group.fillna(own)
        others = others.fillna(others.groupby(groups).transform("min"))
        others = others.fillna(others.groupby(self.units).transform("min"))
        together = others.groupby(contents).transform("min")  # new copies are not torn
        return own.fillna(together).to_numpy(np.int64)

    def notes(self, is_new: pd.Series[bool]) -> list[str]:
        """Name the new images that join images of different splits, and their own split."""
        paths = self.rows.loc[is_new, "path"]
        if paths.empty:
            return []
        places = self.codes()[is_new.to_numpy()].tolist()
        named = [f"{path} ({SPLITS[place]})" for path, place in zip(paths, places, strict=True)]
        note = (
            f"{counted(len(named), 'new image joins', 'new images join')} copies or groups "
            "that are already in different splits; none of those was moved, and the new "
            f"{by_number(len(named), 'image is', 'images are')} in the split of the copies: "
            f"{few_names(named, 3)}"
        )
        return [note]


@dataclass(frozen=True)
class _NewUnits:
    """Decides the splits of units that have not been assigned.

    Args:
        pairs: the labels of the images, one entry for each label of each image.
        fractions: shares of the splits to split off.
        seed: the split seed.
        task: whether an image has one class, or a set of labels.
        chosen_N: images that were chosen to be labelled; they are in the test split only if others
            do not suffice.
    """

    pairs: LabelPairs
    fractions: dict[str, float]
    seed: int
    task: Task
    chosen_N: Array

    @property
    def needed(self) -> list[int]:
        """The splits that each class needs, training last."""
        return [SPLITS.index(split) for split in (*self.fractions, "train")]

    def decided(self, units: Array, names: list[str], fixed: Array) -> tuple[Array, list[Gap]]:
        """Return the split of each row, and what is lacking; rows with `NEW` are decided here.

        All rows of a unit are new, or none is.

        Args:
            units: the number of each row's unit.
            names: the key of each unit.
            fixed: the split of each row that was assigned before, else `NEW`.

        Raises:
            DataError: if a class has fewer units than there are splits.
        """
        numbers, codes = self._stratified(units, names, fixed)
        places, rows = self.pairs.labels, self.pairs.images
        table = pd.DataFrame({"label": places, "unit": units[rows], "fixed": fixed[rows]})
        table = table.drop_duplicates().sort_values("label", kind="stable")
        images, own = np.bincount(places), np.bincount(table["label"])
        if self.task == SINGLE_LABEL:
            for label in np.flatnonzero(own < len(self.needed))[:1]:
                name = self.pairs.names[label]
                raise too_few(name, int(images[label]), int(own[label]), self.needed)
        parts = Parts(*(table[column].to_numpy() for column in ("label", "unit", "fixed")))

        last = np.zeros(len(names))
        last[units[self.chosen_N]] = 1  # so that they fill gaps only if no others can
        gaps = fill_gaps(parts, codes, numbers + last, self.needed)
        return np.where(fixed == NEW, codes[units], fixed), gaps

    def _stratified(self, units: Array, names: list[str], fixed: Array) -> tuple[Array, Array]:
        """Return numbers and splits of the units: each label has its share in each split."""
        numbers, codes = self._numbers(units, names, fixed), np.full(len(names), NEW)
        _, *others = self._parts(units, fixed)
        stratum = Stratum(units, self.pairs, fixed, numbers)
        for rows, fractions in others:  # then the images drawn at random fill what is lacking
            codes = self._distributed(stratum.of(rows), fractions)
            stratum = replace(stratum, fixed=np.where(rows, codes[units], fixed))
        rest = self._distributed(stratum, self.fractions)
        return numbers, np.where(codes == NEW, rest, codes)

    def _distributed(self, stratum: Stratum, fractions: dict[str, float]) -> Array:
        shares = [fractions.get(split, 0.0) for split in SPLITS]
        shares[SPLITS.index("train")] = 1 - sum(shares)
        important = self.needed[-1:] + self.needed[:-1]
        if self.task == MULTI_LABEL:
            return stratify(stratum, shares, important)
        codes, is_new = np.full(len(stratum.numbers), NEW), stratum.fixed == NEW
        is_shared = (np.bincount(stratum.units) > 1)[stratum.units]
        if (is_shared & is_new).any():  # then the single images fill what is lacking
            codes = stratify(stratum.of(is_shared | ~is_new), shares, important)
        fixed = np.where(is_new, codes[stratum.units], stratum.fixed)
        rest = rank_units(replace(stratum, fixed=fixed), shares, self.needed)
        return np.where(codes == NEW, rest, codes)

    def _parts(self, units: Array, fixed: Array) -> list[tuple[Array, dict[str, float]]]:
        """Return the new images that were drawn at random, then the others, with their fractions.

        The test split is made of the former alone, and the validation split as far as they suffice:
        so that the splits have their shares of all new images, that of the former is larger.
        """
        is_new, is_chosen = fixed == NEW, self.chosen_N
        drawn_units = len(np.unique(units[~is_chosen]))
        if not is_chosen.any() or drawn_units < random_draws.FEWEST:
            return [(is_new, self.fractions)]
        drawn, others = is_new & ~is_chosen, is_new & is_chosen
        share = drawn.sum() / max(1, is_new.sum())
        of_drawn, of_others, room = {}, {}, 1.0
        for split, fraction in self.fractions.items():  # the test split is the first
            of_drawn[split] = min(room, fraction / share) if share else 0.0
            room -= of_drawn[split]
            rest = fraction - of_drawn[split] * share
            if split != "test" and share < 1:
                of_others[split] = max(0.0, rest / (1 - share))
        return [(drawn, of_drawn), (others, of_others)]

    def _numbers(self, units: Array, names: list[str], fixed: Array) -> Array:
        numbers = np.zeros(len(names))
        for unit in np.unique(units[fixed == NEW]).tolist():
            numbers[unit] = chance_of(f"{self.seed}:{names[unit]}")
        return numbers


def _check_no_split_is_empty(rows: pd.DataFrame, splits: Iterable[str]) -> None:
    there = set(rows["split"].unique())
    for split in splits:
        if split not in there:
            raise DataError(
                f"The {split} split is empty: the images that earlier runs put there are gone, and "
                "images never change their split. Add images, or choose another data.split_seed."
            )


def _check_training_images(rows: pd.DataFrame, stuck: set[str], task: Task) -> None:
    """Raise an error for a class without training images; those `stuck` were there before."""
    pairs = label_pairs(rows["label"], task)
    trained = np.unique(pairs.labels[(rows["split"] == "train").to_numpy()[pairs.images]])
    untrained = sorted(set(pairs.names) - {pairs.names[label] for label in trained})
    if untrained:
        label, what = untrained[0], by_task(task).one
        there = rows["split"].iloc[pairs.images_of(label)]
        reason = ", because images never change their split" if label in stuck else ""
        remedy = ", or choose another data.split_seed" if reason else f", or remove the {what}"
        raise DataError(
            f"{what.capitalize()} '{label}' has images in {' and '.join(sorted(set(there)))}, but "
            f"none to train on{reason}. Add some for training{remedy}."
        )
