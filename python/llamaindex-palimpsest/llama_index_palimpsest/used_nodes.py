"""The postprocessor."""

import json
from typing import Any, Literal

import httpx
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.bridge.pydantic import Field
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

#: Where a node's metadata has what was measured of it.
KEY = "palimpsest"


class PalimpsestError(Exception):
    """The server refused the request, or is not there; the message is the server's own."""


class UsedNodes(BaseNodePostprocessor):
    """Sets which nodes an answer used.

    The nodes are sent to `palimpsest serve` as documents, with the question. The server answers, hides each node in turn and reads the
    answer again: `node.metadata["palimpsest"]` gets `used`, `log_p_drop` (what the answer loses of its log-probability without the
    node, mean per token, in nats), `control` (the same of other stretches as long), `changed`, `mass` and `density` (attention of the
    answer, and that over what uniform attention would give), and a node's score is set to its `log_p_drop`. By attention alone
    (`by="attention"`, one reading) the score is the density.

    A node counts as used by causes where its `log_p_drop` is above `least` and above its control; by attention where its density is
    the largest of all or above 1.

        index.as_query_engine(node_postprocessors=[UsedNodes(model="smollm2-135m", keep="used")])

    measures an answer of the server's model before the query engine's own model answers. `measure(response, question)` measures an answer
    that is there.
    """

    base_url: str = Field(default="http://127.0.0.1:8080/v1", description="The server, with its /v1.")
    model: str = Field(description="The model's name, as the server knows it.")
    api_key: str | None = Field(default=None, exclude=True, description="The server's key, where it has one.")
    by: Literal["causes", "attention"] = Field(default="causes", description="What decides.")
    keep: Literal["all", "used"] = Field(default="all", description="The nodes that are returned.")
    least: float = Field(default=0.05, description="Nats per token that an answer must lose without a node.")
    max_tokens: int = Field(default=64, description="Most tokens of the server's answer.")
    timeout: float = Field(default=600.0, description="Seconds that a reply may take.")

    @classmethod
    def class_name(cls) -> str:
        return "UsedNodes"

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("UsedNodes needs the question; give query_str or query_bundle")
        return self._measured(nodes, query_bundle.query_str, None)

    def measure(self, response: RESPONSE_TYPE, question: str) -> list[NodeWithScore]:
        """Sets which of a response's source nodes its answer used; the answer is the response's text, of whatever model."""
        # A response without text calls itself "None".
        answer = str(response)
        if not answer.strip() or getattr(response, "response", answer) in (None, ""):
            raise ValueError("the response has no text to measure")
        nodes = self._measured(response.source_nodes, question, answer)
        response.source_nodes = nodes
        return nodes

    def _measured(self, nodes: list[NodeWithScore], question: str, answer: str | None) -> list[NodeWithScore]:
        if not nodes:
            return nodes
        reply = self._ask([node.node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes], question, answer)
        told = reply["palimpsest"]
        spans = [span["label"] for span in told["spans"]]
        row = told["rows"].index("answer")
        causes = {cause["label"]: cause for cause in (told.get("causes") or {}).get("spans", [])}

        def mean(tensor: str, label: str) -> float:
            span = spans.index(label)
            return sum(layer[row][span] for layer in told[tensor]) / len(told[tensor])

        measured = []
        for i, node in enumerate(nodes):
            label = f"document[{i}]"
            mass, share = mean("mass", label), mean("share", label)
            values: dict[str, Any] = {"mass": mass, "density": mass / share if share > 0 else 0.0}
            if self.by == "causes":
                cause = causes[label]
                values.update({name: cause[name] for name in ("log_p_drop", "control", "changed")})
            measured.append(values)
        most = max(values["density"] for values in measured)
        for node, values in zip(nodes, measured):
            if self.by == "causes":
                node.score = values["log_p_drop"]
                values["used"] = values["log_p_drop"] > max(self.least, values["control"] or 0.0)
            else:
                node.score = values["density"]
                values["used"] = values["density"] == most or values["density"] > 1
            node.node.metadata[KEY] = values
            # For people and programs, no part of a prompt.
            for excluded in (node.node.excluded_llm_metadata_keys, node.node.excluded_embed_metadata_keys):
                if KEY not in excluded:
                    excluded.append(KEY)
        if self.keep == "used":
            nodes = [node for node in nodes if node.node.metadata[KEY]["used"]]
        return sorted(nodes, key=lambda node: node.score, reverse=True)

    def _ask(self, texts: list[str], question: str, answer: str | None) -> dict[str, Any]:
        """The reply's only choice. Documents have no title, so that their names are `document[i]`."""
        told: dict[str, Any] = {"rows": ["answer"]}
        if self.by == "causes":
            told["causes"] = True
        if answer is not None:
            told["answer"] = answer
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "documents": [{"text": text} for text in texts],
            "temperature": 0,
            "palimpsest": told,
        }
        if answer is None:
            body["max_completion_tokens"] = self.max_tokens
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = self.base_url.rstrip("/") + "/chat/completions"
        try:
            reply = httpx.post(url, json=body, headers=headers, timeout=self.timeout)
        except httpx.HTTPError as error:
            message = f"{self.base_url} does not answer: {error}; start `palimpsest serve {self.model}`, or raise timeout"
            raise PalimpsestError(message) from error
        if reply.status_code != 200:
            try:
                raise PalimpsestError(reply.json()["error"]["message"])
            except (json.JSONDecodeError, KeyError, TypeError):
                raise PalimpsestError(f"status {reply.status_code}: {reply.text[:300]}") from None
        return reply.json()["choices"][0]
