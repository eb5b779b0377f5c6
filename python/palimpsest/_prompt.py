"""Prompts: a text or a conversation as the model reads it."""

from __future__ import annotations

from . import _html, _native


class Prompt:
    """A text or a conversation as the model reads it, with spans that were checked to be what they name. `model.prompt` makes one.

    - `text`: the model's input, after the chat template;
    - `tokens`: token ids; `characters`: of each token its characters in `text`, half-open;
    - `spans`: label to (first token, one past the last); `names`: these, and messages, which rows and knock-outs may name, too.

    >>> prompt = model.prompt("One. Two.", spans={"first": "One."})
    >>> prompt.spans
    {'first': (0, 2)}
    """

    def __init__(self, native: _native.Prompt) -> None:
        self._native = native
        self.text = native.text
        self.tokens = native.tokens
        self.characters = native.characters
        self.spans = {label: (start, end) for label, start, end in native.spans}
        self.names = {label: (start, end) for label, start, end in native.names}

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Prompt({len(self.tokens)} tokens, spans {self.spans})"

    def _repr_html_(self) -> str:
        ranges = [(label, start, end) for label, (start, end) in self.spans.items()]
        return _html.shaded_text(self.text, self.characters, ranges, None)
