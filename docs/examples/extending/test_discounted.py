from discounted import Discounted


def test_a_turn_is_worth_less_the_longer_the_reward_takes() -> None:
    assert Discounted().returns(1.0, [0.0, 0.0, 1.0]) == [0.81, 0.9, 1.0]
    assert Discounted().returns(0.5, []) == [0.5], "where no agent played"
