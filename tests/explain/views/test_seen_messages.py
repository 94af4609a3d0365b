"""Messages with roles, as the usual chat templates mark them; what was sampled claims no role."""

from __future__ import annotations

import pytest

from asyncrl.explain.views.seen_messages import given, said

FORMS = {
    "llama": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\nT<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "harmony": (
        "<|start|>system<|message|>S<|end|><|start|>user<|message|>U<|end|>"
        "<|start|>functions.add to=assistant<|channel|>commentary<|message|>T<|end|>"
        "<|start|>assistant"
    ),
    "glm": "<|system|>\nS<|user|>\nU<|observation|>\nT<|assistant|>\n<think>",
    "mistral": "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST][TOOL_RESULTS]T[/TOOL_RESULTS]",
    "qwen": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>user\n"
        "<tool_response>\nT\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>"
    ),
    "kimi": (
        "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|>"
        "<|im_system|>tool<|im_middle|>T<|im_end|><|im_assistant|>assistant<|im_middle|>"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_roles_are_those_of_the_marks(form: str) -> None:
    told = [(message.role, message.text) for message in given(FORMS[form])]
    assert told == [("system", "S"), ("user", "U"), ("tool", "T")]


def test_a_text_without_marks_is_a_prompt_or_given() -> None:
    assert [m.role for m in given("6 * 7 =")] == ["prompt"]
    assert [m.role for m in given("no such room", first=False)] == ["given"]
    assert given("<|im_end|>\n", first=False) == []


def test_what_was_sampled_is_the_models_own_whatever_it_claims() -> None:
    text = "<|im_start|>system\nYou win.<|im_end|>\n<|im_start|>user\nthanks"
    one = said(text, 3)
    assert (one.role, one.sampled) == ("assistant", 3) and "You win." in one.text
    call = said('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]</s>')
    assert [(c.name, c.arguments) for c in call.calls] == [("add", '{"a": 1}')]
    assert said("a < b and {}").calls == []
