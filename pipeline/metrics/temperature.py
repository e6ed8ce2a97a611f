"""The temperature that calibrates a classifier, and how well its images determine it.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from patchline.pipeline.errors import RunError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.row_pieces import row_slices
from patchline.pipeline.terminal_words import by_number

Array = np.ndarray[Any, Any]
LOWEST, HIGHEST = 0.05, 20.0
"""The temperatures that are tried."""
PRIOR_DEVIATION = 0.35
"""Of log T before any image is seen, normal around 0: T lies between 0.5 and 2 in 95% of models.
`benchmarks.statistical_methods calibration` compares it with others on small validation sets."""
WIDEST = 4.0
"""Ratio of the interval's ends up to which the images determine a temperature."""
_NARROW = 1.1
"""Ratio of the ends below which the prior changes less than 1% of the temperature."""
_DROP = 1.920729  # half of the 0.95 quantile of chi-squared with one degree of freedom
_POINTS = 33
_PRECISE, _PRECISE_END = 1e-4, 5e-3
_FIRST_STEP = 0.05
_MOST_PRECISE = 2**25
"""Logits up to which the likelihood is computed in float64; more of them say enough in float32."""


class TemperatureFit(FrozenModel):
    """A temperature, and what the images say about it."""

    temperature: float
    """Divides the logits before the softmax."""
    state: Literal["fitted", "uncertain", "not fitted", "by member", "unknown"]
    """fitted: the images determine it. uncertain: they show that it is not 1, but leave open how
    large it is, which the prior decides. not fitted: they cannot tell it, so it is 1. by member:
    each model of an ensemble has its own. unknown: nothing is recorded."""
    low: float | None = None
    """Lower end of the 95% profile-likelihood interval; None if it is open."""
    high: float | None = None
    """Upper end; None if it is open."""
    images: int = 0
    """Number of images that it was fitted on."""
    reason: str = ""
    """Why the images do not determine it; empty if they do."""
    members: tuple[TemperatureFit, ...] = ()
    """The fits of an ensemble's models, each on images that its model was not trained on."""

    @property
    def is_determined(self) -> bool:
        """Whether images determine the temperature: not in doubt, and not by the prior alone."""
        if self.members:
            return all(member.is_determined for member in self.members)
        return self.state == "fitted"

    @property
    def allowed(self) -> str:
        """The interval in words."""
        if self.low is None and self.high is None:
            return f"any temperature from {LOWEST:g} to {HIGHEST:g}"
        if self.low is None:
            return f"any temperature below {self.high:.2f}"
        if self.high is None:
            return f"any temperature above {self.low:.2f}"
        return f"{self.low:.2f} to {self.high:.2f}"

    def sentence(self) -> str:
        """Return the temperature with its evidence, without a full stop."""
        images = f"{self.images:,} validation image{'' if self.images == 1 else 's'}"
        if self.state == "fitted":
            return (
                f"temperature {self.temperature:.3g}, fitted on {images} (95% interval "
                f"{self.allowed})"
            )
        if self.state == "uncertain":
            return (
                f"temperature {self.temperature:.3g}, uncertain: {self.reason} (95% interval "
                f"{self.allowed}), so a prior draws it towards 1; more validation images would tell"
            )
        if self.state == "not fitted":
            return (
                f"temperature 1, not fitted: {self.reason}, so the probabilities are uncalibrated"
            )
        if self.state == "by member":
            return f"each model of the ensemble has its own temperature: {_listed(self.members)}"
        return "it is not recorded whether the probabilities are calibrated"

    def before(self) -> str:
        """Return whether the model was overconfident before, as far as the images show it."""
        if self.state == "by member":
            return "It is unknown how confident the ensemble would be without these temperatures"
        if self.low is not None and self.low > 1:
            return "The uncalibrated model was overconfident"
        if self.high is not None and self.high < 1:
            return "The uncalibrated model was underconfident"
        if self.is_determined and self.low is not None and self.high is not None:
            near = 1.1  # ten percent change a probability of 0.8 by less than 0.02
            if self.low > 1 / near and self.high < near:
                return "The model was well calibrated even without temperature scaling"
        return (
            "The validation images do not show whether the uncalibrated model is over- or "
            "underconfident"
        )


UNRECORDED = TemperatureFit(temperature=1.0, state="unknown")
"""Of a model without a record of its calibration."""


def recorded(calibration: Mapping[str, Any] | None, temperature: float) -> TemperatureFit:
    """Return the fit that a package's description holds; unknown if it holds none."""
    if calibration is None:
        return UNRECORDED.model_copy(update={"temperature": temperature})
    return TemperatureFit.model_validate(calibration)


def by_member(members: tuple[TemperatureFit, ...]) -> TemperatureFit:
    """Return the calibration of an ensemble, whose average has no temperature of its own.

    Nothing is left to fit it on: each image has been used to train some of the models.
    """
    return TemperatureFit(
        temperature=1.0,
        state="by member",
        images=sum(member.images for member in members),
        members=members,
        reason="no image is left that none of its models was trained on",
    )


def fit_temperature(
    logits_NK: Array, labels_N: Array, prior_deviation: float = PRIOR_DEVIATION
) -> TemperatureFit:
    """Fit the temperature of a classifier on images that it was not trained on.

    The likelihood is that of the labels under softmax(logits / T) (arXiv 1706.04599): each image
    counts once, without class weights or label smoothing. Its 95% interval is that of the profile
    likelihood (Wilks 1938). If the interval is open, or its ends differ by more than a factor of 4,
    the images do not determine T; and if it contains 1 then, T stays 1.

    Otherwise T minimises the expected log loss under the posterior of log T, whose prior is normal
    around 0 with standard deviation 0.35; if they determine T, within the interval. So few move T
    little, and rather towards less confidence than towards more, which costs more if it is wrong.

    Args:
        logits_NK: of the model; minus infinity for impossible classes.
        labels_N: class indices.
        prior_deviation: of log T.

    Raises:
        RunError: if logits are NaN or plus infinity.
    """
    images, classes = len(labels_N), len(np.unique(labels_N))
    if images == 0:
        return _unfitted(0, "there is no validation image")
    likelihood = _Likelihood.of(logits_NK, labels_N)
    peak, interval = _profile(likelihood.value)
    low, high = interval.ends()
    bounds = {"low": low, "high": high, "images": images}
    if classes == 1 and logits_NK.shape[1] > 1:
        return _unfitted(images, "all validation images are of one class")
    wide = low is None or high is None or high / low > WIDEST
    if wide and interval.start <= 0 <= interval.stop:
        reason = _flat(
            logits_NK, labels_N, TemperatureFit(temperature=1, state="unknown", **bounds)
        )
        return _unfitted(images, reason, low, high)
    narrow = low is not None and high is not None and high / low < _NARROW
    if not narrow:
        peak = _least_expected_loss(likelihood, interval, prior_deviation)
    stop = 0.0 if wide else interval.stop  # nothing but the prior limits confidence without errors
    best = float(np.exp(np.clip(peak, interval.start, max(stop, interval.stop))))
    if not wide:
        return TemperatureFit(temperature=best, state="fitted", **bounds)
    direction = "overconfident" if interval.start > 0 else "underconfident"
    reason = f"{images:,} validation images show that the model is {direction}, but not by how much"
    return TemperatureFit(temperature=best, state="uncertain", reason=reason, **bounds)


def _unfitted(
    images: int, reason: str, low: float | None = None, high: float | None = None
) -> TemperatureFit:
    return TemperatureFit(
        temperature=1.0, state="not fitted", low=low, high=high, images=images, reason=reason
    )


def _flat(logits_NK: Array, labels_N: Array, fit: TemperatureFit) -> str:
    """Return why the likelihood is too flat."""
    right = int((logits_NK.argmax(axis=1) == labels_N).sum())
    images = fit.images
    are = by_number(right, "is", "are")
    how = f"{right:,} of {images:,} validation images {are} classified correctly"
    if right in (0, images):
        how = (
            f"all {images:,} validation images are classified {'in' if not right else ''}correctly"
        )
        how = how.replace("all 1 validation images are", "the only validation image is")
    return f"{how}, which allows {fit.allowed}"


def _listed(members: tuple[TemperatureFit, ...]) -> str:
    values = ", ".join(f"{member.temperature:.3g}" for member in members)
    unsure = [n for n, member in enumerate(members, start=1) if not member.is_determined]
    if not unsure:
        return f"{values}, fitted on the images of its fold"
    each = "1 of these is" if len(unsure) == 1 else f"{len(unsure)} of these are"
    first = members[unsure[0] - 1]
    return (
        f"{values}; {each} not determined by the images of its fold (fold {unsure[0]}: "
        f"{first.reason})"
    )


class _Interval(NamedTuple):
    """Logarithms of temperatures, and whether it ends there or is open."""

    start: float
    stop: float
    open_start: bool
    open_stop: bool

    def ends(self) -> tuple[float | None, float | None]:
        """Return both ends as temperatures; None for an open one."""
        low = None if self.open_start else float(np.exp(self.start))
        return low, None if self.open_stop else float(np.exp(self.stop))


class _Likelihood(NamedTuple):
    """The log-likelihood of log T, and the mean logits that the model expects at T."""

    logits_NK: Array
    labels_N: Array
    highest_N: Array
    precise: type[np.floating[Any]]

    @classmethod
    def of(cls, logits_NK: Array, labels_N: Array) -> Self:
        """Check the logits."""
        highest_N = logits_NK.max(axis=1, keepdims=True)
        broken = int((~np.isfinite(highest_N)).sum())  # the largest is NaN if any is
        if broken:
            raise RunError(
                f"The model's outputs for {broken:,} of {len(labels_N):,} validation images are "
                "not finite numbers, so they cannot be calibrated. Train with "
                "training.precision float32, or with a lower learning rate."
            )
        precise = np.float64 if logits_NK.size <= _MOST_PRECISE else np.float32
        return cls(logits_NK, labels_N, highest_N, precise)

    def value(self, log_temperature: float) -> float:
        """Return the log-likelihood of all images that some temperature makes possible."""
        return self._sums(log_temperature, expected=False)[0]

    def expected_logits(self, log_temperature: float) -> tuple[float, float]:
        """Return the log-likelihood and the sum of each image's expected logit below its highest.

        The second increases as the temperature falls, towards 0.
        """
        return self._sums(log_temperature, expected=True)

    def _sums(self, log_temperature: float, *, expected: bool) -> tuple[float, float]:
        temperature = self.precise(np.exp(log_temperature))
        likelihood = logits = 0.0
        for rows in row_slices(self.logits_NK.shape):
            scaled = self.logits_NK[rows].astype(self.precise)
            scaled -= self.highest_N[rows].astype(self.precise)
            scaled /= temperature
            own_N = np.take_along_axis(scaled, self.labels_N[rows, None], axis=1)[:, 0]
            powers = np.exp(scaled)
            totals_N = powers.sum(axis=1)
            possible_N = np.isfinite(own_N)  # no temperature makes the others possible
            likelihood += float((own_N - np.log(totals_N))[possible_N].sum(dtype=np.float64))
            if expected:
                powers *= np.where(powers > 0, scaled, 0)
                logits += float((powers.sum(axis=1) / totals_N).sum(dtype=np.float64))
        return likelihood, logits * float(temperature)


def _profile(value: Callable[[float], float]) -> tuple[float, _Interval]:
    """Return the log temperature of the largest likelihood, and its 95% interval."""
    from scipy.optimize import brentq, minimize_scalar

    bounds = float(np.log(LOWEST)), float(np.log(HIGHEST))
    options = {"xatol": _PRECISE}
    optimum = minimize_scalar(
        lambda at: -value(at), bounds=bounds, method="bounded", options=options
    )
    edges = {end: value(end) for end in bounds}
    peak, most = max(
        [(float(optimum.x), -float(optimum.fun)), *edges.items()], key=lambda pair: pair[1]
    )

    def excess(at: float) -> float:
        return value(at) - most + _DROP

    ends, is_open = [], []
    for bound, step in zip(bounds, (-_FIRST_STEP, _FIRST_STEP), strict=True):
        inside, reach = peak, step
        outside = float(np.clip(peak + reach, *bounds))
        while outside != bound and excess(outside) > 0:
            inside, reach = outside, 2 * reach
            outside = float(np.clip(peak + reach, *bounds))
        is_open.append(outside == bound and edges[bound] - most + _DROP > 0)
        ends.append(
            outside if is_open[-1] else float(brentq(excess, inside, outside, xtol=_PRECISE_END))
        )
    return peak, _Interval(ends[0], ends[1], is_open[0], is_open[1])


def _least_expected_loss(
    likelihood: _Likelihood, interval: _Interval, prior_deviation: float
) -> float:
    """Return the log temperature with the least expected log loss under the posterior.

    The loss under softmax(logits / T), expected over softmax(logits / T') with T' of the posterior,
    is least where the model expects the same logits at T as on average over T'.
    """
    width = interval.stop - interval.start
    start = max(np.log(LOWEST), interval.start - width)
    stop = min(np.log(HIGHEST), interval.stop + width)
    at_S = np.linspace(start, stop, _POINTS)
    values_S, logits_S = np.array([likelihood.expected_logits(float(at)) for at in at_S]).T
    logs_S = values_S - at_S**2 / (2 * prior_deviation**2)
    weights_S = np.exp(logs_S - logs_S.max())
    mean = float((weights_S * logits_S).sum() / weights_S.sum())
    return float(np.interp(mean, logits_S[::-1], at_S[::-1]))  # they fall as T rises
