"""Each cause is planted and must be named, it alone, with the setting or the suspect to look at;
and where all is well nothing is said."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.off_policy import FEW
from asyncrl.explain.conditions.table import findings
from asyncrl.staleness.bins import at_lag
from asyncrl.staleness.diagnostics import by_lag
from asyncrl.training.sums import Sums

WELL = {"k3": 0.01, "ess": 0.9}


def lags(
    name: str, values: dict[int, float], unit: str = "tokens", count: float = 1000
) -> dict[str, float]:
    """A metric by lag, with as many tokens or rollouts in each bin, and the mean over all."""
    of_bins = {at_lag(name, lag): value for lag, value in values.items()} | {
        at_lag(unit, lag): count for lag in values
    }
    return of_bins | {name: sum(values.values()) / len(values)}


def say(metrics: dict[str, float], trained: int = 1000, **discarded: int) -> dict[str, str]:
    facts = RunFacts(metrics=WELL | metrics, trained=trained, left_out=discarded)
    found = findings(facts)
    assert len({alarm.name for alarm in found}) == len(found)
    for alarm in found:
        assert (
            alarm.sentence[0].isalnum()
            and alarm.sentence.endswith(".")
            and ". " not in alarm.sentence
        )
    return {alarm.name: alarm.sentence for alarm in found}


class TestDivergence:
    def test_a_mismatch_is_there_at_lag_0(self) -> None:
        (name, sentence), *others = say(lags("k3", {0: 0.3, 1: 0.3, 4: 0.35})).items()
        assert name == "mismatch" and not others
        assert "0.3 at lag 0" in sentence and "dtype (model.dtype)" in sentence

    def test_a_mismatch_is_seen_where_old_tokens_are_few(self) -> None:
        """The mean is in its band and the fresh tokens are not: nothing but a mismatch can do
        that."""
        assert list(say(lags("k3", {0: 0.3}) | {"k3": 0.05})) == ["mismatch"]

    def test_staleness_grows_with_lag(self) -> None:
        (name, sentence), *others = say(lags("k3", {0: 0.001, 2: 0.2, 8: 0.9})).items()
        assert name == "staleness" and not others
        assert "0.001 at lag 0 and 0.55 above" in sentence and "staleness.max_lag" in sentence

    def test_both_are_named_where_both_are(self) -> None:
        assert list(say(lags("k3", {0: 0.2, 4: 1.0}))) == ["mismatch", "staleness"]

    def test_without_fresh_tokens_growth_decides(self) -> None:
        assert list(say(lags("k3", {2: 0.1, 6: 0.9}))) == ["staleness"]
        assert list(say(lags("k3", {2: 0.5, 6: 0.6}))) == ["mismatch"]

    def test_one_lag_alone_leaves_it_open_and_says_how_to_find_out(self) -> None:
        (name, sentence), *others = say(lags("k3", {3: 0.4})).items()
        assert name == "divergence" and not others
        assert "at lag 3" in sentence and "max_lag = 0" in sentence

    def test_a_handful_of_tokens_accuses_nobody(self) -> None:
        few = {at_lag("tokens", 0): FEW["tokens"] - 1, at_lag("k3", 0): 50.0}
        assert not say(lags("k3", {1: 0.02, 2: 0.03}) | few)
        assert list(say(lags("k3", {1: 0.05, 2: 0.9}) | few)) == ["staleness"]
        (name, sentence) = next(iter(say(few | {"k3": 50.0}).items()))
        assert name == "divergence" and "few tokens" in sentence

    def test_the_weights_are_the_tokens(self) -> None:
        """One far bin of few tokens among many near ones is not growth."""
        many = {at_lag("tokens", lag): 1e6 for lag in (0, 1)} | {
            at_lag("k3", lag): 0.09 for lag in (0, 1)
        }
        assert list(
            say(many | {at_lag("tokens", 9): 100, at_lag("k3", 9): 900.0} | {"k3": 0.15})
        ) == ["mismatch"]


class TestMasked:
    def test_stale_tokens_are_a_matter_of_depth(self) -> None:
        (name, sentence), *others = say({}, trained=40, stale=55, icepop=5).items()
        assert name == "masked_stale" and not others
        assert (
            sentence.startswith("60% of the step's tokens")
            and "(92%) as stale" in sentence
            and "staleness.depth" in sentence
        )

    def test_rejected_by_age(self) -> None:
        (name, sentence), *others = say(
            lags("kept_fraction", {0: 0.99, 3: 0.3}), trained=30, icepop=70
        ).items()
        assert name == "masked_icepop" and not others
        assert (
            "1% are rejected at lag 0 and 70% above" in sentence
            and "it is their age" in sentence
            and "staleness.max_lag" in sentence
        )

    def test_rejected_whatever_the_age(self) -> None:
        (name, sentence), *_ = say(
            lags("kept_fraction", {0: 0.4, 3: 0.3}), trained=35, mis=65
        ).items()
        assert (
            name == "masked_mis"
            and "disagree at every age" in sentence
            and "dtype (model.dtype)" in sentence
        )

    def test_rejected_at_one_lag_alone(self) -> None:
        assert (
            "leaves its bounds at lag 2"
            in say(lags("kept_fraction", {2: 0.3}), trained=30, k3=70)["masked_k3"]
        )
        assert "in few tokens" in say({}, trained=30, k3=70)["masked_k3"]

    def test_the_median_is_no_correction(self) -> None:
        assert "rollout.group_size" in say({}, trained=0, median=70)["masked_median"]

    def test_everything_left_out(self) -> None:
        assert list(say({}, trained=0, stale=1)) == ["masked_stale"]


class TestSampleSize:
    def test_uneven_when_fresh_is_a_mismatch(self) -> None:
        (name, sentence), *others = say(lags("ess", {0: 0.05, 2: 0.04}, "rollouts", 32)).items()
        assert name == "ess_mismatch" and not others and "0.05 at lag 0 already" in sentence

    def test_uneven_with_age_is_staleness(self) -> None:
        (name, sentence), *others = say(
            lags("ess", {0: 0.9, 4: 0.02, 8: 0.01}, "rollouts", 32) | {"ess": 0.03}
        ).items()
        assert name == "ess_staleness" and not others
        assert "0.9 at lag 0 and less above" in sentence and "train.ess_base" in sentence

    def test_uneven_everywhere_is_left_open(self) -> None:
        assert list(say(lags("ess", {2: 0.05, 4: 0.04}, "rollouts", 32))) == ["ess"]
        assert list(say(lags("ess", {0: 0.11, 4: 0.08}, "rollouts", 32))) == ["ess"]
        assert list(
            say(lags("ess", {0: 0.9, 4: 0.01}, "rollouts", FEW["rollouts"] - 1) | {"ess": 0.05})
        ) == ["ess"]


def test_a_log_probability_that_is_no_number_is_always_said() -> None:
    (name, sentence), *others = say({}, trained=10_000, nonfinite=1).items()
    assert name == "nonfinite" and not others and sentence.startswith("1 tokens")
    assert set(say({}, trained=10, nonfinite=90)) == {"masked_nonfinite", "nonfinite"}


@given(
    st.dictionaries(
        st.integers(0, 99),
        st.tuples(st.floats(0, 0.1), st.floats(0.1, 1), st.floats(0, 1), st.floats(0, 1e6)),
        max_size=6,
    ),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_all_is_well_within_the_bands_and_on_them(
    bins: dict[int, tuple[float, float, float, float]], trained: int, more: int
) -> None:
    metrics = {"k3": 0.1, "ess": 0.1}
    for lag, (k3, ess, kept, count) in bins.items():
        values = {"k3": k3, "ess": ess, "kept_fraction": kept, "tokens": count, "rollouts": count}
        metrics |= {at_lag(name, lag): value for name, value in values.items()}
    left_out = {"stale": trained, "nonfinite": 0}
    facts = RunFacts(metrics=metrics, trained=trained + more, left_out=left_out)
    assert findings(facts) == ()


def test_tokens_without_a_proximal_log_probability_of_their_own_are_named_above_a_share() -> None:
    """The share is that of `Sums.metrics`, the one that the trainer sends."""

    def share(unknown: int) -> dict[str, float]:
        return Sums(trained=50, arrived=200, proximal_unknown=unknown).metrics()

    assert not say(share(20) | WELL)
    (name, sentence), *others = say(share(21) | WELL).items()
    assert name == "proximal_unknown" and not others
    assert "have no proximal log-probability" in sentence and "10%" in sentence
    assert "staleness.proximal = 'snapshot'" in sentence and "staleness.max_lag" in sentence
    assert "100% of" in say(share(200) | WELL)["proximal_unknown"]


def test_what_was_not_measured_is_well() -> None:
    assert findings(RunFacts()) == ()


@given(st.floats(0.11, 5), st.floats(0.51, 1), st.floats(0.001, 0.099))
def test_out_of_its_band_each_is_said_whatever_is_known_by_lag(
    k3: float, masked: float, ess: float
) -> None:
    left_out = int(masked * 10_000)
    facts = RunFacts(
        metrics={"k3": k3, "ess": ess}, trained=10_000 - left_out, left_out={"m2po": left_out}
    )
    found = findings(facts)
    assert [alarm.name for alarm in found] == ["divergence", "masked_m2po", "ess"]


@pytest.mark.parametrize(
    ("offset", "drift", "named"),
    [(0.0, 0.0, []), (1.5, 0.0, ["mismatch"]), (0.0, 0.5, ["staleness"])],
)
def test_pain_15_a_mismatch_of_engine_and_trainer_is_named(
    offset: float, drift: float, named: list[str]
) -> None:
    """Log-ratios of 64 rollouts, each of one lag: an engine that is off by the same amount at every
    lag, and a policy that drifts."""
    generator = torch.Generator().manual_seed(0)
    sample_index = torch.arange(64).repeat_interleave(20)
    lag = sample_index % 8
    log = (offset + drift * lag) * torch.randn(len(lag), generator=generator)
    every = torch.ones(len(lag), dtype=torch.bool)
    sums = by_lag(log, every, sample_index, lag, every)
    metrics = sums.total.means() | {"ess": 1.0} | sums.metrics()
    found = findings(RunFacts(metrics=metrics, trained=len(lag)))
    assert [alarm.name for alarm in found] == named


def test_the_coordinator_gets_no_torch_from_these() -> None:
    code = (
        "import sys, asyncrl.explain.conditions.table, asyncrl.algorithms.advantages.baseline, "
        "asyncrl.staleness.bins; sys.exit('torch' "
        "in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
