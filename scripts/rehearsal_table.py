#!/usr/bin/env python3
"""Runs the CUDA build of palimpsest through everything that a card must get right, and prints a table of what came out.

    python3 scripts/rehearsal_table.py                      # all of it on the pretend device
    python3 scripts/rehearsal_table.py --only parity        # the checks whose name contains this
    python3 scripts/rehearsal_table.py --only parity --kernel fused   # attention by our own kernels, unchecked
    python3 scripts/rehearsal_table.py --only parity --models llama-tiny,gguf-qwen2   # these models alone
    python3 scripts/rehearsal_table.py --write              # and into rehearsal/results.md
    python3 scripts/rehearsal_table.py --card --limit 300   # on real cards: parity and the sample, with target/release/palimpsest

Needs nothing but Python. A check that fails is a row that says so, and the exit code is 1.
"""
import argparse
import concurrent.futures
import datetime
import itertools
import json
import math
import re
import signal
import shutil
import subprocess
import sys
import time

from rehearsal_program import COSINE, ROOT, Failure, Program, apart, last_line, possible, rms, sound_positions, tensors

FIXTURES = ROOT / "tests" / "fixtures"
CHUNKS = (1, 7, 64, 1024)
# What is promised against transformers: f32 numbers, and in half precision at most so many times its own error there.
LOGITS, MASSES, OVER = 1e-3, 1e-4, 1.6
# In half precision our own kernels and matrix products round at other places: of the one's error at most so many times the other's.
OVER_PRODUCTS = 1.25
# Models at a time on a card, which a tiny one does not fill. The pretend device fills all cores with one.
AT_ONCE = 8
# What `--device` splits and what is late is tried with every kind of layer and of weights.
OF_ALL_KINDS = ("llama-tiny", "gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny", "qwen35-text-tiny", "lfm2-tiny", "granite-hybrid-tiny",
                "deepseek-v2-tiny", "deepseek-v32-tiny", "glm-moe-dsa-tiny", "gguf-llama", "gguf-qwen2")
KINDS = ("logits", "mass", "sink", "delta_signed", "delta_share")
MARKS = ("<!-- begin: rehearsed -->\n", "<!-- end: rehearsed -->")


# --- models ---------------------------------------------------------------------------------------------------------------

def models():
    """(name, what to open, whose numbers it must give) of every tiny checkpoint and GGUF file."""
    for folder in sorted(FIXTURES.iterdir()):
        name = folder.name
        if name.endswith("-tiny"):
            yield name, folder, name
        elif (folder / "model.gguf").exists():
            own = (folder / "reference.safetensors").exists()
            yield name, folder / "model.gguf", name if own else name.removeprefix("gguf-") + "-tiny"


def has_experts(name):
    return any(part in name for part in ("moe", "gpt-oss", "minimax", "deepseek", "mistral4", "qwen3-next"))


def trace(program, model, tokens, device, dtype, chunk, generate=0, kernel=None, **settings):
    out = program.folder / f"trace-{next(program.files)}.safetensors"
    more = ("--generate", generate) if generate else ()
    code, _, err = program.run("trace", "--model", model, "--tokens", tokens, "--out", out, "--device", device, "--dtype", dtype,
                               "--chunk", chunk, "--attention-kernel", kernel or program.kernel, *more, **settings)
    if code != 0 or "rehearsal:" in err:
        raise Failure(f"{model.name if hasattr(model, 'name') else model}, {dtype}, chunks of {chunk}: exit {code}: {last_line(err)}")
    found = tensors(out)
    out.unlink()
    return found


# --- checks: each yields rows (what, on what, found, allowed, whether it holds) --------------------------------------------

def parity(program, quick):
    """Every tiny checkpoint and GGUF file against transformers on one card, and one of each kind of layer and weights on others."""
    of_kinds = [model for model in program.models if model[0] in OF_ALL_KINDS] or program.models
    setups = [("one card", "cuda:0", {}), ("two cards", "cuda:0,cuda:1", {"devices": 2}),
              ("two cards, the other first", "cuda:1,cuda:0", {"devices": 2})]
    if not program.card:
        setups += [("one card, as late as allowed", "cuda:0", {"late": True}),
                   ("two cards, as late as allowed", "cuda:0,cuda:1", {"devices": 2, "late": True})]
    setups = possible(program, setups)
    for where, device, settings in setups[::max(1, len(setups) - 1)] if quick else setups:
        for dtype in ("f32", "bf16", "f16"):
            # Half precision sums in another order at another chunk size, and is held to a bound by itself: one cut will do.
            chunks = CHUNKS if dtype == "f32" and not quick else (64,)
            models = program.models if where == "one card" else of_kinds
            yield from parity_of(program, models, where, device, dtype, chunks, settings)


def parity_of(program, models, where, device, dtype, chunks, settings):
    worst, ratio, same, runs, count = {}, 0.0, 0, 0, 0
    flipped, seen, most = 0, 0, 0
    failed = []

    def of_model(model):
        """Its reference, and by chunk size what was found or why not."""
        _, path, reference = model
        expected = tensors(FIXTURES / reference / "reference.safetensors")
        tries = []
        prompts = FIXTURES / "prompts" / f"{reference}.safetensors"
        if dtype != "f32" and prompts.exists():
            try:
                over = over_prompts(program, path, reference, prompts, device, dtype, chunks[-1], **settings)
                return reference, expected, [(chunks[-1], over)]
            except (Failure, subprocess.TimeoutExpired) as failure:
                return reference, expected, [(chunks[-1], failure)]
        for chunk in chunks if dtype != "f16" or "logits_f16" in expected else ():
            more = 64 if chunk == chunks[-1] else 0
            try:
                tries.append((chunk, trace(program, path, FIXTURES / reference / "tokens.json", device, dtype, chunk, more, **settings)))
            except (Failure, subprocess.TimeoutExpired) as failure:
                tries.append((chunk, failure))
        return reference, expected, tries

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE if program.card else 1) as pool:
        read = list(pool.map(of_model, models))
    for reference, expected, tries in read:
        count += bool(tries)
        for chunk, found in tries:
            if isinstance(found, Exception):
                failed.append(str(found))
                continue
            whole = chunk == chunks[-1]
            runs += 1
            if dtype == "f32":
                for kind in KINDS:
                    if kind in expected:
                        key = "logits" if kind == "logits" else "masses"
                        worst[key] = max(worst.get(key, 0.0), apart(found.get(kind, ()), expected[kind]))
                if whole and "greedy" in expected:
                    same += found["generated"] == expected["greedy"]
            elif isinstance(found, float):
                ratio = max(ratio, found)
            elif has_experts(reference):
                sound, positions = sound_positions(found["logits"], expected["logits"])
                flipped, seen, most = flipped + positions - sound, seen + positions, max(most, positions - sound)
            else:
                for kind in KINDS:
                    if f"{kind}_{dtype}" in expected:
                        bound = rms(expected[f"{kind}_{dtype}"], expected[kind])
                        ratio = max(ratio, rms(found[kind], expected[kind]) / bound if bound else 0.0)
    what = f"{count} tiny models, {dtype}, chunks of {', '.join('all' if c > 151 else str(c) for c in chunks)}"
    if failed:
        yield what, where, f"{len(failed)} of {len(failed) + runs} runs failed; first: {failed[0]}", "none", False
        return
    if dtype == "f32":
        yield (f"{what}: logits", where, f"{worst['logits']:.1e}", f"{LOGITS:.0e}", worst["logits"] < LOGITS)
        yield (f"{what}: masses", where, f"{worst['masses']:.1e}", f"{MASSES:.0e}", worst["masses"] < MASSES)
        yield (f"{what}: 64 tokens generated", where, f"{same} of {count} as transformers", "all", same == count)
    else:
        yield (f"{what}: root mean square error, in those of transformers", where, f"{ratio:.2f}", f"{OVER}", ratio <= OVER)
        yield (f"{what}: positions whose logits have a cosine above {COSINE}, models with experts", where, f"{seen - flipped} of {seen}",
               "all but 1 of 16 a model", most <= 1)


def over_prompts(program, model, reference, prompts, device, dtype, chunk, **settings):
    """The greatest of the root mean square errors of a model, in those of transformers: each the geometric mean over the prompts, on which
    the errors of some models depend by a factor of five and more (tests/parity/reference.rs)."""
    expected = tensors(prompts)
    request = json.loads((FIXTURES / reference / "tokens.json").read_text())
    logs, count = {}, len(expected[f"logits_{dtype}_error"])
    for nth in range(count):
        part = lambda values: values[nth * len(values) // count:(nth + 1) * len(values) // count]
        tokens = program.folder / f"prompt-{next(program.files)}.json"
        tokens.write_text(json.dumps(request | {"tokens": list(part(expected["tokens"]))}))
        found = trace(program, model, tokens, device, dtype, chunk, **settings)
        for kind in KINDS:
            if f"{kind}_{dtype}_error" in expected:
                error = rms(found[kind], part(expected[kind])) / expected[f"{kind}_{dtype}_error"][nth]
                logs.setdefault(kind, []).append(math.log(error))
    return math.exp(max(sum(of) / count for of in logs.values()))


SAMPLED = ("llama-tiny", "qwen3-tiny", "gemma3-tiny", "gpt-oss-tiny", "qwen3-moe-tiny", "glm4-moe-tiny", "qwen35-text-tiny")


QUESTION = "{{ date }}\n{{ history }}\n{{ query }}\n"


def short_sample(program):
    """The first two cases of the sample with 3 sessions of 2 short turns, and templates of a line: what a tiny model reads
    byte by byte, and the pretend device some thousand times slower than a card."""
    data, prompts = program.folder / "short.json", program.folder / "prompts"
    if not data.exists():
        code, _, err = program.run("data", "sample", "--sessions", 3, "--out", data)
        if code != 0:
            raise Failure(f"data sample: {last_line(err)}")
        cases = json.loads(data.read_text())[:2]
        for case in cases:
            case["haystack_session"] = [[dict(turn, content=turn["content"][:24].strip()) for turn in session[:2]]
                                        for session in case["haystack_session"]]
        data.write_text(json.dumps(cases))
        prompts.mkdir()
        for name, text in (("system.j2", ""), ("question.j2", QUESTION), ("request.j2", QUESTION)):
            (prompts / name).write_text(text)
    return data, prompts


def run_folder(program, model, device, out, *more, fresh=True, **settings):
    """Answers the short sample with a tiny model; unless `fresh`, goes on where an earlier run ended."""
    if fresh:
        shutil.rmtree(out, ignore_errors=True)
    data, prompts = short_sample(program)
    return program.run("run", "--data", data, "--prompts", prompts, "--max-new-tokens", 12, "--model", model, "--context", 4096, "--allow-longer",
                       "--dtype", "f32", "--device", device, "--out", out, *more, **settings)


def answers(folder):
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return {(row["case"], row["probe"]): row["answer"] for row in rows if "answer" in row}


def shared(program, quick):
    """Two cases of the sample: shared prefix, probes answered together, attention recorded; against the CPU."""
    setups = [("one card", "cuda:0", {}), ("two cards", "cuda:0,cuda:1", {"devices": 2})]
    if not program.card:
        setups.append(("two cards, as late as allowed", "cuda:1,cuda:0", {"devices": 2, "late": True}))
    cpu, card = program.folder / "cpu", program.folder / "card"
    setups = possible(program, setups)
    results = {where: [0, 0, 0.0, []] for where, _, _ in setups}
    for name in SAMPLED[:3] if quick else SAMPLED:
        model = FIXTURES / name
        code, _, err = run_folder(program, model, "cpu", cpu)
        if code != 0:
            raise Failure(f"{name} on the CPU: {last_line(err)}")
        expected, stores = answers(cpu), sorted((cpu / "attention").rglob("*.safetensors"))
        for where, device, settings in setups:
            for together in (("--batch-size", "1"), ()):
                same = results[where]
                code, _, err = run_folder(program, model, device, card, *together, **settings)
                if code != 0 or "rehearsal:" in err:
                    same[3].append(f"{name}: exit {code}: {last_line(err)}")
                    continue
                found = answers(card)
                same[0] += sum(found.get(key) == answer for key, answer in expected.items())
                same[1] += len(expected)
                for store in stores:
                    theirs, ours = tensors(store), tensors(card / store.relative_to(cpu))
                    same[2] = max([same[2], *(apart(ours[key], theirs[key]) for key in theirs if key != "tokens")])
    for where, (equal, total, masses, failed) in results.items():
        what = f"2 cases of the sample, {len(SAMPLED[:3] if quick else SAMPLED)} tiny models, probes apart and together"
        if failed:
            yield what, where, f"{len(failed)} runs failed; first: {failed[0]}", "none", False
        else:
            yield f"{what}: answers as on the CPU", where, f"{equal} of {total}", "all", equal == total
            yield f"{what}: masses against the CPU's", where, f"{masses:.1e}", f"{MASSES:.0e}", masses < MASSES


def causes(program, quick):
    """Each session of the two cases blocked in turn, and what is read of it, against the CPU."""
    cpu, card = program.folder / "causes-cpu", program.folder / "causes-card"
    setups = [("one card", "cuda:0", {})] + ([] if quick else [("two cards", "cuda:0,cuda:1", {"devices": 2})])
    names = [name for name in SAMPLED if "qwen35" not in name and "minimax" not in name][:2 if quick else None]
    for where, device, settings in possible(program, setups):
        effects, measures, failed, rows = 0.0, 0.0, [], 0
        for name in names:
            model = FIXTURES / name
            for folder, device_of, more in ((cpu, "cpu", {}), (card, device, settings)):
                code, _, err = run_folder(program, model, "cpu", folder)
                if code == 0:
                    code, _, err = program.run("causes", folder, "--model", model, "--device", device_of, **more)
                if code != 0 or "rehearsal:" in err:
                    failed.append(f"{name} on {device_of}: exit {code}: {last_line(err)}")
            if failed:
                continue
            theirs, ours = ([json.loads(line) for line in (folder / "causes.jsonl").read_text().splitlines()] for folder in (cpu, card))
            # Rows of a session hidden, and of random text hidden as its control.
            key = lambda row: (row["case"], row["probe"], row.get("kind", ""), row.get("span", ""), row["tokens"], row.get("seed", 0))
            theirs, ours = sorted(theirs, key=key), sorted(ours, key=key)
            if [key(row) for row in theirs] != [key(row) for row in ours]:
                failed.append(f"{name}: other rows than on the CPU")
                continue
            rows += len(ours)
            for a, b in zip(theirs, ours):
                effects = max([effects, *(abs(a["effect"][part] - b["effect"][part]) for part in ("log_p_drop", "kl"))])
            for file in sorted((cpu / "causes").glob("*.safetensors")):
                a, b = tensors(file), tensors(card / "causes" / file.name)
                # Relative to the largest, where numbers are larger than 1.
                scale = {kind: max(1.0, max(abs(x) for x in a[kind])) for kind in a}
                measures = max([measures, *(apart(a[kind], b[kind]) / scale[kind] for kind in a)])
        what = f"causes of 2 cases of the sample, {len(names)} tiny models"
        if failed:
            yield what, where, f"{len(failed)} runs failed; first: {failed[0]}", "none", False
            continue
        yield f"{what}: {rows} effects against the CPU's", where, f"{effects:.1e}", "1e-3", effects < 1e-3
        yield f"{what}: what is read of each session, against the CPU's", where, f"{measures:.1e}", f"{MASSES:.0e}", measures < MASSES


REAL = (("smollm2-512", "smollm2-135m"), ("gemma3-512", "gemma3-270m"))


def of_reference(found, expected):
    """The logits of those ids alone that the reference keeps."""
    ids = expected["logit_ids"]
    vocab = len(found["logits"]) * len(ids) // len(expected["logits"])
    return dict(found, logits=[found["logits"][start + i] for start in range(0, len(found["logits"]), vocab) for i in ids])


def real(program, quick):
    """The two real models on 512 tokens, against transformers."""
    for fixture, model in REAL:
        reference = FIXTURES / fixture
        if not reference.exists():
            continue
        expected = tensors(reference / "reference.safetensors")
        for where, device, settings in possible(program, [("one card", "cuda:0", {})] + ([] if quick else [("two cards", "cuda:0,cuda:1", {"devices": 2})])):
            found = trace(program, model, reference / "tokens.json", device, "f32", 256, **settings)
            found = of_reference(found, expected)
            for kind, allowed in (("logits", LOGITS), ("mass", MASSES)):
                if kind in expected:
                    difference = apart(found[kind], expected[kind])
                    yield f"{model}, 512 tokens, f32: {kind}", where, f"{difference:.1e}", f"{allowed:.0e}", difference < allowed


def fused(program, quick):
    """The real models and a GGUF file in half precision by our own kernels: their error beside that of matrix products."""
    for fixture, model in (*REAL, ("gguf-gemma3", FIXTURES / "gguf-gemma3" / "model.gguf")):
        reference = FIXTURES / fixture
        if not reference.exists():
            continue
        tokens, whole = reference / "tokens.json", tensors(reference / "reference.safetensors")
        cut = of_reference if "logit_ids" in whole else lambda found, _: found
        # By transformers in f32, as the CPU's f32 is within the tolerances above.
        expected = {kind: whole[kind] for kind in ("logits", "mass")}
        name = model if isinstance(model, str) else fixture
        # Gemma's activations are beyond f16's largest number, whatever computes its attention.
        for dtype in ("bf16",) if quick or name == "gemma3-270m" else ("bf16", "f16"):
            wrong = {}
            for kernel in ("products", "fused"):
                found = cut(trace(program, model, tokens, "cuda:0", dtype, 256, kernel=kernel), whole)
                wrong[kernel] = {kind: rms(found[kind], expected[kind]) for kind in expected}
            for kind in expected:
                theirs, ours = wrong["products"][kind], wrong["fused"][kind]
                yield (f"{name}, {dtype}, fused: root mean square error of {kind} against f32, in that of products ({theirs:.1e})", "one card",
                       f"{ours / theirs:.2f}", f"{OVER_PRODUCTS}", ours <= OVER_PRODUCTS * theirs)


def pipeline(program, quick):
    """Two cases of the sample from run to report, judged by a local judge, all on the device."""
    out = program.folder / "pipeline"
    shutil.rmtree(out, ignore_errors=True)
    began = time.monotonic()
    steps = [("run", "--data", "sample", "--sessions", 3, "--limit", 2, "--max-new-tokens", 8, "--model", "smollm2-135m", "--device", "cuda:0", "--out", out),
             ("judge", out, "--judge", "local:smollm2-135m", "--device", "cuda:0"), ("lens", out), ("figures", out), ("report", out)]
    for step in steps:
        code, _, err = program.run(*step, timeout=5400)
        # A judge of this size cannot judge: its replies may be errors, which exit code 1 tells, but every row must be there.
        if code != 0 and not (step[0] == "judge" and (out / "verdicts.jsonl").exists()):
            raise Failure(f"palimpsest {step[0]}: exit {code}: {last_line(err)}")
    rows = len((out / "answers.jsonl").read_text().splitlines())
    verdicts = len((out / "verdicts.jsonl").read_text().splitlines())
    report = any(out.rglob("report.html"))
    yield ("SmolLM2-135M, 2 cases of the sample, run, judge, lens, figures, report", "one card, bf16",
           f"{rows} answers, {verdicts} verdicts, report {'drawn' if report else 'missing'}, {time.monotonic() - began:.0f} s", "6 answers, a verdict each",
           rows == 6 and verdicts >= 6 and report)


SHAPES = (("llama-3.1-8b-instruct", "a dense model"), ("qwen3.5-9b", "delta nets"), ("gpt-oss-20b", "experts, sinks, windows"), ("gemma3-270m", "windows"))


def memory(program, quick):
    """Peak bytes of released models' shapes without weights, against the plan."""
    if program.card:
        return
    kernels = ("auto", "products") if program.kernel == "auto" else (program.kernel,)
    for (name, kind), kernel in itertools.product(SHAPES[1:2] if quick else SHAPES, kernels):
        found = []
        for dtype in ("bf16", "f32"):
            for context in (8192, 32768, 131072):
                args = ("--context", context, "--dtype", dtype, "--device", "cuda:0", "--attention-kernel", kernel)
                code, out, err = program.run("model", "plan", name, *args, "--batch-size", 1, "--memory", 400, "--json", memory="400GB")
                if code != 0:
                    raise Failure(f"model plan {name}: {last_line(err)}")
                planned = json.loads(out)["devices"][0]["total"]
                counted = program.reported("model", "try", name, *args, "--zeros", "--generate", 2,
                                           memory="400GB", REHEARSAL_ARITHMETIC="off")
                found.append(counted["devices"][0]["peak_bytes"] / planned)
        low, high = min(found), max(found)
        yield (f"{name} ({kind}): peak bytes, in those of `model plan`; 8K, 32K and 128K tokens, bf16 and f32, attention by {kernel}", "one card",
               f"{low:.2f} to {high:.2f}", "0.90 to 1.10", 0.9 <= low and high <= 1.1)


def refusals(program, quick):
    """Too small a card is refused before loading; running out in the middle is one line, and the run resumes."""
    if program.card:
        return
    out = program.folder / "small"
    model = FIXTURES / "llama-tiny"
    code, _, err = run_folder(program, model, "cuda:0", out, memory="8MB")
    said = last_line(err)
    yield ("a card of 8 MB: refused before loading", "one card", said[:90], "exit 1, names what would fit",
           code == 1 and "free on cuda:0" in err and len(err.strip().splitlines()) == 1)
    # As when another program takes for a moment what was free when the plan was made.
    report = program.folder / "calls.json"
    code, _, err = run_folder(program, model, "cuda:0", out, report=report)
    if code != 0:
        raise Failure(f"an undisturbed run: {last_line(err)}")
    middle = json.loads(report.read_text())["calls"]["cuMemAllocAsync"] // 2
    failing = ",".join(f"cuMemAllocAsync:{nth}" for nth in range(middle, middle + 40))
    code, _, err = run_folder(program, model, "cuda:0", out, REHEARSAL_FAIL=failing)
    clear = "out of memory" in err.lower() or any("OUT_OF_MEMORY" in (row.get("error") or "") for row in rows_of(out))
    code_again, _, err_again = run_folder(program, model, "cuda:0", out, fresh=False)
    complete = len(answers(out)) == 6 if code_again == 0 else False
    yield ("memory runs out in the middle of a run; started again", "one card",
           f"exit {code}, then {code_again}, {len(answers(out)) if (out / 'answers.jsonl').exists() else 0} answers", "a clear line, then 6 answers",
           code == 1 and clear and complete)


def rows_of(folder):
    path = folder / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def faults(program, quick):
    """Every kind of driver call fails once: a clear error, no hang, no row lost."""
    if program.card:
        return
    out, model = program.folder / "faults", FIXTURES / "llama-tiny"
    report = program.folder / "calls.json"
    code, _, err = run_folder(program, model, "cuda:0", out, "--limit", 1, report=report)
    if code != 0:
        raise Failure(f"an undisturbed run: {last_line(err)}")
    expected = answers(out)
    calls = json.loads(report.read_text())["calls"]
    bad = []
    kinds = [name for name, count in sorted(calls.items()) if count]
    for name in kinds:
        # Once at the first call and once in the middle.
        for nth in sorted({1, max(1, calls[name] // 2)}):
            try:
                code, _, err = run_folder(program, model, "cuda:0", out, "--limit", 1, REHEARSAL_FAIL=f"{name}:{nth}", timeout=300)
            except subprocess.TimeoutExpired:
                bad.append(f"{name} the {nth}th time: hangs")
                continue
            if code not in (0, 1) or "panicked" in err:
                bad.append(f"{name} the {nth}th time: exit {code}: {last_line(err)}")
            code, _, err = run_folder(program, model, "cuda:0", out, "--limit", 1, fresh=False)
            if code != 0 or answers(out) != expected:
                bad.append(f"{name} the {nth}th time: not whole after starting again: exit {code}: {last_line(err)}")
    print(*bad, sep="\n", file=sys.stderr)
    yield (f"each of {len(kinds)} kinds of driver call fails at its first call and in the middle; started again", "one card",
           f"{len(bad)} not clean" + (f"; first: {bad[0]}" if bad else ""), "a clear error, then all answers", not bad)


def interrupt(program, quick):
    """Ctrl-C in a prefill on the device."""
    out, model = program.folder / "interrupted", FIXTURES / "qwen35-text-tiny"
    shutil.rmtree(out, ignore_errors=True)
    args = ["run", "--data", "sample", "--sessions", "60", "--limit", "1", "--max-new-tokens", "8", "--model", str(model), "--allow-longer", "--context",
            "60000", "--dtype", "f32", "--device", "cuda:0", "--out", str(out)]
    running = subprocess.Popen([program.program, *args], env=program.settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(4)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    try:
        _, err = running.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        running.kill()
        raise Failure("Ctrl-C in a prefill: still running after 120 s") from None
    took = time.monotonic() - began
    yield ("Ctrl-C in a prefill", "one card", f"exit {running.returncode} after {took:.1f} s: {last_line(err)[:80]}", "ends with a line, no panic",
           running.returncode not in (0, 101) and "panicked" not in err)


def counted(program, model, tokens, generate, **settings):
    args = ("trace", "--model", model, "--tokens", tokens, "--out", program.folder / "t.safetensors", "--device", "cuda:0", "--dtype", "bf16", "--chunk", 1024)
    return program.reported(*args, *(("--generate", generate) if generate else ()), **settings)


def launches(report):
    return report["launches"] + sum(kind["calls"] for kind in report["products"].values())


def tokens_counted(program, quick):
    """What a generated token asks of the driver: the difference of two runs that generate 8 and 24 tokens."""
    if program.card:
        return
    for name in SAMPLED:
        folder = FIXTURES / name
        few, many = (counted(program, folder, folder / "tokens.json", n) for n in (8, 24))
        per = lambda of: (of(many) - of(few)) / 16
        layers = json.loads((folder / "config.json").read_text())
        layers = layers.get("num_hidden_layers", layers.get("text_config", {}).get("num_hidden_layers"))
        of = {kind: per(lambda report, kind=kind: report["copies"][kind]["calls"]) for kind in few["copies"]}
        found = (f"{per(launches):.1f} kernels and products, {of['to_device']:.2f} copies to, {of['to_host']:.1f} back, "
                 f"{of['on_device']:.1f} within, {of['fills']:.1f} fills")
        yield f"a generated token of {name}, bf16, {layers} layers", "one card", found, "", True


CHECKS = (parity, shared, causes, real, fused, pipeline, memory, refusals, faults, interrupt, tokens_counted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checks whose name contains this: " + ", ".join(check.__name__ for check in CHECKS))
    parser.add_argument("--quick", action="store_true", help="fewer models and chunk sizes")
    parser.add_argument("--models", help="the models of `parity`, by folders of tests/fixtures with commas between (default: all)")
    parser.add_argument("--card", action="store_true", help="real cards instead of the pretend device")
    parser.add_argument("--kernel", default="auto", choices=["auto", "products", "fused", "flash", "hopper"],
                        help="what computes attention in `parity`, `real` and `memory`; hopper needs REHEARSAL_COMPUTE_CAP=9.0")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="what has not run by then is a row that says so")
    parser.add_argument("--write", action="store_true", help="also write the table into rehearsal/results.md")
    args = parser.parse_args()
    chosen = {model[0]: model for model in models()}
    if args.models:
        unknown = sorted(set(args.models.split(",")) - chosen.keys())
        if unknown:
            parser.error(f"--models: tests/fixtures has no {', '.join(unknown)}; it has {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in args.models.split(",")}
    at = commit()
    program = Program(args.card, args.kernel, list(chosen.values()), args.limit)
    rows = []
    try:
        for check in CHECKS:
            if args.only not in check.__name__:
                continue
            began = time.monotonic()
            for row in told(check, program, args.quick):
                print(" | ".join(map(str, row[:4])), "|", "yes" if row[4] else "NO", flush=True)
                rows.append(row)
            print(f"  ({check.__name__}: {time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(program.folder, ignore_errors=True)
    if args.write:
        write(rows, at)
    return 0 if all(row[4] for row in rows) else 1


def told(check, program, quick):
    """A check's rows as they come, and one that says why it ended early."""
    try:
        program.left()
        yield from check(program, quick)
    except (Failure, subprocess.TimeoutExpired, KeyError, OSError) as failure:
        yield check.__doc__.split("\n")[0], "", f"{type(failure).__name__}: {failure}", "", False


def commit():
    """The commit that is tried, and whether the code has changes beside it."""
    name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.strip()
    clean = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "crates", "rehearsal"], cwd=ROOT).returncode == 0
    return name if clean else f"{name}, with changes"


def write(rows, at):
    lines = [f"Printed on {datetime.date.today()} at commit {at}.\n", "",
             "| what | on | found | allowed | holds |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {what} | {where} | {re.sub(r'[|]', '/', str(found))} | {allowed} | {'yes' if good else '**no**'} |"
              for what, where, found, allowed, good in rows]
    page = ROOT / "rehearsal" / "results.md"
    text = page.read_text()
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    page.write_text(text[:start] + "\n".join(lines).replace("\n\n\n", "\n\n") + "\n" + text[end:])


if __name__ == "__main__":
    sys.exit(main())
