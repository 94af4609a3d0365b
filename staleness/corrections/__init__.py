"""Corrections of tokens that another policy sampled: some are left out, and the others get a
weight. One correction is one file.

In all of them `l` is the token's log-ratio `mismatch`, and a bound is a ratio unless its line says
otherwise. Bounds belong to the band, and a bound is met in logarithms: nothing is exponentiated to
be rejected. No torch here: the configuration imports this.
"""

from asyncrl.staleness.corrections.age_decay import AgeDecay
from asyncrl.staleness.corrections.correction import Corrected, Correction
from asyncrl.staleness.corrections.dppo import Dppo
from asyncrl.staleness.corrections.fold import Folded, apply_corrections
from asyncrl.staleness.corrections.geometric import GeometricMask, GeometricTis
from asyncrl.staleness.corrections.icepop import IcePop
from asyncrl.staleness.corrections.k3 import K3
from asyncrl.staleness.corrections.kpop import KPop
from asyncrl.staleness.corrections.m2po import M2po
from asyncrl.staleness.corrections.mis import Mis
from asyncrl.staleness.corrections.opsm import Opsm
from asyncrl.staleness.corrections.sequence_tis import SequenceTis
from asyncrl.staleness.corrections.token_tis import TokenTis
from asyncrl.staleness.corrections.top_entropy import TopEntropy

__all__ = [
    "K3",
    "AgeDecay",
    "Corrected",
    "Correction",
    "Dppo",
    "Folded",
    "GeometricMask",
    "GeometricTis",
    "IcePop",
    "KPop",
    "M2po",
    "Mis",
    "Opsm",
    "SequenceTis",
    "TokenTis",
    "TopEntropy",
    "apply_corrections",
]
