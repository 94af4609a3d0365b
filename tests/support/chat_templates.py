# ruff: noqa: E501 a line break would be part of a template
"""Chat templates in the manner of public model families, as far as roles, tools, thoughts and calls
go: small, and with the very marks that the families write."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

QWEN3 = r"""
{%- if tools %}{{- '<|im_start|>system\n# Tools\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' + m.content.lstrip('\n') }}
{%- else %}{{- m.content }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{%- if (loop.first and m.content) or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

_IM_HEAD = r"""
{%- if tools %}{{- '<|im_start|>system\n<tools>' }}{%- for tool in tools %}
{{- '\n<function>\n<name>' ~ tool.function.name ~ '</name>\n</function>' }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{{- m.content or '' }}"""
_IM_TAIL = r"""{{- '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

QWEN_XML = (
    _IM_HEAD
    + r"""
{%- for call in m.tool_calls or [] %}{%- set f = call.function %}
{{- '\n<tool_call>\n<function=' + f.name + '>\n' }}
{%- for name, value in f.arguments | items %}
{{- '<parameter=' + name + '>\n' }}
{%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
{{- value }}{{- '\n</parameter>\n' }}{%- endfor %}
{{- '</function>\n</tool_call>' }}{%- endfor %}"""
    + _IM_TAIL
)

GLM = r"""[gMASK]<sop>
{%- if tools %}<|system|>
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<|assistant|>
{%- if m.reasoning_content %}{{ '\n<think>' + m.reasoning_content.strip() + '</think>' }}{%- else %}{{ '\n<think></think>' }}{%- endif %}
{%- if m.content.strip() %}{{ '\n' + m.content.strip() }}{%- endif %}
{%- for tc in m.tool_calls or [] %}{%- set tc = tc.function %}
{{- '\n<tool_call>' + tc.name }}
{% for k, v in tc.arguments.items() -%}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- else %}{{ '<|' + m.role + '|>\n' + m.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

MINIMAX = r"""
{%- if tools %}{{ ']~b]system\n<tools>\n' }}{% for tool in tools %}{{ '<tool>' ~ (tool.function | tojson) ~ '</tool>\n' }}{% endfor %}{{ '</tools>[e~[\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ ']~b]ai\n' }}
{%- if m.reasoning_content %}{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{%- endif %}{{ m.content }}
{%- if m.tool_calls %}{{ '\n<minimax:tool_call>\n' }}
{%- for call in m.tool_calls %}{{ '<invoke name="' + call.function.name + '">' }}
{% for k, v in call.function.arguments.items() %}<parameter name="{{ k }}">{{ v | tojson if v is not string else v }}</parameter>
{% endfor %}{{ '</invoke>\n' }}{% endfor %}{{ '</minimax:tool_call>' }}{%- endif %}{{ '[e~[\n' }}
{%- else %}{{ ']~b]' ~ m.role ~ '\n' ~ m.content ~ '[e~[\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}"""

DEEPSEEK_V3 = r"""<｜begin▁of▁sentence｜>
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{%- endif %}
{%- if m['role'] == 'assistant' and m['content'] is none %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for tool in m['tool_calls'] %}
{%- if not loop.first %}{{ '\n' }}{% endif %}
{{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments'] + '\n' + '```' + '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}{%- endif %}
{%- if m['role'] == 'assistant' and m['content'] is not none %}
{%- set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}
{%- if m['role'] == 'tool' %}{{ '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1]['role'] != 'tool' %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"""

DEEPSEEK_V31 = r"""<｜begin▁of▁sentence｜>
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{%- endif %}
{%- if m['role'] == 'assistant' %}{{ '<｜Assistant｜></think>' + (m['content'] or '') }}
{%- if m['tool_calls'] %}{{ '<｜tool▁calls▁begin｜>' }}{%- for tool in m['tool_calls'] %}
{{- '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜>' }}{%- endif %}{{ '<｜end▁of▁sentence｜>' }}{%- endif %}
{%- if m['role'] == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"""

KIMI = r"""
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>
{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}
{{ m.content }}{% else %}{{ m.content }}{% endif %}
{%- if m.tool_calls %}<|tool_calls_section_begin|>
{%- for call in m.tool_calls %}<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>
{%- if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
{%- endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

MISTRAL = r"""<s>
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{% elif tools and loop.first %}{{ '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}{%- set out = call.function | tojson %}
{{- out[:-1] }}
{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{ ', ' }}{% else %}{{ ']</s>' }}{% endif %}{%- endfor %}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {"content": ' ~ (m.content | tojson) ~ ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ ' ' + m.content + '</s>' }}{%- endif %}
{%- endfor %}"""

MISTRAL_COMPACT = r"""<s>
{%- if tools %}{{ '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
{%- set arguments = call.function.arguments if call.function.arguments is string else call.function.arguments | tojson %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}{%- endfor %}{{ '</s>' }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{%- endif %}
{%- endfor %}"""

LLAMA = r"""<|begin_of_text|>
{%- for m in messages %}
{%- if m.role == 'user' and loop.first and tools %}{{ '<|start_header_id|>user<|end_header_id|>\n\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}{{ m.content + '<|eot_id|>' }}
{%- elif m.tool_calls %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- for call in m.tool_calls %}{{ '; ' if not loop.first }}{{- '{"name": "' + call.function.name + '", ' }}{{- '"parameters": ' }}{{- call.function.arguments | tojson }}{{- '}' }}{%- endfor %}
{{- '<|eot_id|>' }}
{%- elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

PYTHONIC = r"""<|begin_of_text|>
{%- for m in messages %}
{%- if loop.first and tools %}{{ '<|header_start|>system<|header_end|>\n\n' }}{%- for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|eot|>' }}{%- endif %}
{{- '<|header_start|>' + m.role + '<|header_end|>\n\n' }}{{- m.content or '' }}
{%- if m.tool_calls %}{{ '[' }}{%- for call in m.tool_calls %}{{ ', ' if not loop.first }}{{- call.function.name + '(' }}
{%- for k, v in call.function.arguments.items() %}{{ ', ' if not loop.first }}{{- k ~ '=' ~ (v | tojson) }}{%- endfor %}{{ ')' }}{%- endfor %}{{ ']' }}{%- endif %}
{{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\n\n' }}{% endif %}"""

GEMMA = r"""<bos>
{%- macro value(v) -%}
{%- if v is string -%}{{ '<|"|>' ~ v ~ '<|"|>' }}
{%- elif v is boolean -%}{{ 'true' if v else 'false' }}
{%- elif v is none -%}null
{%- elif v is mapping -%}{{ '{' }}{%- for k, w in v.items() -%}{{ ',' if not loop.first }}{{ k }}:{{ value(w) }}{%- endfor -%}{{ '}' }}
{%- elif v is sequence -%}{{ '[' }}{%- for w in v -%}{{ ',' if not loop.first }}{{ value(w) }}{%- endfor -%}{{ ']' }}
{%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}
{%- if tools %}<|turn>system
{% for tool in tools %}<|tool>declaration:{{ tool.function.name }}{{ value(tool.function.parameters) }}<tool|>{% endfor %}<turn|>
{% endif %}
{%- for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{{ value(call.function.arguments) }}<tool_call|>{% endfor %}<turn|>
{% endfor %}
{%- if add_generation_prompt %}<|turn>model
{% endif %}"""

HARMONY = r"""<|start|>system<|message|>You are a model.<|end|>
{%- if tools %}<|start|>developer<|message|>namespace functions { {% for tool in tools %}type {{ tool.function.name }} = {{ tool.function.parameters | tojson }};{% endfor %} }<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{%- if m.tool_calls %}{%- for call in m.tool_calls %}{{ '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary json<|message|>' + (call.function.arguments | tojson) + '<|call|>' }}{%- endfor %}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- elif m.role == 'tool' %}{{ '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' + (m.content | tojson) + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "qwen3": ("Hermes JSON", QWEN3, ("<|im_end|>",)),
    "qwen3-coder": ("Qwen3-Coder XML", QWEN_XML, ("<|im_end|>",)),
    "glm-4.5": ("GLM-4.5", GLM, ("<|observation|>", "<|user|>")),
    "minimax-m2": ("MiniMax-M2", MINIMAX, ("[e~[",)),
    "deepseek-v3": ("DeepSeek", DEEPSEEK_V3, ("<｜end▁of▁sentence｜>",)),
    "deepseek-v3.1": ("DeepSeek", DEEPSEEK_V31, ("<｜end▁of▁sentence｜>",)),
    "kimi-k2": ("Kimi K2", KIMI, ("<|im_end|>",)),
    "mistral": ("Mistral", MISTRAL, ("</s>",)),
    "mistral-small": ("Mistral", MISTRAL_COMPACT, ("</s>",)),
    "llama-3": ("Llama 3 JSON", LLAMA, ("<|eot_id|>",)),
    "llama-4": ("pythonic", PYTHONIC, ("<|eot|>",)),
    "gemma-4": ("Gemma", GEMMA, ("<turn|>",)),
    "gpt-oss": ("harmony", HARMONY, ("<|call|>", "<|return|>")),
}
"""Families: the form of their calls, a template, and the tokens that end a reply."""


@cache
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.filters["tojson"] = tojson
    return environment.from_string(template)


def rendered(template: str, messages: Any, tools: Any = None) -> str:
    """A chat in a template, as `transformers` renders it, ready for an answer."""
    return _compiled(template).render(messages=messages, tools=tools, add_generation_prompt=True)
