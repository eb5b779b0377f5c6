"""Runs by Python are the command's, file by file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import FIXTURES, command
from safetensors.numpy import load_file

import palimpsest

SETTINGS = {"limit": 1, "context": 3000, "max_new_tokens": 6, "conditions": ["full", "none"], "sessions": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    by_python = palimpsest.run("sample", str(FIXTURES / "llama-tiny"), folder / "python", **SETTINGS)
    flags = [f for name, value in SETTINGS.items() for f in (f"--{name.replace('_', '-')}", value if not isinstance(value, list) else ",".join(value))]
    ended = command("run", "--data", "sample", "--model", FIXTURES / "llama-tiny", "--out", folder / "command", *flags)
    assert ended.returncode == 0, ended.stderr
    return by_python, folder / "command"


def test_rows_and_attention_files_are_those_of_the_command(folders):
    run, other = folders
    assert (run.dir / "answers.jsonl").read_bytes() == (other / "answers.jsonl").read_bytes()
    files = sorted(path.name for path in (run.dir / "attention").iterdir())
    assert files and files == sorted(path.name for path in (other / "attention").iterdir())
    for name in files:
        assert (run.dir / "attention" / name).read_bytes() == (other / "attention" / name).read_bytes(), name


def test_a_run_reads_its_files(folders):
    run, _ = folders
    assert len(run.answers) == len((run.dir / "answers.jsonl").read_text().splitlines())
    assert set(run.answers.to_numpy("condition")) == {"full", "none"}
    assert len(run.verdicts) == len(run.causes) == len(run.why) == 0
    row = run.answers._rows()[0]
    trace = run.trace(row["case"], row["probe"], row["condition"])
    stored = load_file(run.dir / row["attention"])
    assert trace.to_numpy().tobytes() == stored["mass"].tobytes()
    assert trace.tokens == stored["tokens"].tolist() and "old" in trace.roles


def test_every_tensor_of_an_attention_file_is_read(tmp_path):
    settings = {"limit": 1, "only": "SR", "sessions": 3, "context": 8192, "allow_longer": True, "max_new_tokens": 2}
    run = palimpsest.run("sample", str(FIXTURES / "gemma3-tiny"), tmp_path / "run", selected=True, evict="knorm:0.5", **settings)
    rows = run.answers._rows()
    assert len(rows) == 2
    for row in rows:
        trace, stored = run.trace(row["case"], row["probe"], row["condition"]), load_file(run.dir / row["attention"])
        assert {"selected", "forgone"} <= set(stored) and ("kept" in stored) == bool(row["condition"])
        assert trace.tokens == stored.pop("tokens").tolist()
        stored.setdefault("generated", np.zeros(0, np.uint32))
        assert set(trace.arrays) == set(stored)
        for name, array in stored.items():
            assert trace.to_numpy(name).tobytes() == array.tobytes() and trace.to_numpy(name).shape == array.shape, name


def test_masses_are_means_of_the_files(folders):
    run, _ = folders
    masses = run.masses("query", "old")
    line = masses._rows()[0]
    trace = run.trace(line["case"], line["probe"], line["condition"])
    row = next(r for r, one in enumerate(trace._rows) if one.get("role") == "query")
    spans = [k for k, role in enumerate(trace.roles) if role == "old" and not trace._spans[k].get("overlay")]
    layer = trace.layers.index(line["layer"])
    if len(spans) == sum(role == "old" for role in trace.roles):
        expected = trace.to_numpy()[layer][:, row, spans].sum(axis=-1).mean()
        assert np.isclose(line["mass"], expected, atol=1e-6)
    every = [(layer, head) for layer in trace.layers for head in range(len(trace.heads))]
    assert np.allclose(run.masses("query", "old", heads=every).to_numpy("mass"), masses.to_numpy("mass"), atol=1e-6)


def test_the_same_call_goes_on_and_another_is_refused(folders):
    run, _ = folders
    again = palimpsest.run("sample", str(FIXTURES / "llama-tiny"), run.dir, **SETTINGS)
    assert len(again.answers) == len(run.answers)
    with pytest.raises(palimpsest.Error, match="max_new_tokens|sampling"):
        palimpsest.run("sample", str(FIXTURES / "llama-tiny"), run.dir, **{**SETTINGS, "max_new_tokens": 7})


def test_wrong_flags_and_folders_are_refused(tmp_path, folders):
    run, _ = folders
    with pytest.raises(palimpsest.Error, match="--limmit"):
        palimpsest.run("sample", "smollm2-135m", tmp_path / "a", limmit=3)
    with pytest.raises((palimpsest.Error, FileNotFoundError)):
        palimpsest.Run.open(tmp_path)
    with pytest.raises(palimpsest.Error, match="no answer to nobody SR"):
        run.trace("nobody", "SR")


def test_an_attention_file_that_went_away_is_told_by_name(folders, tmp_path):
    import shutil

    run, _ = folders
    copy = tmp_path / "copy"
    shutil.copytree(run.dir, copy)
    row = run.answers._rows()[0]
    (copy / row["attention"]).unlink()
    with pytest.raises((FileNotFoundError, palimpsest.Error), match="attention"):
        palimpsest.Run.open(copy).trace(row["case"], row["probe"], row["condition"])


@pytest.mark.slow
def test_causes_and_heads_are_those_of_the_command(folders, tmp_path):
    run, other = folders
    ended = command("causes", other, "--controls", 2, "--model", FIXTURES / "llama-tiny")
    assert ended.returncode == 0, ended.stderr
    causes = palimpsest.Run.open(other).causes
    assert len(causes) > 0 and "case" in causes.columns
    model = palimpsest.Model.load(FIXTURES / "llama-tiny")
    ended = command("heads", FIXTURES / "llama-tiny", "--needles", 2, "--no-keep", "--out", tmp_path / "heads.json")
    assert ended.returncode == 0, ended.stderr
    heads = model.heads(needles=2)
    heads.save(tmp_path / "python.json")
    assert json.loads((tmp_path / "python.json").read_text()) == json.loads((tmp_path / "heads.json").read_text())
