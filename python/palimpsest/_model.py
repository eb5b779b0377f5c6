"""Models and prompts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from . import _native
from ._extras import progress
from ._prompt import Prompt
from ._results import Answer, Causes, Heads
from ._trace import Trace

Place = str | tuple[int, int] | tuple[int, int, int]
Target = str | int | tuple[str | int, str | int] | Mapping[str, Any]

_ROWS = ("query", "last")


class Model:
    """An open-weight model on this machine. `Model.load` opens one; it serves one call at a time, others wait in a queue."""

    def __init__(self, native: _native.Model, source: str) -> None:
        self._native = native
        self.source = source
        """The name or path that it was loaded by."""

    @classmethod
    def load(
        cls,
        name_or_path: str | os.PathLike[str],
        device: str = "cpu",
        dtype: str | None = None,
        context: int | None = None,
    ) -> Model:
        """Opens a model: a name of `palimpsest model list` or owner/name of the Hugging Face hub
        (both fetched if need be), a Hugging Face folder, or a .gguf file.

        `device` is cpu, cuda, cuda:N or metal; `dtype` f32, bf16 or f16 (f32 on the CPU, bf16 elsewhere); `context` the most tokens of
        prompt and answer together (the model's own, at most 32,768).

        >>> Model.load("smollm2-135m").layers
        30
        """
        source = os.fspath(name_or_path)
        return cls(_native.Model.load(source, device, dtype, context), source)

    @property
    def name(self) -> str:
        """The manifest's name, or that of the file or folder."""
        return self._native.name

    @property
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer."""
        return self._native.digest

    @property
    def dtype(self) -> str:
        """The dtype that it runs in."""
        return self._native.dtype

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return self._native.device

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self._native.layers

    @property
    def head_count(self) -> int:
        """Query heads of a layer with softmax attention."""
        return self._native.heads

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._native.context

    def prompt(
        self,
        messages_or_text: str | Sequence[Mapping[str, Any]],
        spans: Mapping[str, Place] | None = None,
    ) -> Prompt:
        """The tokens of a text as it is, or of chat messages by the model's template, with named spans.

        `spans` has by label a part's text, which must occur exactly once; or its characters, `(start, end)`, half-open, of the text or of
        the only message; or `(message, start, end)`. Where none is given, messages are spans by themselves: `messages[0]`, ... Anything
        that is not what it names raises `Error`.

        >>> prompt = model.prompt([{"role": "user", "content": "I moved to Gijón. Where do I live?"}], spans={"fact": "I moved to Gijón."})
        >>> list(prompt.spans), list(prompt.names)
        (['fact'], ['messages[0]', 'fact'])
        """
        if not isinstance(messages_or_text, str):
            messages_or_text = [dict(message) for message in messages_or_text]
        native = self._native.prompt(json.dumps(messages_or_text), json.dumps(dict(spans or {})))
        return Prompt(native)

    def trace(
        self,
        prompt: Prompt,
        rows: Sequence[str] = _ROWS,
        layers: Sequence[int] | None = None,
        heads: Literal["all", "mean"] | Sequence[int] = "all",
        measures: Sequence[str] = ("mass", "share"),
        top_keys: int = 0,
        targets: Sequence[Target] = (),
        knockouts: Sequence[str] = (),
        evict: str | None = None,
        selected: bool = False,
    ) -> Trace:
        """Reads a prompt once and measures whose attention goes where.

        - `rows` attend: spans, messages, or `last`, the last position; without a span `query` the default is `last` alone.
        - `layers`, `heads` keep some of them; `heads="mean"` keeps their mean.
        - `measures`: mass, share, value_norm, output_norm ([layers, heads, rows, spans]; share [layers, rows, spans]).
        - `top_keys=k`: the k largest keys of each row position and head.
        - `targets`: logits to take apart into heads and spans: a token (text or id) at the last position, a pair (token, against) for a
          difference, or {"position", "token", "against"}.
        - `knockouts`: paths to block, such as `"query->old"`: all rows from the first of `query` on do not see `old`; `"query->old@8..16"`
          at layers 8 to 15 alone.
        - `evict`: keys of the text before the question (the span `query`, else what follows the last span) that the question does not see:
          `"snapkv:0.25"`, as of `palimpsest run --evict`; `Trace.kept` has what was kept. Not together with knock-outs, largest keys,
          targets and lengths.
        - `selected`: also `selected` and `forgone` [layers, rows, spans]: the share of the span's tokens that the layer's sliding window
          left to the row, and the mass that the row would pay to the others over all keys. It keeps the windowed layers' keys, half of
          what whole caches of them take, beside the memory planned at opening.

        >>> model.trace(prompt, rows=["query"], heads="mean", knockouts=["query->old"]).to_numpy()[:, 0, 0, 0].max()
        np.float32(0.0)
        >>> list(model.trace(prompt, evict="streaming:0.5").kept)
        ['old', 'new']
        """
        rows = self._rows(prompt, rows)
        asked = _asked(rows, measures, top_keys, targets, knockouts, evict) | {"selected": selected}
        if not prompt.spans:
            raise _native.Error("prompt: no span is named; name parts of the text with spans={label: text}")
        with progress(len(prompt), "prefill", "tokens") as told:
            arrays, metadata = self._native.trace(prompt._native, json.dumps(asked), told)
        trace = Trace(arrays, metadata, prompt)
        return trace if layers is None and isinstance(heads, str) and heads == "all" else trace._sliced(layers, heads)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = 64,
        rows: Sequence[str] = ("answer",),
        knockouts: Sequence[str] = (),
        evict: str | None = None,
        selected: bool = False,
        **sampling: float,
    ) -> Answer:
        """Generates an answer, greedily unless `temperature`, `top_p` and `seed` say otherwise, and measures it.

        `rows` may be `answer` (the mean over the generated tokens), `each` (each of them: `mass_each`), `last`, and spans. Masses are
        [layers, heads, rows, spans] of the prompt's spans. `knockouts`, `evict` and `selected` are those of `trace`.

        >>> model.generate(prompt, max_tokens=3, rows=["answer", "each"]).trace.to_numpy("mass_each").shape
        (30, 9, 3, 3)
        """
        unknown = sorted(set(sampling) - {"temperature", "top_p", "seed"})
        if unknown:
            raise TypeError(f"generate has no setting {', '.join(unknown)}; it has temperature, top_p, seed")
        asked = _asked(rows, None, 0, (), knockouts, evict) | {"selected": selected}
        asked["generate"] = {"max_tokens": max_tokens, **sampling}
        with progress(len(prompt) + max_tokens, "answer", "tokens") as told:
            (text, thought, stop, tokens, thought_tokens), (arrays, metadata) = self._native.generate(
                prompt._native, json.dumps(asked), told
            )
        return Answer(text, thought, stop, tokens, thought_tokens, Trace(arrays, metadata, prompt))

    def causes(
        self,
        prompt: Prompt,
        answer: Answer | str | Sequence[int] | None = None,
        how: Literal["block", "remove", "replace", "contextcite"] = "block",
        windows: int | None = None,
        controls: Literal["evidence", "anywhere"] | int | None = "evidence",
    ) -> Causes:
        """Measures the effect on an answer of each span before the question (the span `query`, else the text after the last span).

        - `answer`: an `Answer`, a text, or token ids; `None` generates up to 64 tokens greedily.
        - `how`: `block` hides a span's keys from the question on; `remove` cuts it out; `replace` puts neutral text of equal length there;
          `contextcite` fits a sparse linear function to 32 random subsets (Cohen-Wang et al. 2024).
        - `windows=n` blocks n layers at a time.
        - `controls`, of `block`: 12 random stretches that touch no span (`evidence`), or that lie anywhere before the question
          (`anywhere`); a number for so many of the first kind; `None` for none.

        Drops are in nats per token. The measures are those of `palimpsest causes`.

        >>> model.causes(prompt, answer="On Sunday.", how="remove").columns["changed"].dtype
        dtype('bool')
        """
        thought = 0
        given = self.generate(prompt, rows=()) if answer is None else answer
        if isinstance(given, Answer):
            tokens, thought = given.tokens, given.thought_tokens
        elif isinstance(given, str):
            tokens = self._native.encode(given)
        else:
            tokens = [int(token) for token in given]
        asked = {
            "answer": tokens,
            "thought": thought,
            "how": how,
            "windows": windows,
            "controls": "none" if controls is None else str(controls),
        }
        with progress(None, "causes", "readings") as told:
            found = self._native.causes(prompt._native, json.dumps(asked), told)
        return Causes(json.loads(found), how, prompt)

    def heads(self, needles: int | Sequence[Mapping[str, str]] | None = None) -> Heads:
        """Scores heads by needles planted in the built-in sample, as `palimpsest heads` does: [layers, heads].

        `needles`: the first so many of the built-in ones (`None`: all), or your own: {"sentence", "answer", "question"}, the answer a part
        of the sentence.

        >>> model.heads(needles=1).qr.shape
        (30, 9)
        """
        asked = needles if needles is None or isinstance(needles, int) else [dict(needle) for needle in needles]
        with progress(None, "needles", "needles") as told:
            return Heads(self._native.score_heads(json.dumps(asked), told))

    def decode(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token.

        >>> "".join(model.decode(prompt.tokens)) == prompt.text
        True
        """
        return self._native.decode([int(token) for token in tokens])

    def _rows(self, prompt: Prompt, rows: Sequence[str]) -> Sequence[str]:
        if isinstance(rows, str):
            raise TypeError(f"rows is the text {rows!r}; give a list of labels, such as [{rows!r}]")
        return ("last",) if rows is _ROWS and "query" not in prompt.names else rows

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.layers} layers, {self.dtype} on {self.device}, context {self.context})"


def _asked(
    rows: Sequence[str],
    measures: Sequence[str] | None,
    top_keys: int,
    targets: Sequence[Target],
    knockouts: Sequence[str],
    evict: str | None,
) -> dict[str, Any]:
    for name, value in (("rows", rows), ("measures", measures), ("targets", targets), ("knockouts", knockouts)):
        if isinstance(value, str):
            raise TypeError(f"{name} is the text {value!r}; give a list, such as [{value!r}]")

    def target(given: Target) -> dict[str, Any]:
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, tuple):
            token, against = given
            return {"token": token, "against": against}
        return {"token": given}

    return {
        "rows": list(rows),
        "measures": None if measures is None else list(measures),
        "top_keys": top_keys,
        "targets": [target(given) for given in targets],
        "knockouts": list(knockouts),
        "evict": evict,
    }
