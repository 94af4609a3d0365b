"""No decoder that a peer or a stranger's file can reach raises anything but what it says, or leaks,
whatever it is given."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from some_values import drawn, some
from targets import TARGETS, Target

HARNESS = Path(__file__).with_name("harness.py")
HUGE = (2**32 - 1, 2**31, 2**31 - 1, 2**28, 2**22, 2**16, 0)
DEEP = (b"\x91", b"\x81\xa1a", b"[", b'{"a":', b"\xd9\xff", b"a=[")

# --------------------------------------------------------------------------------------- mutations

Mutation = Callable[[st.DataObject, bytearray, Target], None]


def flip(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))


def put(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))


def cut(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text)))
    del text[at : at + data.draw(st.integers(1, len(text)))]


def insert(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text)))
    text[at:at] = data.draw(st.binary(min_size=1, max_size=20))


def splice(data: st.DataObject, text: bytearray, target: Target) -> None:
    other = data.draw(st.sampled_from(target.seeds))
    text[data.draw(st.integers(0, len(text))) :] = other[data.draw(st.integers(0, len(other))) :]


def duplicate(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    piece = text[at : at + data.draw(st.integers(1, len(text)))]
    text[at:at] = piece * data.draw(st.integers(1, 40))


def huge(data: st.DataObject, text: bytearray, target: Target) -> None:
    at = data.draw(st.integers(0, len(text)))
    text[at : at + 4] = struct.pack(
        data.draw(st.sampled_from("<>")) + "I", data.draw(st.sampled_from(HUGE))
    )


def nest(data: st.DataObject, text: bytearray, target: Target) -> None:
    """Deeper than any parser's stack, in place of a piece."""
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.sampled_from(DEEP)) * data.draw(
        st.sampled_from((10, 5_000))
    )


MUTATIONS: list[Mutation] = [flip, put, cut, insert, splice, duplicate, huge, nest]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_are_what_they_are_meant_to_be(target: Target) -> None:
    for seed in target.seeds:
        target.run(seed)


@pytest.mark.parametrize("target", some(TARGETS), ids=lambda target: target.name)
def test_whatever_a_decoder_is_given_it_raises_what_it_says(target: Target) -> None:
    @settings(max_examples=drawn(200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def mutated(data: st.DataObject) -> None:
        text = bytearray(data.draw(st.sampled_from(target.seeds)))
        for _ in range(data.draw(st.integers(1, 4))):
            data.draw(st.sampled_from(MUTATIONS))(
                data, text if text else bytearray(b"\x00"), target
            )
        target.run(bytes(text))

    for seed in target.seeds:
        target.run(seed)  # what is loaded once is loaded
    gc.collect()
    files, memory = descriptors(), resident()
    mutated()
    gc.collect()
    assert descriptors() == files
    assert resident() - memory < 100 * 2**20


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(max_examples=drawn(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.binary(max_size=300))
@example(text=b"")
def test_arbitrary_bytes(target: Target, text: bytes) -> None:
    target.run(text)


# ---------------------------------------------------------------------------------------- coverage


needs_atheris = pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris has no wheel for this machine"
)


@pytest.mark.explore
@needs_atheris
@pytest.mark.processes
def test_hundreds_of_inputs_of_atheris_find_the_planted_fault_alone(tmp_path: Path) -> None:
    """The same ones each time: what a fuzzer finds by luck is for `make fuzz`."""
    argv = [sys.executable, str(HARNESS), "--keep", str(tmp_path), "--planted"]
    argv += ["--seconds", "300", "--runs", "600"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    *sound, planted = [line for line in lines if line[2:3] == ["inputs"]]
    assert [(name, *rest) for name, _, *rest in sound] == [
        (target.name, "inputs", "ok") for target in TARGETS
    ], done.stdout + done.stderr
    # libFuzzer takes one again at times, and counts it
    assert {inputs for _, inputs, *_ in sound} <= {"600", "601"}
    assert done.returncode == 1 and list(tmp_path.glob("planted-*")), done.stdout + done.stderr
    assert planted[0] == "planted" and planted[-1] == "FAILED"
