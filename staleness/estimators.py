"""The corrections that `staleness.correction` may list. Invariant: a bound is a ratio unless its
line says otherwise.

What each does is the function of the same name in `staleness.weights` or `staleness.rejection`,
whose docstring has the formula and the paper. No torch here: the configuration imports this.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """One entry of the list.

    `weights`: all it does is weigh by a ratio, so there is nothing left of it where the objective's
    ratio is the weight already. `measures`: where weights apply, its weight is a ratio of policies.
    Two of these in one list would count the ratio twice. `rejects`: it may leave tokens out of the
    loss.
    """

    weights: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    rejects: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        """Its name in run.toml, and the reason that its rejected tokens are discarded for."""
        return str(type(self).__struct_config__.tag)


class TokenTis(Rule, frozen=True, tag="token_tis"):
    """Weigh each token by its ratio, truncated from above."""

    weights: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    rejects: ClassVar[bool] = False

    hi: Annotated[float, Meta(ge=1, description="largest weight of a token")] = 2.0


class SequenceTis(Rule, frozen=True, tag="sequence_tis"):
    """Weigh each rollout by the product of its ratios, truncated from above."""

    weights: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    rejects: ClassVar[bool] = False

    hi: Annotated[float, Meta(ge=1, description="largest weight of a rollout")] = 2.0


class GeometricTis(Rule, frozen=True, tag="geometric_tis"):
    """Weigh each rollout by the geometric mean of its ratios, truncated to the band."""

    weights: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    rejects: ClassVar[bool] = False

    lo: Annotated[float, Meta(gt=0, le=1, description="smallest weight of a rollout")] = 0.99
    hi: Annotated[float, Meta(ge=1, description="largest weight of a rollout")] = 1.01


class GeometricMask(Rule, frozen=True, tag="geometric_mask"):
    """Reject rollouts whose geometric mean ratio leaves the band."""

    lo: Annotated[
        float,
        Meta(gt=0, le=1, description="smallest geometric mean ratio of a rollout that is kept"),
    ] = 0.99
    hi: Annotated[
        float, Meta(ge=1, description="largest geometric mean ratio of a rollout that is kept")
    ] = 1.01


class Mis(Rule, frozen=True, tag="mis"):
    """Reject rollouts whose product of ratios leaves the band."""

    measures: ClassVar[bool] = True

    lo: Annotated[
        float, Meta(gt=0, le=1, description="smallest product of a rollout's ratios that is kept")
    ] = 0.5
    hi: Annotated[
        float, Meta(ge=1, description="largest product of a rollout's ratios that is kept")
    ] = 2.0


class IcePop(Rule, frozen=True, tag="icepop"):
    """Reject tokens whose ratio leaves the band."""

    measures: ClassVar[bool] = True

    lo: Annotated[float, Meta(gt=0, le=1, description="smallest ratio of a token that is kept")] = (
        0.2
    )
    hi: Annotated[float, Meta(ge=1, description="largest ratio of a token that is kept")] = 5.0


class KPop(Rule, frozen=True, tag="kpop"):
    """Reject tokens where the binary KL divergence of the two policies, either way, is too
    large."""

    measures: ClassVar[bool] = True

    hi: Annotated[
        float,
        Meta(gt=0, description="largest binary KL divergence of a token that is kept, in nats"),
    ] = 0.1


class K3(Rule, frozen=True, tag="k3"):
    """Reject rollouts whose mean k3, an estimate of the KL divergence, is too large."""

    hi: Annotated[
        float,
        Meta(
            gt=0, description="largest mean of r - log r - 1 over a rollout that is kept, in nats"
        ),
    ] = 0.01


class Dppo(Rule, frozen=True, tag="dppo"):
    """Reject tokens whose probability has already moved far in the direction that their advantage
    pushes."""

    lo: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest fall in probability of a token whose advantage is not positive",
        ),
    ] = 0.2
    hi: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest rise in probability of a token whose advantage is positive",
        ),
    ] = 0.2


class Opsm(Rule, frozen=True, tag="opsm"):
    """Reject rollouts of negative advantage that the current policy has left behind."""

    hi: Annotated[
        float,
        Meta(
            gt=0,
            description="largest mean fall in log-probability of such a rollout that is kept, in nats",
        ),
    ] = 1e-4


class M2po(Rule, frozen=True, tag="m2po"):
    """Reject the tokens that have moved furthest the way their advantage pushes, until the mean
    square of such log-ratios is small."""

    hi: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "largest mean square of the log-ratios of such tokens that are kept, in nats "
                "squared"
            ),
        ),
    ] = 0.04


class AgeDecay(Rule, frozen=True, tag="age_decay"):
    """Weigh each token less for each version it is old."""

    rejects: ClassVar[bool] = False

    gamma: Annotated[
        float, Meta(gt=0, le=1, description="weight of a token for each version of its lag")
    ] = 0.95


Estimator = (
    TokenTis
    | SequenceTis
    | GeometricTis
    | GeometricMask
    | Mis
    | IcePop
    | KPop
    | K3
    | Dppo
    | Opsm
    | M2po
    | AgeDecay
)
