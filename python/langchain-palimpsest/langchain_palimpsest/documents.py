"""Documents as the server takes them, and what a reply says of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage

# Names that a span of the server's own has.
_RESERVED = ("last", "answer", "each", "generated", "prompt")


def sent(documents: Sequence[Document | str]) -> list[dict[str, str]]:
    """The field `documents` of a request: the title is `metadata["title"]`, else `metadata["source"]`."""
    fields = []
    for one in documents:
        if isinstance(one, str):
            one = Document(page_content=one)
        title = one.metadata.get("title") or one.metadata.get("source")
        field = {"text": one.page_content}
        if title:
            field["title"] = str(title)
        fields.append(field)
    return fields


def labels(fields: Sequence[dict[str, str]]) -> list[str]:
    """The name of each document's span: its title, `document[i]` without one, `title (2)` for a second of that title."""

    def usable(title: str) -> bool:
        own = title.startswith(("template[", "messages[")) or title in _RESERVED
        return 1 <= len(title.encode()) <= 256 and not own

    titles = [field.get("title", "").strip() for field in fields]
    names = []
    for i, title in enumerate(titles):
        name = title if usable(title) else f"document[{i}]"
        same = sum(other == name for other in titles[:i])
        names.append(f"{name} ({same + 1})" if same else name)
    return names


@dataclass(frozen=True)
class DocumentUse:
    """What a reply says of a document. A value that was not asked for is None."""

    #: The name of its span.
    label: str
    #: Attention of the answer to it, mean over layers and heads, from 0 to 1.
    mass: float | None
    #: The mass over what uniform attention would give it: above 1 is more than that.
    density: float | None
    #: What the answer loses of its log-probability without it, mean per token, in nats.
    log_p_drop: float | None
    #: The same of other stretches of the prompt as long as a document.
    control: float | None
    #: Some token of the answer is no longer, or only now, the likeliest.
    changed: bool | None
    #: Characters (start, end) of the sentences that cite it.
    cited: tuple[tuple[int, int], ...]


def document_uses(message: BaseMessage) -> list[DocumentUse]:
    """What the reply says of each document, in the order in which they were sent."""
    told: dict[str, Any] = message.response_metadata.get("palimpsest") or {}
    names: list[str] = message.response_metadata.get("documents") or []
    spans = [span["label"] for span in told.get("spans", [])]
    rows = told.get("rows", [])
    causes = {cause["label"]: cause for cause in (told.get("causes") or {}).get("spans", [])}
    annotations = message.additional_kwargs.get("annotations") or []

    def mean(tensor: str, label: str) -> float | None:
        """Over layers, and heads where there are such; of [layers (, heads), rows, spans]."""
        if tensor not in told or "answer" not in rows or label not in spans:
            return None
        row, span = rows.index("answer"), spans.index(label)
        values = []
        for layer in told[tensor]:
            heads = [layer] if not isinstance(layer[0][0], list) else layer
            values.extend(head[row][span] for head in heads)
        return sum(values) / len(values)

    uses = []
    for label in names:
        mass, share = mean("mass", label), mean("share", label)
        cause = causes.get(label, {})
        cited = [
            (one["url_citation"]["start_index"], one["url_citation"]["end_index"])
            for one in annotations
            if one.get("type") == "url_citation" and one["url_citation"]["title"] == label
        ]
        uses.append(
            DocumentUse(
                label=label,
                mass=mass,
                density=mass / share if mass is not None and share else None,
                log_p_drop=cause.get("log_p_drop"),
                control=cause.get("control"),
                changed=cause.get("changed"),
                cited=tuple(dict.fromkeys(cited)),
            )
        )
    return uses
