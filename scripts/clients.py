#!/usr/bin/env python3
"""Runs clients of OpenAI's API against `palimpsest serve`, as they come from PyPI, and prints a table of what passed.

  clients.py [--program target/release/palimpsest] [--model smollm2-135m] [--venv DIR] [--reference PYTHON] [--only WORD]

Makes virtual environments with `openai`, `lm-eval` and `inspect-ai`, with `langchain-openai`, with LlamaIndex and with `mem0ai` (in
--venv, whose folders are used again, or in folders of their own), starts the server at a free port, and runs each check in its
environment: openai's client in its sync, async and streaming forms, structured output with a pydantic model, tools; lm-eval's
`local-completions` and `local-chat-completions` on a task file that is written here; inspect-ai's `openai-api` provider; the class
for LangChain that docs/own-text.md has, taken from there; LlamaIndex's `OpenAILike`; mem0's `add` and `search`. With --reference, a Python with torch, transformers
and gguf, the log-likelihoods that lm-eval gets are compared with those of transformers on the same file (--gguf; 1e-3).
Exits with 1 where a check fails.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

# By environment: packages pin different versions of openai's.
PACKAGES = {
    "openai": ["openai", "lm-eval[api]", "inspect-ai", "pydantic"],
    "langchain": ["langchain-openai"],
    "llama-index": ["llama-index-llms-openai-like"],
    "mem0": ["mem0ai<2", "qdrant-client"],
}
EMBEDDER = "all-minilm-l6-v2"
DOCS = Path(__file__).resolve().parent.parent / "docs" / "own-text.md"
TOLERANCE = 1e-3

QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "a small dog", "seven"], "answer": 0},
    {"question": "Water freezes at zero degrees", "choices": ["purple", "Celsius", "of the guitar"], "answer": 1},
    {"question": "The opposite of hot is", "choices": ["green", "twelve", "cold"], "answer": 2},
    {"question": "A week has seven", "choices": ["days", "elephants", "of them, as is well known"], "answer": 0},
]


class Checks:
    """Runs what is called, one after the other, and notes how each ended."""

    def __init__(self, only):
        self.only, self.rows = only, []

    def run(self, name, check):
        if self.only and self.only not in name:
            return
        begun = time.time()
        try:
            said, passed = check() or "", True
        except Exception as error:
            said, passed = f"{type(error).__name__}: {error}", False
        line = " ".join(str(said).split())
        self.rows.append((name, passed, time.time() - begun, line))
        print(f"{'passed' if passed else 'FAILED'}  {name}: {line[:400]}", file=sys.stderr, flush=True)


# --- openai ---------------------------------------------------------------------------------------------------------------


def openai_checks(checks, url, model):
    import openai
    from pydantic import BaseModel

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    ask = {"model": model, "temperature": 0, "max_completion_tokens": 24}
    messages = [{"role": "user", "content": "Name a colour of the rainbow."}]

    def sync():
        reply = client.chat.completions.create(messages=messages, **ask)
        assert reply.choices[0].message.content and reply.usage.completion_tokens > 0
        return reply.choices[0].message.content

    def streaming():
        whole = client.chat.completions.create(messages=messages, **ask).choices[0].message.content
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(messages=messages, stream=True, stream_options=options, **ask))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole and chunks[-1].usage.completion_tokens > 0
        return f"{len(chunks)} chunks"

    def asynchronous():
        async def both():
            other = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            asked = [other.chat.completions.create(messages=messages, **ask) for _ in range(3)]
            replies = await asyncio.gather(*asked)
            stream = await other.chat.completions.create(messages=messages, stream=True, **ask)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return [reply.choices[0].message.content for reply in replies], "".join(pieces)

        texts, streamed = asyncio.run(both())
        assert set(texts) == {streamed}, (texts, streamed)
        return f"{len(texts)} at once"

    def completions():
        reply = client.completions.create(
            model=model, prompt="One, two, three,", max_tokens=6, temperature=0, logprobs=2, echo=True
        )
        lists = reply.choices[0].logprobs
        assert reply.choices[0].text.startswith("One, two, three,") and lists.token_logprobs[0] is None
        stream = client.completions.create(
            model=model, prompt="One, two, three,", max_tokens=6, temperature=0, logprobs=2, echo=True, stream=True
        )
        told = [one for chunk in stream if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.token_logprobs]
        assert told == lists.token_logprobs
        return reply.choices[0].text

    class Event(BaseModel):
        name: str
        day: int
        indoors: bool

    def structured():
        said = [{"role": "user", "content": "The fair is in the hall on day 12. Give its name, its day, and whether it is indoors."}]
        reply = client.chat.completions.parse(
            model=model, messages=said, temperature=0, max_completion_tokens=200, response_format=Event
        )
        event = reply.choices[0].message.parsed
        assert isinstance(event, Event)
        with client.chat.completions.stream(
            model=model, messages=said, temperature=0, max_completion_tokens=200, response_format=Event
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == event
        return event

    def json_object():
        reply = client.chat.completions.create(
            model=model, temperature=0, max_completion_tokens=300, response_format={"type": "json_object"},
            messages=[{"role": "user", "content": "Give the JSON {\"colour\": \"red\"}."}],
        )
        choice = reply.choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        return f"{choice.finish_reason}: {choice.message.content[:80]}"

    weather = {
        "type": "function",
        "function": {
            "name": "weather", "description": "The weather of a city.", "strict": True,
            "parameters": {
                "type": "object", "additionalProperties": False, "required": ["city", "unit"],
                "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"type": "string", "enum": ["C", "F"]}},
            },
        },
    }
    said = [{"role": "user", "content": "What is the weather in Oslo?"}]

    def tools():
        sent = {"model": model, "tools": [weather], "temperature": 0, "max_completion_tokens": 200}
        reply = client.chat.completions.create(
            messages=said, tool_choice="required", parallel_tool_calls=False, **sent
        )
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        call = choice.message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "weather" and arguments["unit"] in "CF"
        history = said + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain, 9 degrees."}]
        after = client.chat.completions.create(messages=history, tool_choice="none", **sent)
        assert after.choices[0].message.content and not after.choices[0].message.tool_calls
        auto = client.chat.completions.create(messages=said, **sent).choices[0]
        named = {"type": "function", "function": {"name": "weather"}}
        with client.chat.completions.stream(messages=said, tool_choice=named, **sent) as stream:
            final = stream.get_final_completion().choices[0]
        parsed = final.message.tool_calls[0].function.parsed_arguments
        assert parsed["unit"] in "CF" and final.finish_reason == "tool_calls"
        return f"{arguments}; then: {after.choices[0].message.content[:60]!r}; auto: {auto.finish_reason}; streamed: {parsed}"

    def errors():
        try:
            client.chat.completions.create(model=model, messages=said, frequency_penalty=9)
        except openai.BadRequestError as error:
            assert error.param == "frequency_penalty"
            return error.message
        raise AssertionError("it was served")

    def sampling():
        reply = client.chat.completions.create(
            model=model, messages=messages, n=2, seed=3, temperature=1, max_completion_tokens=8, logprobs=True,
            top_logprobs=2, frequency_penalty=0.5, presence_penalty=0.5, logit_bias={"5": -100}, stop=["zzz"],
        )
        assert len(reply.choices) == 2 and len(reply.choices[0].logprobs.content[0].top_logprobs) == 2
        return [choice.message.content for choice in reply.choices]

    checks.run("openai: sync", sync)
    checks.run("openai: streaming", streaming)
    checks.run("openai: async", asynchronous)
    checks.run("openai: completions, echo and logprobs", completions)
    checks.run("openai: structured output (parse)", structured)
    checks.run("openai: json_object", json_object)
    checks.run("openai: tools", tools)
    checks.run("openai: n, penalties, logit_bias", sampling)
    checks.run("openai: errors name the field", errors)


# --- lm-eval --------------------------------------------------------------------------------------------------------------


def write_tasks(folder):
    rows = folder / "questions.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    common = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test",
        "doc_to_text": "{{question}}", "metadata": {"version": 1.0},
    }
    choice = {
        "task": "palimpsest_choice", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
    }
    text = {
        "task": "palimpsest_text", "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "temperature": 0.0},
        "metric_list": [{"metric": "exact_match"}],
    }
    for task in (choice, text):
        # JSON is YAML.
        (folder / f"{task['task']}.yaml").write_text(json.dumps(common | task))


def lm_eval_checks(checks, url, model, folder, scored):
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["HF_HOME"] = str(folder / "hf")
    write_tasks(folder)

    def evaluate(kind, path, task, chat):
        import lm_eval
        from lm_eval.tasks import TaskManager

        arguments = {"model": model, "base_url": f"{url}/v1/{path}", "tokenizer_backend": "remote", "num_concurrent": 1}
        if chat:
            arguments["tokenizer_backend"] = None
            arguments["tokenized_requests"] = False
        done = lm_eval.simple_evaluate(
            model=kind, model_args=arguments, tasks=[task], apply_chat_template=chat, log_samples=True, bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        )
        return done["results"][task], done["samples"][task]

    def choice():
        results, samples = evaluate("local-completions", "completions", "palimpsest_choice", False)
        rows = []
        for sample in samples:
            for (text, continuation), answer in zip(sample["arguments"], sample["filtered_resps"], strict=True):
                rows.append({"text": text, "continuation": continuation, "log_p": float(answer[0])})
        assert len(rows) == sum(len(row["choices"]) for row in QUESTIONS), len(rows)
        scored.write_text(json.dumps(rows))
        return f"{len(rows)} log-likelihoods, accuracy {results['acc,none']}"

    def text(kind, path, chat):
        def run():
            _, samples = evaluate(kind, path, "palimpsest_text", chat)
            assert len(samples) == len(QUESTIONS) and all(sample["filtered_resps"] for sample in samples)
            return [sample["filtered_resps"][0] for sample in samples]

        return run

    checks.run("lm-eval: local-completions, log-likelihoods", choice)
    checks.run("lm-eval: local-completions, texts", text("local-completions", "completions", False))
    checks.run("lm-eval: local-chat-completions", text("local-chat-completions", "chat/completions", True))


def reference(scored, gguf, url, model):
    """Compares what lm-eval got with transformers, in an environment that has it."""
    import torch
    from transformers import AutoModelForCausalLM

    path = Path(gguf)
    decoder = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()

    def tokens(text):
        body = json.dumps({"model": model, "prompt": text}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/tokenize", body)) as reply:
            return json.load(reply)["tokens"]

    worst = 0.0
    rows = json.loads(Path(scored).read_text())
    for row in rows:
        context, whole = tokens(row["text"]), tokens(row["text"] + row["continuation"])
        with torch.no_grad():
            log_p = decoder(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        expected = sum(log_p[at - 1, whole[at]].item() for at in range(len(context), len(whole)))
        worst = max(worst, abs(expected - row["log_p"]))
    assert worst <= TOLERANCE, f"{worst} is more than {TOLERANCE}"
    return f"{len(rows)} log-likelihoods, largest difference {worst:.2e}"


# --- inspect-ai -----------------------------------------------------------------------------------------------------------


def inspect_checks(checks, url, model, folder):
    os.environ["PALIMPSEST_API_KEY"] = "none"
    os.environ["PALIMPSEST_BASE_URL"] = f"{url}/v1"
    os.environ["INSPECT_LOG_DIR"] = str(folder / "logs")

    def run():
        from inspect_ai import Task, eval as evaluate
        from inspect_ai.dataset import Sample
        from inspect_ai.scorer import includes
        from inspect_ai.solver import generate

        samples = [Sample(input=row["question"], target=row["choices"][row["answer"]]) for row in QUESTIONS]
        task = Task(dataset=samples, solver=generate(), scorer=includes(), name="palimpsest")
        (log,) = evaluate(
            task, model=f"openai-api/palimpsest/{model}", display="none", temperature=0.0, max_tokens=24, log_format="json"
        )
        assert log.status == "success", log.error
        assert all(sample.output.completion for sample in log.samples)
        return f"{len(log.samples)} samples, accuracy {log.results.scores[0].metrics['accuracy'].value}"

    checks.run("inspect-ai: openai-api", run)


# --- LangChain, LlamaIndex, mem0 --------------------------------------------------------------------------------------------

PARTS = [
    {"type": "text", "text": "The market is on Thursday. ", "span": "old"},
    {"type": "text", "text": "From May on the market is on Sunday. ", "span": "new"},
    {"type": "text", "text": "When is the market in June?", "span": "question"},
]


def example(heading):
    """The first Python of a section of docs/own-text.md."""
    section = DOCS.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return section.split("```python\n", 1)[1].split("```", 1)[0]


def langchain_checks(checks, url, model, _):
    from pydantic import BaseModel

    source = example("With LangChain").replace("http://127.0.0.1:8080", url).replace("smollm2-135m", model)
    names = {}
    exec(source, names)  # noqa: S102: the documentation's own lines
    llm = names["ChatPalimpsest"](
        base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=20,
        extra_body={"palimpsest": {"rows": ["question", "answer", "each"]}},
    )
    messages = [("user", PARTS)]

    def told(message):
        return message.response_metadata["palimpsest"]

    def sync():
        attention = told(llm.invoke(messages))
        labels = [span["label"] for span in attention["spans"]]
        assert {"old", "new", "question"} <= set(labels) and len(attention["mass"][0]) == 2
        return labels

    def streaming():
        whole = None
        for chunk in llm.stream(messages):
            whole = chunk if whole is None else whole + chunk
        reply = llm.invoke(messages)
        assert whole.content == reply.content and told(whole) == told(reply)
        return f"{len(told(whole)['each'])} tokens"

    def asynchronous():
        async def both():
            whole = None
            async for chunk in llm.astream(messages):
                whole = chunk if whole is None else whole + chunk
            return told(await llm.ainvoke(messages)), told(whole)

        reply, streamed = asyncio.run(both())
        assert reply == streamed

    class Day(BaseModel):
        day: str

    def structured():
        reply = llm.with_structured_output(Day, include_raw=True).invoke(messages)
        assert isinstance(reply["parsed"], Day) and told(reply["raw"])["rows"] == ["question", "answer"]
        return reply["parsed"]

    checks.run("langchain: attention of a reply", sync)
    checks.run("langchain: attention of a stream", streaming)
    checks.run("langchain: async", asynchronous)
    checks.run("langchain: attention of structured output", structured)


def llama_index_checks(checks, url, model, _):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model=model, api_base=f"{url}/v1", api_key="none", is_chat_model=True, context_window=8192, temperature=0, max_tokens=20,
        additional_kwargs={"extra_body": {"palimpsest": {"rows": ["messages[2]", "answer"]}}},
    )
    messages = [ChatMessage(role="user", content=part["text"]) for part in PARTS]

    def sync():
        attention = llm.chat(messages).raw.choices[0].model_extra["palimpsest"]
        labels = [span["label"] for span in attention["spans"] if span["label"].startswith("messages")]
        assert labels == [f"messages[{i}]" for i in range(len(PARTS))]
        return labels

    def streaming():
        last = list(llm.stream_chat(messages))[-1]
        assert last.message.content and "mass" in last.raw.choices[0].model_extra["palimpsest"]

    checks.run("llama-index: attention of a reply", sync)
    checks.run("llama-index: attention of a stream", streaming)


def mem0_checks(checks, url, model, folder):
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ["MEM0_DIR"] = str(folder / "mem0")

    def memory():
        from mem0 import Memory

        ours = {"openai_base_url": f"{url}/v1", "api_key": "none"}
        return Memory.from_config({
            "llm": {"provider": "openai", "config": ours | {"model": model, "temperature": 0, "max_tokens": 400}},
            "embedder": {"provider": "openai", "config": ours | {"model": EMBEDDER, "embedding_dims": 384}},
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": str(folder / "qdrant"), "on_disk": True, "embedding_model_dims": 384},
            },
            "history_db_path": str(folder / "history.db"),
        })

    def stored():
        kept = memory()
        for text in ("I play the cello in a quartet.", "I live in Bergen.", "I am allergic to nuts."):
            kept.add(text, user_id="ada", infer=False)
        found = kept.search("Where does she live?", user_id="ada")["results"]
        assert len(found) == 3 and found[0]["memory"] == "I live in Bergen.", found
        # What a small model makes of it is another matter: that it is asked and nothing breaks.
        said = kept.add([{"role": "user", "content": "I moved: I now live in Oslo."}], user_id="ada")["results"]
        return f"add with {model} made of it: {said}"

    checks.run("mem0: add and search", stored)


# --- the server -----------------------------------------------------------------------------------------------------------


def inside(arguments):
    """The checks, in the environment that has the clients."""
    checks = Checks(arguments.only)
    folder = Path(arguments.inside)
    others = {"langchain": langchain_checks, "llama-index": llama_index_checks, "mem0": mem0_checks}
    if arguments.group in others:
        others[arguments.group](checks, arguments.url, arguments.model, folder)
    else:
        openai_checks(checks, arguments.url, arguments.model)
        lm_eval_checks(checks, arguments.url, arguments.model, folder, folder / "scored.json")
        inspect_checks(checks, arguments.url, arguments.model, folder)
    (folder / f"{arguments.group}.json").write_text(json.dumps(checks.rows))


def environment(folder, group):
    """The Python of a group's environment, and the versions in it."""
    python = folder / group / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / group], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[group]], check=True)
    frozen = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    names = [package.split("[")[0].split("<")[0] for package in [*PACKAGES[group], "openai"]]
    wanted = tuple(f"{spelt}==" for name in names for spelt in (name, name.replace("-", "_")))
    return python, [line for line in frozen.splitlines() if line.lower().startswith(wanted)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(url, server):
    for _ in range(1200):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    raise SystemExit("the server does not answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/palimpsest")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--venv")
    parser.add_argument("--reference", help="a Python with torch, transformers and gguf")
    parser.add_argument("--gguf", help="the model's file, for --reference [default: where palimpsest keeps smollm2-135m]")
    parser.add_argument("--only", help="checks whose names hold this")
    parser.add_argument("--group", choices=PACKAGES, help="the checks of this environment alone")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--compare", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments)
    if arguments.compare:
        print(reference(arguments.compare, arguments.gguf, arguments.url, arguments.model))
        return None

    with tempfile.TemporaryDirectory() as folder:
        venv = Path(arguments.venv or Path(folder) / "venv")
        groups = [arguments.group] if arguments.group else list(PACKAGES)
        environments = {group: environment(venv, group) for group in groups}

        port = free_port()
        url = f"http://127.0.0.1:{port}"
        server = subprocess.Popen([arguments.program, "serve", arguments.model, EMBEDDER, "--port", str(port)])
        try:
            wait_for(url, server)
            me = [Path(__file__).resolve(), "--model", arguments.model, "--url", url]
            only = ["--only", arguments.only] if arguments.only else []
            rows = []
            for group, (python, _) in environments.items():
                subprocess.run([python, *me, "--inside", folder, "--group", group, *only], check=True)
                rows += json.loads((Path(folder) / f"{group}.json").read_text())
            scored = Path(folder) / "scored.json"
            if arguments.reference and scored.exists():
                kept = Path.home() / ".cache/palimpsest/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
                begun = time.time()
                compared = subprocess.run(
                    [arguments.reference, *me, "--compare", scored, "--gguf", arguments.gguf or kept],
                    capture_output=True, text=True,
                )
                passed = compared.returncode == 0
                lines = (compared.stdout if passed else compared.stderr).strip().splitlines()
                rows.append(("lm-eval's log-likelihoods beside transformers'", passed, time.time() - begun, (lines or [""])[-1]))
        finally:
            server.terminate()
            server.wait()

    print("\n" + "\n".join(f"{group}: {', '.join(versions)}" for group, (_, versions) in environments.items()) + "\n")
    width = max(len(row[0]) for row in rows)
    for name, passed, seconds, said in rows:
        print(f"| {name:{width}} | {'passed' if passed else 'FAILED'} | {seconds:6.1f} s | {said[:160]}")
    return 0 if all(row[1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
