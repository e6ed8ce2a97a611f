"""The gates of a promotion that compare two multi-label models: the paired test, and each label.

The test is the paired bootstrap of `patchline.pipeline.metrics.multi_label.paired_bootstrap`.
"""

from __future__ import annotations

from patchline.pipeline.evaluation.comparison import p_value_text
from patchline.pipeline.evaluation.multi_label.label_set_comparison import (
    LabelChange,
    LabelSetComparison,
)
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.metrics.multi_label.names import MAIN, MULTI_LABEL_METRICS
from patchline.pipeline.metrics.multi_label.paired_bootstrap import is_better
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.terminal_words import counted

_SHOWN = 5


def label_set_gates(config: PromotionConfig, comparison: LabelSetComparison) -> list[GateResult]:
    """Check the comparison with the champion: the paired test, and average precision by label."""
    gates = []
    if config.better_than_champion:
        gates.append(_better_than_champion(config, comparison))
    if config.max_class_drop is not None and comparison.images >= config.min_images:
        gates.append(_no_label_worse(config, config.max_class_drop, comparison))
    return gates


def _better_than_champion(config: PromotionConfig, comparison: LabelSetComparison) -> GateResult:
    """Run the paired test: a higher metric on the common images, and significantly so."""
    enough = comparison.images >= config.min_images
    pair = comparison.paired[MAIN]
    if not enough:
        sentence = (
            f"only {counted(comparison.images, 'image was', 'images were')} {comparison.unused} "
            "by either model, fewer "
            f"than promotion.min_images {config.min_images}, so the versions cannot be compared; "
            "add test images"
        )
    else:
        caveat = f"; note that {comparison.caveat}" if comparison.caveat else ""
        others = ", ".join(
            f"{MULTI_LABEL_METRICS[key].title} {100 * each.difference.value:+.1f} points"
            for key, each in comparison.paired.items()
            if key != MAIN
        )
        sentence = (
            f"on {comparison.images:,} images {comparison.unused} by either model, mAP is "
            f"{pair.b:.1%} now and was {pair.a:.1%} before: "
            f"{100 * pair.difference.value:+.1f} points (95% interval "
            f"{100 * pair.difference.low:+.1f} to {100 * pair.difference.high:+.1f}), "
            f"{p_value_text(pair.p_value)}; maximum {config.significance:g} ({others}){caveat}"
        )
    return GateResult(
        name="better_than_champion",
        passed=enough and is_better(pair, config.significance),
        value=pair.difference.value if enough else None,
        threshold=0.0,
        sentence=sentence,
    )


def _no_label_worse(
    config: PromotionConfig, max_drop: float, comparison: LabelSetComparison
) -> GateResult:
    checked = [each for each in comparison.by_label if each.images >= config.class_min_images]
    small = [each for each in comparison.by_label if each.images < config.class_min_images]
    beside = f"; too few images to check: {_names(small)}" if small else ""
    if not checked:
        return GateResult(
            name="no_class_worse",
            passed=True,
            value=None,
            threshold=max_drop,
            sentence=f"no label has {config.class_min_images} comparable images; none checked",
        )
    worst = min(checked, key=lambda change: change.difference)
    drop = max(0.0, -worst.difference)
    lost = "no label loses average precision"
    if drop > 0 and worst.champion is not None and worst.challenger is not None:
        lost = (
            f"'{worst.name}' has the largest loss: average precision {worst.champion.value:.1%} "
            f"before, {worst.challenger.value:.1%} now, on {worst.images:,} images with it"
        )
    return GateResult(
        name="no_class_worse",
        passed=drop <= max_drop + 1e-12,
        value=drop,
        threshold=max_drop,
        sentence=f"{lost}; maximum loss {max_drop:g}{beside}",
    )


def _names(changes: list[LabelChange]) -> str:
    shown = [f"'{change.name}' ({change.images})" for change in changes[:_SHOWN]]
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(shown) + more
