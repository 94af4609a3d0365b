"""Strangers send data alone: no module can turn bytes into code, and no model directory
runs any."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from asyncrl.config import ConfigError
from asyncrl.launch.model_directories import check_directory
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import ModelError, empty_model, load_model

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for package in ("asyncrl", "actors", "staleness", "weightsync")
    for path in sorted((ROOT / package).rglob("*.py"))
]

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "code",
    "codeop",
    "runpy",
}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {
    "torch.load",
    "torch.jit.load",
    "torch.save",
    "numpy.load",
    "np.load",
    "pandas.read_pickle",
    "importlib.import_module",
    "os.system",
}
TORCH_OBJECTS = {
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
}

JUSTIFIED = {
    (
        "asyncrl/config/plugins.py",
        "importlib.import_module",
    ): "imports the module that run.toml names, never one that data names",
    (
        "actors/preloaded.py",
        "importlib.import_module",
    ): "imports modules that this file lists, and no other",
    (
        "asyncrl/runtime/processes/tied_module.py",
        "importlib.import_module",
    ): "imports the module that a check of asyncrl runs",
    (
        "asyncrl/__init__.py",
        "importlib.import_module",
    ): "imports the homes of the names that it exports, which it lists",
    (
        "asyncrl/agents/gateway/dialects/every_dialect.py",
        "importlib.import_module",
    ): "imports the files of its own folder",
    (
        "asyncrl/agents/gateway/formats/every_format.py",
        "importlib.import_module",
    ): "likewise",
    (
        "asyncrl/agents/__init__.py",
        "importlib.import_module",
    ): "likewise",
}


def dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *reversed(parts)])


def found(tree: ast.AST) -> list[tuple[int, str]]:
    """Names in a module that could turn bytes into code, with their lines."""
    seen: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            seen += [
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.partition(".")[0] in MODULES
            ]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] in MODULES:
                seen.append((node.lineno, module))
            seen += [
                (node.lineno, f"{module}.{alias.name}")
                for alias in node.names
                if f"{module}.{alias.name}" in METHODS
            ]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in CALLS or name in METHODS or name.rpartition(".")[2] in TORCH_OBJECTS:
                seen.append((node.lineno, name))
            for keyword in node.keywords:
                dangerous = {
                    "trust_remote_code": True,
                    "allow_pickle": True,
                    "shell": True,
                    "weights_only": False,
                }
                if keyword.arg in dangerous and not (
                    isinstance(keyword.value, ast.Constant)
                    and keyword.value.value is not dangerous[keyword.arg]
                ):
                    seen.append((node.lineno, f"{name}({keyword.arg})"))
            if name.endswith(".from_pretrained") and not any(
                k.arg == "trust_remote_code"
                and isinstance(k.value, ast.Constant)
                and k.value.value is False
                for k in node.keywords
            ):
                seen.append((node.lineno, f"{name} without trust_remote_code=False"))
    return seen


def test_no_module_can_turn_bytes_into_code() -> None:
    assert len(SOURCES) > 50
    seen = {
        (path.relative_to(ROOT).as_posix(), what)
        for path in SOURCES
        for _, what in found(ast.parse(path.read_text()))
    }
    assert seen == set(JUSTIFIED)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml",
        "eval('1')",
        "exec(data)",
        "torch.load(path)",
        "np.load(path)",
        "from torch import load",
        "f(path, trust_remote_code=True)",
        "f(path, trust_remote_code=trusted)",
        "AutoModel.from_pretrained(path)",
        "np.fromfile(path, allow_pickle=True)",
        "dist.broadcast_object_list(objects)",
        "subprocess.run(text, shell=True)",
        "__import__(name)",
        "import marshal as m",
    ],
)
def test_the_test_of_modules_can_fail(text: str) -> None:
    assert found(ast.parse(text))


# ------------------------------------------------------------------------------- model directories


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 23,
    }
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(path)
    (path / "tokenizer.json").write_text(
        '{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'
    )
    return path


class Trap:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.write_text, (self.path, "executed")


def configured(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("known", [True, False], ids=["an architecture that is known", "its own"])
def test_a_directory_with_code_of_its_own_runs_none_of_it(
    directory: Path, tmp_path: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = tmp_path / "executed"
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("a question is asked"))
    for name in ("modeling_own.py", "configuration_own.py", "tokenization_own.py", "__init__.py"):
        (directory / name).write_text(
            f"from pathlib import Path\nPath({str(executed)!r}).write_text('executed')\nclass "
            "Own: pass\n"
        )
    own = {
        "AutoConfig": "configuration_own.Own",
        "AutoModelForCausalLM": "modeling_own.Own",
        "AutoTokenizer": ["tokenization_own.Own", None],
    }
    configured(
        directory,
        auto_map=own,
        **({} if known else {"model_type": "own", "architectures": ["Own"]}),
    )
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": own, "tokenizer_class": "Own", "chat_template": "{{ 1 }}"})
    )
    for use in (load_model, empty_model, lambda path: Tokenizer(path, chat=True)):
        try:
            use(directory)
        except (ModelError, TaskError) as error:
            assert "\n" not in str(error)
    assert not executed.exists()
    if not known:
        with pytest.raises(ModelError, match=r"config\.json"):
            load_model(directory)


def test_a_directory_of_pickles_is_refused_and_not_opened(directory: Path, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    (directory / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (directory / name).write_bytes(pickle.dumps(Trap(executed)))
    with pytest.raises(ModelError, match="pickles"):
        load_model(directory)
    with pytest.raises(ConfigError, match="pickles"):
        check_directory("model.path", directory)
    assert not executed.exists()


def test_pickles_beside_safetensors_are_not_opened(directory: Path, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    for name in ("pytorch_model.bin", "adapter_model.bin", "optimizer.pt", "training_args.bin"):
        (directory / name).write_bytes(pickle.dumps(Trap(executed)))
    load_model(directory)
    assert not executed.exists()


def test_a_pickle_named_safetensors_is_refused(directory: Path, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    torch.save({"weight": Trap(executed)}, directory / "model.safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(directory)
    (directory / "model.safetensors").write_bytes(pickle.dumps(Trap(executed)))
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(directory)
    assert not executed.exists()


def test_the_trap_is_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed")))  # noqa: S301 our own
    assert (tmp_path / "executed").exists()


def test_a_chat_template_reaches_nothing(directory: Path, tmp_path: Path) -> None:
    """It is Jinja, in the sandbox that transformers has for it."""
    executed = tmp_path / "executed"
    template = (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ "
        "cycler.__init__.__globals__.os.system('touch " + str(executed) + "') }}"
    )
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    with pytest.raises(TaskError, match=r"unsafe|undefined|not safe"):
        Tokenizer(directory, chat=True)
    assert not executed.exists()


HEADER_BYTES = 8


def test_an_index_that_is_none_is_a_sentence(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_bytes(
        b'{"weight_map": {"a": ' + b"[" * 100_000
    )
    with pytest.raises(ModelError, match=r"index\.json"):
        load_model(directory)


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_a_config_cannot_have_kernels_fetched(directory: Path, key: str) -> None:
    """transformers fetches an attention by the name of its repository, and runs it, though remote
    code is off."""
    configured(directory, **{key: "somebody/kernel"})
    for use in (load_model, empty_model):
        with pytest.raises(ModelError, match="asks for code from elsewhere"):
            use(directory)


def test_an_adapter_cannot_name_another_model(directory: Path) -> None:
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')
    with pytest.raises(ModelError, match="adapter"):
        load_model(directory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:HEADER_BYTES],
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff" * HEADER_BYTES + data[HEADER_BYTES:],
        lambda data: (2**62).to_bytes(HEADER_BYTES, "little") + data[HEADER_BYTES:],
        lambda data: (5_000).to_bytes(HEADER_BYTES, "little") + b'{"a":' * 1_000 + data,
        lambda data: data[:HEADER_BYTES] + b"[" * (len(data) - HEADER_BYTES),
        lambda data: data.replace(b"F32", b"X99"),
        lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[9,', 1),
        lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[-1,', 1),
        lambda data: data.replace(b'"shape":[23,16]', b'"shape":[2305843009213693951,16]'),
        lambda data: bytes(len(data)),
    ],
)
def test_damaged_weights_are_a_sentence(directory: Path, damage) -> None:
    path = directory / "model.safetensors"
    save_file(load_file(path), path)
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(ModelError) as caught:
        load_model(directory)
    assert "\n" not in str(caught.value)


def test_an_index_cannot_lead_out_of_the_directory(directory: Path, tmp_path: Path) -> None:
    """A sharded model's index names files: none of another directory, and no pickle."""
    outside = tmp_path / "outside.bin"
    outside.write_bytes(pickle.dumps(Trap(tmp_path / "executed")))
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, "../outside.bin")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError):
        load_model(directory)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model_type": 3}',
        b'{"model_type": "llama", "hidden_size": "x"}',
        b'{"model_type": "llama", "hidden_size": -1}',
        b'{"model_type": "llama", "num_hidden_layers": 1e9}',
        b'{"model_type": "llama", "vocab_size": null}',
        b'{"model_type": "llama", "rope_scaling": [1]}',
        b'{"model_type": "llama", "torch_dtype": "pickle"}',
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_config_that_is_none_is_a_sentence(directory: Path, text: bytes) -> None:
    (directory / "config.json").write_bytes(text)
    for use in (load_model, empty_model):
        with pytest.raises(ModelError) as caught:
            use(directory)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"[", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"model": {"type": "Own"}}'],
    ids=lambda text: repr(text[:40]),
)
def test_a_tokenizer_that_is_none_is_a_sentence(directory: Path, text: bytes) -> None:
    (directory / "tokenizer.json").write_bytes(text)
    with pytest.raises(TaskError, match=r"tokenizer\.json") as caught:
        Tokenizer(directory)
    assert "\n" not in str(caught.value)
    if text in (b"", b"[", b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            check_directory("model.path", directory)


def test_directories_in_place_of_files_are_a_sentence(directory: Path) -> None:
    shutil.rmtree(directory / "config.json", ignore_errors=True)
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    with pytest.raises(ModelError):
        load_model(directory)
    with pytest.raises(ConfigError):
        check_directory("model.path", directory)
