"""The process around the module: signals, threads, memory, forks; nothing of it is changed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import FIXTURES, SPANS, TEXT

import palimpsest


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def interrupted(work, after: float) -> float:
    """Sends Ctrl-C while `work` runs; seconds from the signal to the exception."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        return time.monotonic() - sent[0]
    finally:
        timer.cancel()
        timer.join()


def interrupted_at(monkeypatch, work, readings: int) -> float:
    """Sends Ctrl-C when causes have told of so many readings; CPU seconds of this process from the signal to the exception."""
    reached, over = threading.Event(), threading.Event()
    sent: list[float] = []

    @contextmanager
    def watched(total, what, unit):
        yield lambda done: done >= readings and reached.set()

    def send() -> None:
        reached.wait()
        if not over.is_set():
            sent.append(time.process_time())
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("palimpsest._model.progress", watched)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        return time.process_time() - sent[0]
    finally:
        monkeypatch.undo()
        over.set()
        reached.set()
        thread.join()


def seconds(work) -> float:
    """CPU seconds of this process."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


# CPU seconds between a signal and its being seen.
SEEN = 0.3


@pytest.mark.parametrize("how", ["block", "remove", "replace", pytest.param("contextcite", marks=pytest.mark.slow)])
def test_ctrl_c_stops_causes_of_a_long_question_between_two_readings_and_the_model_goes_on(how, monkeypatch):
    model = palimpsest.Model.load(FIXTURES / "llama-tiny")
    first = TEXT * 20
    text = first + "so where is the cat? " * 200
    prompt = model.prompt(text, spans={**{f"part {n}": (n * 180, n * 180 + 170) for n in range(8)}, "query": (len(first), len(text))})
    assert len(prompt) > 4_000 and prompt.spans["query"][1] - prompt.spans["query"][0] > 2_000
    short = model.prompt(TEXT, spans=SPANS)
    before = model.trace(short).to_numpy()

    def work() -> None:
        model.causes(prompt, answer="the mat", how=how, controls="anywhere" if how == "block" else None)

    whole = seconds(work)
    for readings in (0, 1):
        waited = interrupted_at(monkeypatch, work, readings)
        assert waited < SEEN + whole / 4, (readings, waited, whole)
        assert model.trace(short).to_numpy().tobytes() == before.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["block", "remove"])
def test_ctrl_c_stops_causes_within_a_chunk_and_the_model_goes_on(how, smol, monkeypatch):
    sentence = "The market is on Thursday. "
    parts = 40
    text = sentence * 900
    length = len(text) // 2 // parts
    spans = {f"part {n}": (n * length, (n + 1) * length) for n in range(parts)}
    prompt = smol.prompt(text, spans={**spans, "query": (parts * length, len(text))})
    assert len(prompt) > 5_000
    # A reading is of as many tokens as a chunk at most, behind no more than all the others.
    start = prompt.spans["query"][1] - 1024
    begun = smol.prompt(text[: prompt.characters[start][0]], spans={"first": (0, 27)})
    smol.trace(begun)
    chunk = seconds(lambda: smol.trace(smol.prompt(text, spans={"first": (0, 27)})))
    short = smol.prompt("The market is on Sunday.", spans={"query": "on Sunday"})
    before = smol.trace(short).to_numpy()

    def work() -> None:
        smol.causes(prompt, answer="On Thursday.", how=how, controls=None)

    for readings in (0, 1):
        waited = interrupted_at(monkeypatch, work, readings)
        assert waited < SEEN + 2 * chunk, (readings, waited, chunk)
        assert smol.trace(short).to_numpy().tobytes() == before.tobytes()


@pytest.mark.slow
def test_ctrl_c_stops_a_prefill_within_a_chunk_and_the_model_goes_on(smol):
    text = "The market is on Thursday. " * 1300
    prompt = smol.prompt(text, spans={"first": (0, 27)})
    assert 7_000 < len(prompt) < 8_192
    short = smol.prompt("The market is on Sunday.", spans={"query": "on Sunday"})
    before = smol.trace(short).to_numpy()
    begun = time.monotonic()
    smol.trace(smol.prompt(text[: len(text) // 8], spans={"first": (0, 27)}))
    chunk = time.monotonic() - begun
    waited = interrupted(lambda: smol.trace(prompt), 0.5)
    # The last chunks cost more than the first.
    assert waited < 1.0 + 4 * chunk, (waited, chunk)
    assert smol.trace(short).to_numpy().tobytes() == before.tobytes()
    waited = interrupted(lambda: smol.causes(prompt, answer="On Thursday."), 0.5)
    assert smol.trace(short).to_numpy().tobytes() == before.tobytes()
    waited = interrupted(lambda: smol.generate(short, max_tokens=4000), 0.5)
    assert waited < 1.0
    assert smol.trace(short).to_numpy().tobytes() == before.tobytes()


def test_two_threads_with_one_model_queue(tiny, prompt):
    expected = tiny.trace(prompt).to_numpy()
    answer = tiny.generate(prompt, max_tokens=5).tokens
    wrong: list[object] = []

    def work() -> None:
        for _ in range(25):
            if tiny.trace(prompt).to_numpy().tobytes() != expected.tobytes():
                wrong.append("trace")
            if tiny.generate(prompt, max_tokens=5).tokens != answer:
                wrong.append("answer")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_python_goes_on_while_a_model_works(tiny, prompt):
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(20):
        tiny.generate(prompt, max_tokens=16)
    done.set()
    thread.join()
    assert ticks > 10


def test_a_thousand_traces_leave_memory_as_it_was(tiny, prompt):
    for _ in range(200):
        tiny.trace(prompt, top_keys=4, measures=["mass", "share", "value_norm"])
    gc.collect()
    before = resident()
    for _ in range(1000):
        tiny.trace(prompt, top_keys=4, measures=["mass", "share", "value_norm"])
    gc.collect()
    grown = resident() - before
    assert grown < 4 << 20, f"{grown} bytes more"


def test_a_model_that_is_dropped_gives_its_memory_back():
    def once() -> None:
        model = palimpsest.Model.load(FIXTURES / "llama-tiny")
        model.trace(model.prompt(TEXT, spans=SPANS))

    for _ in range(5):
        once()
    gc.collect()
    before = resident()
    for _ in range(20):
        once()
    gc.collect()
    assert resident() - before < 8 << 20


def test_nothing_of_the_process_is_set():
    program = (
        "import signal, os, threading\n"
        "before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), dict(os.environ)\n"
        "import palimpsest\n"
        f"model = palimpsest.Model.load({str(FIXTURES / 'llama-tiny')!r})\n"
        f"model.trace(model.prompt({TEXT!r}, spans={SPANS!r}))\n"
        "after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), dict(os.environ)\n"
        "assert before == after\n"
        "status = open('/proc/self/status').read()\n"
        "caught = int(status.split('SigCgt:')[1].split()[0], 16)\n"
        "assert not caught & (1 << (signal.SIGTERM - 1)), hex(caught)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr


def test_a_fork_is_told_to_open_its_own(tiny, prompt):
    expected = tiny.trace(prompt).to_numpy()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            tiny.trace(prompt)
        except palimpsest.Error as error:
            said = str(error).encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert b"opened in another process" in os.read(reading, 1000)
    assert tiny.trace(prompt).to_numpy().tobytes() == expected.tobytes()


def test_a_model_that_is_not_there_is_told_as_the_command_tells_it(tmp_path):
    with pytest.raises((palimpsest.Error, FileNotFoundError), match="nowhere"):
        palimpsest.Model.load(tmp_path / "nowhere")
    with pytest.raises(palimpsest.Error, match="did you mean"):
        palimpsest.Model.load("smollm2-135")
    with pytest.raises(palimpsest.Error, match="f12"):
        palimpsest.Model.load(FIXTURES / "llama-tiny", dtype="f12")
    with pytest.raises(palimpsest.Error):
        palimpsest.Model.load(FIXTURES / "llama-tiny", device="toaster")
    with pytest.raises(palimpsest.Error, match="context"):
        palimpsest.Model.load(FIXTURES / "llama-tiny", context=10**9)


def test_a_prompt_longer_than_the_context_is_refused_and_the_model_goes_on(prompt):
    small = palimpsest.Model.load(FIXTURES / "llama-tiny", context=64)
    with pytest.raises(palimpsest.Error, match="do not fit the context of 64"):
        small.trace(small.prompt("cat " * 200, spans={"a": (0, 3)}))
    again = small.trace(small.prompt("the cat", spans={"a": "the cat"})).to_numpy()
    assert np.isfinite(again).all()


def test_generation_takes_its_settings_and_refuses_others(tiny, prompt):
    one = tiny.generate(prompt, max_tokens=8, temperature=1.5, seed=1).tokens
    assert one == tiny.generate(prompt, max_tokens=8, temperature=1.5, seed=1).tokens
    assert any(one != tiny.generate(prompt, max_tokens=8, temperature=1.5, seed=seed).tokens for seed in range(2, 8))
    with pytest.raises(TypeError, match="no setting temprature"):
        tiny.generate(prompt, temprature=1.0)
    with pytest.raises(palimpsest.Error, match="top_p is 2"):
        tiny.generate(prompt, top_p=2.0)
    with pytest.raises(palimpsest.Error, match="max_tokens is 0"):
        tiny.generate(prompt, max_tokens=0)


def test_the_command_is_the_command(tmp_path):
    from conftest import command

    assert command("--version").stdout.startswith("palimpsest ")
    wrong = command("trace", "--nonsense")
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    missing = command("lens", tmp_path)
    assert missing.returncode == 1 and missing.stderr.startswith("error: ")
