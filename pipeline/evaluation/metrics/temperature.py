"""The temperature that calibrates a classifier, and how well its images determine it.

A model that was trained with balanced class weights or balanced sampling answers as if every class
were equally frequent. A temperature cannot undo that, so it has a bias for each class, too.

Shapes: N images, K classes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted

Array = np.ndarray[Any, Any]
LOWEST, HIGHEST = 0.05, 20.0
"""The temperatures that are tried."""
PRIOR_DEVIATION = 0.35
"""Of log T before any image is seen, normal around 0: T lies between 0.5 and 2 in 95% of models.
`benchmarks.statistical_methods calibration` compares it with others on small validation sets."""
SHARE_DEVIATION, BIAS_DEVIATION = 0.5, 0.5
"""Of the bias of a model that was trained with balanced classes, before any image is seen: it is a
multiple of the logarithm of the class shares, normal around 1 with the first standard deviation,
and each class deviates from that by the second. `benchmarks.statistical_methods weights` compares
it with no bias and with the logarithm alone."""
WIDEST = 4.0
"""Ratio of the interval's ends up to which the images determine a temperature."""
_NARROW = 1.1
"""Ratio of the ends below which the prior changes less than 1% of the temperature."""
_DROP = 1.920729  # half of the 0.95 quantile of chi-squared with one degree of freedom
_POINTS = 33
_PRECISE, _PRECISE_END = 1e-4, 5e-3
_FIRST_STEP = 0.05
_MOST_BIAS_STEPS, _IMPOSSIBLE = 200, 1e4
_LEAST_PROBABILITY = 1e-300
_MOST_PRECISE = 2**25
"""Logits up to which the likelihood is computed in float64; more of them say enough in float32."""


class TemperatureFit(FrozenModel):
    """What maps logits to probabilities, softmax(logits / temperature + bias), and its evidence."""

    temperature: float
    """Divides the logits before the softmax."""
    bias: tuple[float, ...] = Field(default=(), exclude_if=operator.not_)
    """Bias of each class, added to the divided logits: undoes balanced class weights, or balanced
    sampling; empty for a model that was trained without these."""
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

    off: str = Field(default="", exclude_if=operator.not_)
    """What the images of a report show against the probabilities; empty if nothing."""

    def scaling(self, num_classes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return what each of the K logits is multiplied with, and what is then added to it."""
        return (1 / self.temperature,) * num_classes, self.bias or (0.0,) * num_classes

    def logits(self, logits_NK: Array) -> Array:
        """Return calibrated logits (N, K) in float64, whose softmax is the probabilities."""
        scaled_NK: Array = logits_NK.astype(np.float64) / self.temperature + np.array(
            self.bias or 0.0
        )
        return scaled_NK

    def uncalibrated_probabilities(self, probabilities_NK: Array) -> Array:
        """Return the probabilities before calibration of calibrated ones (N, K), in float64."""
        from scipy.special import softmax

        logs_NK = np.log(np.maximum(probabilities_NK.astype(np.float64), _LEAST_PROBABILITY))
        before_NK: Array = softmax(self.temperature * (logs_NK - self.class_bias), axis=1)
        return before_NK

    def undivided(self) -> Self:
        """Return what adds the bias to the logits, with temperature 1."""
        bias = tuple(self.temperature * each for each in self.bias)
        return self.model_copy(update={"temperature": 1.0, "bias": bias})

    @property
    def class_bias(self) -> Array:
        """The bias of each class (K), of an ensemble the mean of its models'; 0 without any."""
        members = [each.class_bias for each in self.members]
        bias_K: Array = np.mean(members, axis=0) if members else np.array(self.bias or 0.0)
        return bias_K

    @property
    def is_calibrated(self) -> bool:
        """Whether images determine the temperature, and none are known to contradict it."""
        return self.is_determined and not self.off

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
        """Return the calibration with its evidence, without a full stop."""
        biased = ""
        if self.class_bias.any():
            biased = "; a bias for each class undoes the balanced classes of the training"
        return f"{self._sentence()}{biased}{f'; but {self.off}' if self.off else ''}"

    def _sentence(self) -> str:
        """Return the temperature with its evidence."""
        images = counted(self.images, "validation image")
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
                f"temperature 1, not fitted: {self.reason}, so the probabilities are "
                f"{'not calibrated further' if self.bias else 'uncalibrated'}"
            )
        if self.state == "by member":
            members = _describe_members(self.members)
            return f"each model of the ensemble has its own temperature: {members}"
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


def read_recorded_fit(calibration: Mapping[str, Any] | None, temperature: float) -> TemperatureFit:
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
    logits_NK: Array,
    labels_N: Array,
    prior_deviation: float = PRIOR_DEVIATION,
    *,
    groups: ImageGroups | None = None,
    class_images: Sequence[int] = (),
) -> TemperatureFit:
    """Fit the temperature of a classifier on images that it was not trained on.

    The likelihood is that of the labels under softmax(logits / T) (arXiv 1706.04599): each image
    counts once, without class weights or label smoothing. Its 95% interval is that of the profile
    likelihood (Wilks 1938). If the interval is open, or its ends differ by more than a factor of 4,
    the images do not determine T; and if it contains 1 then, T stays 1.

    Otherwise T minimises the expected log loss under the posterior of log T, whose prior is normal
    around 0 with standard deviation 0.35; if they determine T, within the interval. So few move T
    little, and rather towards less confidence than towards more, which costs more if it is wrong.

    With groups, the groups are the sample: the log-likelihood is divided by the design effect of
    the images' scores at the largest likelihood (Kish 1965), with the degrees of freedom of the
    groups. Few groups so leave the interval open.

    If the classes had equal weight in training, a bias of each is fitted first: see `_fit_bias`.

    Args:
        logits_NK: logits of the model; minus infinity for impossible classes.
        labels_N: class indices.
        prior_deviation: standard deviation of the prior of log T.
        groups: the groups that the images form; None if the images are independent.
        class_images: number of training images of each class (K), if the classes were balanced in
            training by weights or by sampling; else empty.

    Raises:
        RunError: if logits are NaN or plus infinity.
    """
    bias = _fit_bias(logits_NK, labels_N, np.array(class_images)) if class_images else ()
    fit = _fit_beside_bias(logits_NK, labels_N, prior_deviation, groups, bias)
    return fit.model_copy(update={"bias": bias})


def _fit_beside_bias(
    logits_NK: Array,
    labels_N: Array,
    prior_deviation: float,
    groups: ImageGroups | None,
    bias: tuple[float, ...],
) -> TemperatureFit:
    """Return the temperature beside a bias that is known."""
    images, classes = len(labels_N), len(np.unique(labels_N))
    fit = TemperatureFit(temperature=1.0, state="not fitted", images=images)
    if images == 0:
        return fit.model_copy(update={"reason": "there is no validation image"})
    likelihood = _Likelihood.of(logits_NK, labels_N, bias)
    peak, interval = _profile(likelihood.value)
    if groups is not None:
        likelihood = likelihood._replace(inflation=groups.inflation(likelihood.scores(peak)))
        peak, interval = _profile(likelihood.value)
    if classes == 1 and logits_NK.shape[1] > 1:
        return fit.model_copy(update={"reason": "all validation images are of one class"})
    low, high = interval.ends()
    fit = fit.model_copy(update={"low": low, "high": high})
    wide = low is None or high is None or high / low > WIDEST
    if wide and interval.start <= 0 <= interval.stop:
        return fit.model_copy(update={"reason": _flat(logits_NK, labels_N, fit, groups, bias)})
    narrow = low is not None and high is not None and high / low < _NARROW
    if not narrow:
        peak = _least_expected_loss(likelihood, interval, prior_deviation)
    stop = 0.0 if wide else interval.stop  # nothing but the prior limits confidence without errors
    best = float(np.exp(np.clip(peak, interval.start, max(stop, interval.stop))))
    if not wide:
        return fit.model_copy(update={"temperature": best, "state": "fitted"})
    direction = "overconfident" if interval.start > 0 else "underconfident"
    reason = f"{images:,} validation images show that the model is {direction}, but not by how much"
    return fit.model_copy(update={"temperature": best, "state": "uncertain", "reason": reason})


def _flat(
    logits_NK: Array,
    labels_N: Array,
    fit: TemperatureFit,
    groups: ImageGroups | None,
    bias: tuple[float, ...],
) -> str:
    """Return why the likelihood is too flat."""
    right = int(((logits_NK + np.array(bias or 0.0)).argmax(axis=1) == labels_N).sum())
    images = fit.images
    are = by_number(right, "is", "are")
    of = f" of {groups.count:,} {by_number(groups.count, 'group', 'groups')}" if groups else ""
    how = f"{right:,} of {images:,} validation images{of} {are} classified correctly"
    if right in (0, images):
        correctly = "correctly" if right else "incorrectly"
        how = f"all {images:,} validation images{of} are classified {correctly}"
        how = how.replace(f"all 1 validation images{of} are", "the only validation image is")
    return f"{how}, which allows {fit.allowed}"


def _describe_members(members: tuple[TemperatureFit, ...]) -> str:
    values = ", ".join(f"{member.temperature:.3g}" for member in members)
    unsure = [n for n, member in enumerate(members, start=1) if not member.is_determined]
    if not unsure:
        return f"{values}, fitted on the images of its fold"
    each = counted(len(unsure), "of these is", "of these are")
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
    bias_K: Array
    inflation: float = 1.0
    """Factor by which groups inflate the squared width of an interval."""

    @classmethod
    def of(cls, logits_NK: Array, labels_N: Array, bias: Sequence[float] = ()) -> Self:
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
        return cls(logits_NK, labels_N, highest_N, precise, np.array(bias or 0.0, precise))

    def value(self, log_temperature: float) -> float:
        """Return the log-likelihood of all images that some temperature makes possible."""
        return self._sums(log_temperature) / self.inflation

    def expected_logits(self, log_temperature: float) -> tuple[float, float]:
        """Return the log-likelihood and the sum of each image's expected logit below its highest.

        The second increases as the temperature falls, towards 0.
        """
        expected_N = np.empty(len(self.labels_N))
        likelihood = self._sums(log_temperature, expected_N)
        return likelihood / self.inflation, float(expected_N.sum())

    def scores(self, log_temperature: float) -> Array:
        """Return each image's expected logit less that of its label (N)."""
        scores_N = np.empty(len(self.labels_N))
        self._sums(log_temperature, scores_N)
        own_N = np.take_along_axis(self.logits_NK, self.labels_N[:, None], axis=1)
        own_N = (own_N.astype(np.float64) - self.highest_N)[:, 0]
        return np.where(np.isfinite(own_N), scores_N - own_N, 0.0)

    def _sums(self, log_temperature: float, expected_N: Array | None = None) -> float:
        """Return the log-likelihood; fill in the expected logits below the highest."""
        temperature = self.precise(np.exp(log_temperature))
        likelihood = 0.0
        for rows in row_slices(self.logits_NK.shape):
            scaled = self.logits_NK[rows].astype(self.precise)
            scaled -= self.highest_N[rows].astype(self.precise)
            scaled /= temperature
            own_N = np.take_along_axis(scaled, self.labels_N[rows, None], axis=1)[:, 0]
            if self.bias_K.ndim:
                own_N = own_N + self.bias_K[self.labels_N[rows]]
            powers = np.exp(scaled + self.bias_K)
            totals_N = powers.sum(axis=1)
            possible_N = np.isfinite(own_N)  # no temperature makes the others possible
            likelihood += float((own_N - np.log(totals_N))[possible_N].sum(dtype=np.float64))
            if expected_N is not None:
                powers *= np.where(powers > 0, scaled, 0)
                expected_N[rows] = powers.sum(axis=1) / totals_N * temperature
        return likelihood


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


def _fit_bias(logits_NK: Array, labels_N: Array, images_K: Array) -> tuple[float, ...]:
    """Return the bias of each class, the largest of which is 0.

    Weights that are inverse to the class shares, or sampling by them, move the log odds of a fitted
    model by the logarithm of the shares (King and Zeng 2001, Political Analysis 9); those of a
    model that fits every training image, by less (arXiv 1812.03372). So the bias is a multiple of
    that logarithm plus a deviation of each class, at the mode of the posterior with T. Without
    validation images of two classes, it is the logarithm itself.

    Args:
        logits_NK: logits of the model.
        labels_N: class indices.
        images_K: number of training images of each class.
    """
    from scipy.optimize import minimize

    log_K = np.log(np.maximum(images_K, 1) / max(1, images_K.max()))
    if len(np.unique(labels_N)) < 2:  # noqa: PLR2004 - nothing to tell apart
        return tuple(log_K.tolist())
    _Likelihood.of(logits_NK, labels_N)
    finite_NK = np.where(np.isfinite(logits_NK), logits_NK, -_IMPOSSIBLE)
    shifted_NK = finite_NK - finite_NK.max(axis=1, keepdims=True)
    counts_K = np.bincount(labels_N, minlength=len(log_K))

    def posterior(values: Array) -> tuple[float, Array]:
        """Return its negative logarithm, and that's gradient: log 1/T, multiple, deviations."""
        power, multiple, deviation_K = np.exp(values[0]), values[1], values[2:]
        bias_K = multiple * log_K + deviation_K
        loss = (
            values[0] ** 2 / 2 / PRIOR_DEVIATION**2 + (multiple - 1) ** 2 / 2 / SHARE_DEVIATION**2
        )
        loss += float((deviation_K**2).sum()) / 2 / BIAS_DEVIATION**2
        slope, expected_K = 0.0, -counts_K.astype(np.float64)
        for rows in row_slices(shifted_NK.shape):
            part = shifted_NK[rows].astype(np.float64)
            own = np.take_along_axis(part, labels_N[rows, None], axis=1)[:, 0]
            scaled = power * part + bias_K
            highest = scaled.max(axis=1, keepdims=True)
            powers = np.exp(scaled - highest)
            totals = powers.sum(axis=1, keepdims=True)
            own_log = power * own + bias_K[labels_N[rows]]
            loss += float((highest[:, 0] + np.log(totals[:, 0]) - own_log).sum())
            powers /= totals
            expected_K = expected_K + powers.sum(axis=0)
            slope += float((powers * part).sum() - own.sum())
        return loss, np.concatenate(
            [
                [power * slope + values[0] / PRIOR_DEVIATION**2],
                [expected_K @ log_K + (multiple - 1) / SHARE_DEVIATION**2],
                expected_K + deviation_K / BIAS_DEVIATION**2,
            ]
        )

    start = np.concatenate([[0.0, 1.0], np.zeros(len(log_K))])
    bounds = [(-np.log(HIGHEST), -np.log(LOWEST)), *[(None, None)] * (len(log_K) + 1)]
    options = {"maxiter": _MOST_BIAS_STEPS}
    found = minimize(
        posterior, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    bias_K = found[1] * log_K + found[2:]
    return tuple((bias_K - bias_K.max()).tolist())
