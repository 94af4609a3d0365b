"""The ledger balances where both of its accounts do."""

from __future__ import annotations

import pytest

from asyncrl.experience.ledger import Account, Ledger

LEFT_OUT = Account(total=3, trained=1, live=1)


@pytest.mark.parametrize(
    ("tokens", "rollouts", "balances"),
    [
        (Account(), Account(), True),
        (LEFT_OUT, Account(), False),
        (Account(), LEFT_OUT, False),
        (Account(total=1, trained=2, live=-1), Account(), False),
    ],
)
def test_both_accounts_have_to_balance(tokens: Account, rollouts: Account, balances: bool) -> None:
    assert Ledger(tokens, rollouts).balances() is balances
