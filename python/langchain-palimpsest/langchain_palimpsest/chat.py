"""The chat model."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, SecretStr

from . import documents as docs


class PalimpsestError(Exception):
    """The server refused the request, or is not there; the message is the server's own."""

    def __init__(self, message: str, status: int | None = None, field: str | None = None):
        super().__init__(message)
        #: The HTTP status, if the server replied.
        self.status = status
        #: The field of the request that is at fault, if the server names one.
        self.field = field


class ChatPalimpsest(BaseChatModel):
    """A model behind `palimpsest serve`.

    Documents are given beside the messages, and each is a span of the prompt: with `causes=True` the reply has the effect of
    each of them, with `rows=["answer"]` what it attended to, with `cite=True` which sentence rests on which. All of it is in
    `message.response_metadata["palimpsest"]`, as docs/serve.md has it; `document_uses(message)` is a row a document.

        model = ChatPalimpsest(model="smollm2-135m", causes=True)
        message = model.invoke("When does the last tram leave?", documents=[Document("The last tram leaves at 0:15.")])
        print(message.content, document_uses(message))
    """

    #: The server, with its `/v1`.
    base_url: str = "http://127.0.0.1:8080/v1"
    #: The model's name, as the server knows it.
    model: str
    #: The server's key, where it has one.
    api_key: SecretStr | None = None
    #: Seconds that a reply may take: causes read the answer once for each document.
    timeout: float = 600.0
    temperature: float | None = None
    #: Most tokens of the answer.
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    #: Documents of every call that brings none of its own.
    documents: list[Document] = Field(default_factory=list)
    #: Whose attention is told: names of spans, `last`, `answer`, `each`.
    rows: list[str] = Field(default_factory=lambda: ["answer"])
    #: The effect of each document on the answer: True, or {"spans", "from", "controls"}.
    causes: bool | dict[str, Any] = False
    #: Which sentence of the answer rests on which document: True, or as `causes`.
    cite: bool | dict[str, Any] = False
    #: Which document the answer rests on, ranked: True, or {"documents", "question", "heads"}.
    score: bool | dict[str, Any] = False
    #: Paths blocked, such as `messages[0]->TITLE`.
    knockouts: list[str] = Field(default_factory=list)
    #: Further fields of `palimpsest`: `heads`, `layers`, `top_keys`, `spans`, `answer`, `token_ids`, `evict`.
    attention: dict[str, Any] = Field(default_factory=dict)
    #: Further fields of the request.
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "palimpsest"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "base_url": self.base_url, "temperature": self.temperature, "seed": self.seed}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "palimpsest"
        params["ls_model_name"] = self.model
        return params

    def with_documents(self, documents: Sequence[Document | str]) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with these documents in every call."""
        return self.bind(documents=list(documents))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with functions that it may call."""
        formatted = [convert_to_openai_tool(tool) for tool in tools]
        if tool_choice in (True, "any"):
            tool_choice = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
            tool_choice = {"type": "function", "function": {"name": tool_choice}}
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=formatted, **kwargs)

    # Requests.

    def _body(self, messages: list[BaseMessage], stop: list[str] | None, stream: bool, **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        """The body of a request, and the names of its documents' spans."""
        given = kwargs.pop("documents", None)
        fields = docs.sent(self.documents if given is None else given)
        sent = [field for message in messages for field in _messages(message)]
        body: dict[str, Any] = {"model": self.model, "messages": sent}
        for name, value in (
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("seed", self.seed),
            ("max_completion_tokens", self.max_tokens),
            ("stop", stop or self.stop),
        ):
            if value is not None:
                body[name] = value
        if fields:
            body["documents"] = fields
        told = dict(self.attention)
        asked = {name: kwargs.pop(name, getattr(self, name)) for name in ("rows", "causes", "cite", "score", "knockouts")}
        told.update({name: value for name, value in asked.items() if value})
        told.update(kwargs.pop("attention", {}))
        if told:
            body["palimpsest"] = told
        if "max_tokens" in kwargs:
            body["max_completion_tokens"] = kwargs.pop("max_tokens")
        if stream:
            body.update(stream=True, stream_options={"include_usage": True})
        # What LangChain tells its own callbacks and no server.
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("ls_")}
        return {**body, **self.extra_body, **kwargs}, docs.labels(fields)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key.get_secret_value()}"} if self.api_key else {}

    def _url(self) -> str:
        return self.base_url.rstrip("/") + "/chat/completions"

    def _unreachable(self, error: httpx.HTTPError) -> PalimpsestError:
        return PalimpsestError(f"{self.base_url} does not answer: {error or type(error).__name__}; start `palimpsest serve {self.model}`, or raise timeout")

    # LangChain's side.

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body, names = self._body(messages, stop, stream=False, **kwargs)
        try:
            reply = httpx.post(self._url(), json=body, headers=self._headers(), timeout=self.timeout)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        _check(reply.status_code, reply.text)
        return _result(reply.json(), names)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body, names = self._body(messages, stop, stream=False, **kwargs)
        try:
            async with httpx.AsyncClient(timeout=self.timeout) as client:
                reply = await client.post(self._url(), json=body, headers=self._headers())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        _check(reply.status_code, reply.text)
        return _result(reply.json(), names)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        body, names = self._body(messages, stop, stream=True, **kwargs)
        try:
            with httpx.stream("POST", self._url(), json=body, headers=self._headers(), timeout=self.timeout) as reply:
                if reply.status_code != 200:
                    _check(reply.status_code, reply.read().decode())
                for line in reply.iter_lines():
                    if (chunk := _chunk(line, names)) is not None:
                        if run_manager:
                            run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                        yield chunk
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        body, names = self._body(messages, stop, stream=True, **kwargs)
        try:
            async with (
                httpx.AsyncClient(timeout=self.timeout) as client,
                client.stream("POST", self._url(), json=body, headers=self._headers()) as reply,
            ):
                if reply.status_code != 200:
                    _check(reply.status_code, (await reply.aread()).decode())
                async for line in reply.aiter_lines():
                    if (chunk := _chunk(line, names)) is not None:
                        if run_manager:
                            await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                        yield chunk
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error


def _messages(message: BaseMessage) -> list[dict[str, Any]]:
    """A message with the fields that the server reads. Parts that have names (`span`) stay apart, where LangChain would join them."""
    converted = convert_to_openai_messages(message)
    fields = []
    for one in converted if isinstance(converted, list) else [converted]:
        kept = {name: one[name] for name in ("role", "content", "tool_call_id") if name in one}
        if one.get("tool_calls"):
            kept["tool_calls"] = one["tool_calls"]
        fields.append(kept)
    if isinstance(message.content, list) and any(isinstance(part, dict) and "span" in part for part in message.content):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in message.content]
        fields[0]["content"] = [{name: part[name] for name in ("type", "text", "span") if name in part} for part in parts]
    return fields


def _check(status: int, text: str) -> None:
    if status == 200:
        return
    try:
        error = json.loads(text)["error"]
        message, field = error["message"], error.get("param")
    except (ValueError, KeyError, TypeError):
        message, field = f"status {status}: {text[:300]}", None
    raise PalimpsestError(message, status, field)


def _usage(usage: dict[str, Any] | None) -> UsageMetadata | None:
    if not usage:
        return None
    prompt, answer = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return UsageMetadata(input_tokens=prompt, output_tokens=answer, total_tokens=usage.get("total_tokens", prompt + answer))


def _kwargs(message: dict[str, Any]) -> dict[str, Any]:
    """Fields of a message beside its text: the thought, and citations."""
    return {name: message[name] for name in ("reasoning_content", "annotations") if message.get(name)}


def _metadata(reply: dict[str, Any], choice: dict[str, Any], names: list[str]) -> dict[str, Any]:
    metadata = {"model_name": reply.get("model"), "model_provider": "palimpsest", "id": reply.get("id"), "finish_reason": choice.get("finish_reason")}
    for field in ("palimpsest", "logprobs"):
        if choice.get(field) is not None:
            metadata[field] = choice[field]
    if names:
        metadata["documents"] = names
    return metadata


def _result(reply: dict[str, Any], names: list[str]) -> ChatResult:
    generations = []
    for choice in reply["choices"]:
        message = choice["message"]
        calls = message.get("tool_calls") or []
        parsed, invalid = [], []
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            try:
                parsed.append({"name": name, "args": json.loads(arguments), "id": call["id"], "type": "tool_call"})
            except ValueError as error:
                invalid.append({"name": name, "args": arguments, "id": call["id"], "error": str(error), "type": "invalid_tool_call"})
        generations.append(
            ChatGeneration(
                message=AIMessage(
                    content=message.get("content") or "",
                    additional_kwargs=_kwargs(message),
                    tool_calls=parsed,
                    invalid_tool_calls=invalid,
                    response_metadata=_metadata(reply, choice, names),
                    usage_metadata=_usage(reply.get("usage")),
                    id=reply.get("id"),
                )
            )
        )
    return ChatResult(generations=generations, llm_output={"model_name": reply.get("model"), "token_usage": reply.get("usage")})


def _chunk(line: str, names: list[str]) -> ChatGenerationChunk | None:
    """A chunk of a stream; None for lines between them."""
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return None
    event = json.loads(data)
    if "error" in event:
        raise PalimpsestError(event["error"].get("message", data))
    usage = _usage(event.get("usage"))
    if not event.get("choices"):
        return ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage)) if usage else None
    choice = event["choices"][0]
    delta = choice.get("delta") or {}
    kwargs = _kwargs(delta)
    metadata: dict[str, Any] = {}
    told = choice.get("palimpsest")
    if told is not None and "progress" in told:
        # How far the prompt is read: no part of the reply.
        told = None
    if choice.get("finish_reason"):
        metadata = _metadata(event, choice, names)
    elif told is not None:
        # Rows of generated tokens, one chunk after the other: lists are joined.
        metadata["palimpsest"] = told
    calls: list[ToolCallChunk] = [
        tool_call_chunk(
            name=call.get("function", {}).get("name"),
            args=call.get("function", {}).get("arguments"),
            id=call.get("id"),
            index=call.get("index"),
        )
        for call in delta.get("tool_calls") or []
    ]
    message = AIMessageChunk(
        content=delta.get("content") or "",
        additional_kwargs=kwargs,
        response_metadata=metadata,
        tool_call_chunks=calls,
        usage_metadata=usage,
        id=event.get("id"),
    )
    finished = {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") else None
    return ChatGenerationChunk(message=message, generation_info=finished)
