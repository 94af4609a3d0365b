from squared import Squared

from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.messages import PromptFacts


def test_a_hard_prompt_counts_more_than_an_easy_one() -> None:
    prompts = {1: PromptFacts(posterior=(1.0, 3.0)), 2: PromptFacts(posterior=(3.0, 1.0))}
    found = Squared().of(RewardedSamples([], {}, {}, prompts=prompts))
    assert found == {1: 0.140625, 2: 0.046875}
