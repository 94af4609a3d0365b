"""The names that `import asyncrl` gives: lazy, checked, and doing what a run does."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from look_support import evaluation, life, make_journal, make_run, status, step

import asyncrl as rl
from asyncrl.bundled import bundled_model
from asyncrl.cli import main
from asyncrl.config import ConfigError, load
from asyncrl.config.fields import FIELDS, SECTIONS
from asyncrl.explain import summary
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.runtime.run_dir import SUMMARY
from asyncrl.tasks import NoReward
from asyncrl.training.learner import Learner as CoreLearner

ROOT = Path(__file__).parents[1]
SMALL: dict[str, Any] = {
    "model": {"warmup_steps": 0},
    "engine": {"context_tokens": 32, "slots": 8},
    "rollout": {"max_new_tokens": 4},
    "train": {"lr": 1e-3, "lr_warmup_steps": 0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundled")
    bundled_model.write_tokenizer(path)
    bundled_model.new_model(0).save_pretrained(str(path))
    return path


# ------------------------------------------------------------------------------------------ names


def test_the_import_is_light_and_every_name_resolves() -> None:
    code = (
        "import sys; before = set(sys.modules); import asyncrl as rl;"
        "new = set(sys.modules) - before;"
        "heavy = {'torch', 'trio', 'numpy', 'msgspec', 'transformers', 'rich'} & new;"
        "own = {name for name in new if name.startswith('asyncrl.')};"
        "assert not heavy and not own, (heavy, own);"
        "rl.Config(train={'steps': 2}); rl.Run; rl.GroupAdvantage; rl.train;"
        "assert 'torch' not in sys.modules;"
        "assert set(rl.__all__) <= set(dir(rl))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(hasattr(rl, name) for name in rl.__all__)  # in a new process: tests/test_wheel.py
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        rl.Trainer  # type: ignore[attr-defined]  # noqa: B018


# --------------------------------------------------------------------------------------- settings


def sentence(make: Any) -> str:
    """The sentence of a refusal, without the place that it begins with."""
    with pytest.raises(ConfigError) as refused:
        make()
    return str(refused.value).partition(": ")[2]


def outside(key: str) -> list[Any]:
    """Numbers outside of the range of a setting."""
    found: list[Any] = []
    for meta in getattr(FIELDS[key].hint, "__metadata__", ()):
        for name, value in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if (bound := getattr(meta, name, None)) is not None:
                found.append(bound + value)
    return found


RANGED = sorted(key for key in FIELDS if FIELDS[key].kind in (int, float) and outside(key))


@pytest.mark.parametrize("section", sorted({FIELDS[key].section for key in RANGED}))
def test_a_number_out_of_its_range_is_refused_as_load_does(section: str) -> None:
    for key in (key for key in RANGED if FIELDS[key].section == section):
        for value in outside(key):
            said = sentence(lambda: SECTIONS[section](**{FIELDS[key].name: value}))  # noqa: B023
            assert said.startswith(f"{key} ")
            loaded = sentence(lambda: load(None, [f"{key}={value}"], {}))  # noqa: B023
            assert said == loaded.partition(": ")[2] or said == loaded


def test_sections_are_converted_or_refused_and_never_kept_as_dicts() -> None:
    train = rl.Config(train={"steps": 2}).train  # type: ignore[arg-type]
    assert type(train) is SECTIONS["train"] and train.steps == 2
    servers = rl.Config(engine={"sglang": {"device": "cuda"}})  # type: ignore[arg-type]
    assert servers.engine.sglang.device == "cuda"
    for given_, said in (
        ({"train": {"stepz": 2}}, "there is no setting train.stepz; the nearest is train.steps."),
        ({"train": 3}, "train is 3, and must be a TrainConfig, or a mapping of its settings."),
        ({"train": {"lr": "fast"}}, "train.lr is 'fast', and must be a number above 0"),
        ({"staleness": {"correction": ["icepo"]}}, "the nearest is icepop"),
    ):
        assert said in sentence(lambda: rl.Config(**given_))  # noqa: B023
    assert rl.Config(train={"lr": 1}) == rl.Config(train={"lr": 1.0})  # type: ignore[arg-type]


def test_settings_that_contradict_each_other_are_refused_by_construction() -> None:
    with pytest.raises(ConfigError) as of_python:
        rl.Config(rollout={"k_min": 9, "group_size": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as of_load:
        load(None, ["rollout.k_min=9", "rollout.group_size=2"], {})
    places = " (--set rollout.k_min=9)", " (--set rollout.group_size=2)"
    said = str(of_load.value)
    for place in places:
        said = said.replace(place, "")
    assert said == str(of_python.value)


# -------------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"ids": [1, 2, 3], "logprobs": [-1.0], "prompt_tokens": 1}, "2 of the 3 tokens"),
        ({"ids": [1, 2], "logprobs": [-1.0], "prompt_tokens": 2}, "prompt_tokens is 2"),
        ({"ids": [1, 2], "logprobs": [-1.0]}, "give prompt_tokens, or mask"),
        ({"ids": [[1, 2]], "logprobs": [-1.0], "prompt_tokens": 1}, "the shape [1, 2]"),
        ({"ids": [1.5, 2], "logprobs": [-1.0], "prompt_tokens": 1}, "must have whole numbers"),
        ({"ids": [1, 2], "logprobs": [-1.0], "mask": [0, 1, 1]}, "mask has 3 items"),
        ({"ids": [1, 2], "logprobs": [-1.0], "mask": [1, 0]}, "begins with its prompt"),
        ({"ids": [1, 2], "logprobs": [0.5], "prompt_tokens": 1}, "at most 0"),
        (
            {"ids": [1, 2], "logprobs": [-1.0], "prompt_tokens": 1, "versions": [1, 2]},
            "versions has 2",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_a_sentence(given_: Any, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        rl.Sequence(**given_)
    assert said in str(refused.value)


@given(st.data())
def test_lists_arrays_and_tensors_make_the_same_sequence(data: st.DataObject) -> None:
    mask = [False, *data.draw(st.lists(st.booleans(), min_size=1, max_size=12))]
    mask[data.draw(st.integers(1, len(mask) - 1))] = True
    ids, sampled = list(range(len(mask))), sum(mask)
    logprobs = [-0.5 * n for n in range(sampled)]
    versions = sorted(data.draw(st.lists(st.integers(0, 3), min_size=sampled, max_size=sampled)))
    made = [
        rl.Sequence(kind(ids), kind(logprobs), mask=kind(mask), versions=kind(versions)).to_train()
        for kind in (list, np.array, torch.tensor)
    ]
    assert made[0] == made[1] == made[2]
    spans = made[0].spans
    places = [place for span in spans for place in range(span.start, span.end)]
    assert places == [place for place, marked in enumerate(mask) if marked]
    assert [s.version for s in spans for _ in range(s.start, s.end)] == versions
    assert (made[0].tokens, made[0].trained) == (len(mask), sampled)


# ---------------------------------------------------------------------------- learner and sampler


def test_add_is_the_same_as_the_raw_buffers_bit_for_bit(model: Path) -> None:
    """Uneven groups, tokens of a tool between sampled ones, several versions, one of them stale."""
    config = rl.Config(**SMALL, staleness={"max_lag": 1})
    public = rl.Learner(model, config)
    core = CoreLearner(bundled_model.new_model(0), config.train, config.staleness, 1.0, budget=4)
    rng = np.random.default_rng(5)
    for version in range(3):
        message = MicroBatch(version, 0, [], {})
        ids, behaviour, mask, sequences = b"", b"", b"", []
        for rollout in range(8):
            prompt, group, oldest = int(rng.integers(1, 5)), rollout % 3, max(0, version - 2)
            tokens = rng.integers(0, 256, prompt + 5).astype(np.int32)
            logprobs = np.log(rng.uniform(0.003, 0.005, 4)).astype(np.float32)
            message.rewards.setdefault(group, []).append(reward := float(rng.integers(0, 3)))
            spans = [
                Span(oldest, prompt, prompt + 2),  # then one token of a tool, and two newer ones
                Span(version, prompt + 3, prompt + 5),
            ]
            member = len(message.rewards[group]) - 1
            message.samples.append(Sample(rollout, group, prompt, 5, reward, spans, None, member))
            ids, behaviour = ids + tokens.tobytes(), behaviour + logprobs.tobytes()
            fresh = int(version - oldest <= 1)
            mask += bytes([fresh, fresh, 1, 1])
            sampled = [False] * prompt + [True, True, False, True, True]
            versions = [oldest, oldest, version, version]
            sequences.append(
                rl.Sequence(
                    tokens, logprobs, mask=sampled, versions=versions, reward=reward, group=group
                )
            )
        public.add(sorted(sequences, key=lambda one: one.group))
        order = sorted(range(8), key=lambda number: message.samples[number].group)
        lengths = np.cumsum([0, *(4 * (s.prompt_tokens + 5) for s in message.samples)])
        core.accumulate(
            MicroBatch(version, 0, [message.samples[n] for n in order], message.rewards),
            (
                b"".join(ids[lengths[n] : lengths[n + 1]] for n in order),
                b"".join(behaviour[16 * n : 16 * n + 16] for n in order),
                b"".join(mask[4 * n : 4 * n + 4] for n in order),
            ),
        )
        figures, of_core = public.step(), core.step()
        assert {name: repr(value) for name, value in figures.metrics.items()} == {
            name: repr(value) for name, value in of_core.items()
        }
        assert figures.trained > 0 and ("stale" in figures.discarded) == (version == 2)
        assert public.version == core.version == version + 1
    for one, other in zip(public.model.parameters(), core.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.explore
def test_two_samplers_and_a_learner_agree_on_the_policy_step_after_step(model: Path) -> None:
    config = rl.Config(**SMALL)
    learner, first, second = (make(model, config) for make in (rl.Learner, rl.Sampler, rl.Sampler))
    groups = set[int]()
    for version in range(2):
        sampled = [s for sampler in (first, second) for s in sampler.generate(["a", "bc"], 3)]
        assert len(sampled) == 12
        assert {int(v) for s in sampled for v in s.versions} == {version}
        groups |= {s.group for s in sampled}
        learner.add(s.rewarded(float(n % 3)) for n, s in enumerate(sampled))
        figures = learner.step()
        assert figures.trained == sum(s.sampled_tokens for s in sampled)
        assert figures.metrics["k3"] < 1e-10  # log-probabilities of sampler and learner
        for sampler in (first, second):
            sampler.load(learner)
            assert sampler.version == learner.version == version + 1
    assert len(groups) == 8  # no two share a number
    greedy = [sampler.generate(["a"], temperature=0)[0].ids.tolist() for sampler in (first, second)]
    assert greedy[0] == greedy[1]


def test_what_cannot_be_added_is_refused_and_nothing_is_added(model: Path) -> None:
    learner = rl.Learner(model, rl.Config(**SMALL))
    good = rl.Sequence([65, 66], [-5.5], prompt_tokens=1, reward=1.0)
    for bad, said in (
        (rl.Sequence([65, 66], [-1.0], prompt_tokens=1), "has the reward None"),
        (good.rewarded(float("nan")), "has the reward nan"),
        (rl.Sequence([65, 9999], [-1.0], prompt_tokens=1, reward=1.0), "vocabulary of 260"),
        (rl.Sequence([65, 66], [-1.0], prompt_tokens=1, reward=1.0, versions=3), "of version 3"),
        ([65, 66], "not an rl.Sequence"),
    ):
        with pytest.raises(ValueError, match=said):
            learner.add([good, bad])  # type: ignore[list-item]
    learner.add([good, good.rewarded(0.0)])
    with pytest.raises(ValueError, match="add a group in one call"):
        learner.add([good])
    assert learner.step().trained == 2
    assert learner.step().metrics["skipped"] == 1  # nothing was added


def test_what_is_saved_is_a_model_directory(model: Path, tmp_path: Path) -> None:
    learner = rl.Learner(model, rl.Config(**SMALL))
    for _ in range(2):
        saved = learner.save(tmp_path / "saved")
    again = rl.Learner(saved)
    for one, other in zip(learner.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert rl.Sampler(saved).generate(["x"], max_new_tokens=2)[0].sampled_tokens <= 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(saved)
    for name in ("mine", "link"):
        with pytest.raises(ConfigError, match="not a model directory"):
            learner.save(tmp_path / name)
    (saved / "notes.txt").write_text("of a year")
    (partial := tmp_path / ".partial-other").mkdir()  # somebody else saves beside it
    with pytest.raises(ConfigError, match=r"notes\.txt there is no file of a saved model"):
        learner.save(saved)
    learner.save(tmp_path / "beside")
    assert (saved / "notes.txt").exists() and partial.exists()


def test_what_is_no_prompt_is_refused_in_a_sentence(model: Path) -> None:
    sampler = rl.Sampler(model, rl.Config(**SMALL))
    messages = [{"role": "user", "content": "x"}]
    for prompts in ([messages], [[1.5]], [[2**32 + 5]], [None], ["\ud800"], "a", [""]):
        with pytest.raises(ValueError, match=r"prompt|text"):
            sampler.generate(prompts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beyond 32 bits"):
        rl.Sequence([2**32 + 65, 66], [-1.0], prompt_tokens=1)
    with pytest.raises(TypeError):
        sampler.generate(["a"], max_new_tokens=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [rl.train, rl.sft, rl.open_task, rl.starting_model])
def test_what_is_no_configuration_is_refused_in_a_sentence(of: Any) -> None:
    for config in ("run.toml", {"train": {"steps": 3}}, None):
        with pytest.raises(ConfigError, match=r"is not a configuration: give an rl\.Config"):
            of(config)
    with pytest.raises(ConfigError, match="names no file"):
        rl.train(rl.Config(), resume="a\0b")


def test_what_needs_a_run_is_refused_by_the_learner(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is set"):
        rl.Learner(model, rl.Config(model={"lora": {"rank": 4}}))  # type: ignore[arg-type]
    for make in (rl.Learner, rl.Sampler):
        with pytest.raises(ConfigError, match="there is no model directory"):
            make(tmp_path / "none")
        with pytest.raises(ConfigError, match="is not a model"):
            make(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ tasks


def test_a_task_is_a_data_set_a_file_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text('{"prompt": "1 + 1 =", "answer": 2}\n{"prompt": "2 + 2 =", "answer": 4}\n')
    tasks = [
        rl.open_task(rl.Config(task={"name": "chain_sum", "train_size": 4, "eval_size": 1})),  # type: ignore[arg-type]
        rl.open_task(rl.Config(task={"name": "jsonl", "path": str(file), "eval_size": 1})),  # type: ignore[arg-type]
        rl.ListTask(
            [{"prompt": "1 + 1 =", "answer": "2"}],
            lambda answer, line: float(answer == line["answer"]),
            evaluation=[{"prompt": "3 + 3 =", "answer": "6"}],
        ),
    ]
    for task in tasks:
        for split in ("train", "evaluation"):
            known = task.answer(split, 0)  # type: ignore[arg-type]
            assert known is not None and task.prompt(split, 0)  # type: ignore[arg-type]
            assert task.verify(split, 0, known) == 1.0  # type: ignore[arg-type]
            assert task.verify(split, 0, "no") < 1.0  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="executes what the model answers"):
        rl.open_task(rl.Config(task={"name": "n_queens"}))  # type: ignore[arg-type]


def test_a_list_task_judges_as_a_run_does() -> None:
    """A verifier's changes of its line are gone for the next answer, and a text is no reward."""

    def judge(answer: str, line: dict[str, Any]) -> Any:
        line["left"].pop()
        return line.pop("worth")

    lines = [
        {"prompt": "1", "worth": True, "left": [1]},
        {"prompt": "2", "worth": "1", "left": [1]},
    ]
    task = rl.ListTask(lines, judge)
    assert [task.verify("train", 0, "") for _ in range(2)] == [1.0, 1.0]
    with pytest.raises(NoReward, match="not a number: str"):
        task.verify("train", 1, "")


# ------------------------------------------------------------------------------------------- runs


def test_train_is_what_the_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched, launcher = list[tuple[rl.Config, Any]](), ModuleType("asyncrl.launch.launcher")

    def launch(config: rl.Config, *, resume: Path | None, console: Any) -> int:
        launched.append((config, resume))
        return 0

    launcher.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncrl.launch.launcher", launcher)
    monkeypatch.chdir(tmp_path)
    task = {"train_size": 20, "eval_size": 4}
    mine = rl.Config(task=task, run={"dir": "mine"})  # type: ignore[arg-type]
    run = rl.train(mine)
    sets = [f"task.{name}={value}" for name, value in task.items()]
    assert main(["train", *(word for s in [*sets, "run.dir=mine2"] for word in ("--set", s))]) == 0
    (of_python, _), (of_command, _) = launched
    assert run.ok and run.status == 0 and run.path == tmp_path / "mine"
    assert run.config == of_python
    assert settings(of_python, "mine") == settings(of_command, "mine2")
    capsys.readouterr()
    with pytest.raises(ConfigError) as refused:
        rl.train(mine)
    assert main(["train", *(word for s in [*sets, "run.dir=mine"] for word in ("--set", s))]) == 2
    assert capsys.readouterr().err.strip().endswith(str(refused.value))
    again = rl.train(run.config, resume=run.path)
    assert again.path == run.path and launched[-1][1] == run.path


def settings(config: rl.Config, name: str) -> str:
    return str(config).replace(f"/{name}'", "/x'")


def test_a_run_is_opened_twice_and_says_what_stands_in_its_files(tmp_path: Path) -> None:
    path = make_run(tmp_path / "r", [step(1), evaluation(1, 0.5)], status=status(ok=True))
    make_journal(path, life(0))
    totals = summary.Summary(ok=True, reason="it is over", steps=1, seconds=2.0)
    for _ in range(2):
        run = rl.Run(path)
        assert [point.version for point in run.curve] == [1, 1]
        assert not run.lives and run.why()
        assert len(run.rollouts(last=5)) == 1 and run.rollouts(reward_below=-9.0) == []
        with pytest.raises(ConfigError, match="the run writes it after its last step"):
            run.model  # noqa: B018
    assert not run.ok
    with pytest.raises(ConfigError, match="has not ended"):
        run.summary  # noqa: B018
    summary.write(totals, path / SUMMARY)
    assert run.ok and run.summary == totals
    with pytest.raises(ConfigError, match="there is no such directory"):
        rl.Run(tmp_path / "none")


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.explore
def test_the_loop_by_hand_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "grpo_by_hand.py"))
    rewards = example["train"](8)
    assert rewards[-1] > 2 * rewards[0] and rewards[-1] > 0.15
