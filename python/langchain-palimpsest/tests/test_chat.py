"""The chat model against a real server."""

import asyncio

import httpx
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_palimpsest import ChatPalimpsest, PalimpsestError, document_uses
from langchain_palimpsest.documents import labels, sent

DOCUMENTS = [
    Document(page_content="The bakery in Elm Street opens at six.", metadata={"title": "Bakery"}),
    Document(page_content="The last tram leaves at a quarter past midnight.", metadata={"source": "Tram"}),
    Document(page_content="The museum has been closed since the flood."),
]
QUESTION = "When does the last tram leave?"


@pytest.fixture
def model(server):
    return ChatPalimpsest(**server, temperature=0, max_tokens=16)


def test_documents_are_spans_whose_attention_and_causes_come_with_the_message(model):
    message = model.invoke(QUESTION, documents=DOCUMENTS, causes=True)
    uses = document_uses(message)
    assert [use.label for use in uses] == ["Bakery", "Tram", "document[2]"]
    assert all(0 < use.mass < 1 and use.density > 0 for use in uses)
    assert all(isinstance(use.log_p_drop, float) for use in uses)
    told = message.response_metadata["palimpsest"]
    spans = [span["label"] for span in told["spans"]]
    assert spans.index("Bakery") < spans.index("Tram") < spans.index("document[2]")
    assert {span["label"] for span in told["causes"]["spans"]} >= {"Bakery", "Tram"}
    assert message.usage_metadata["output_tokens"] >= 1
    assert message.response_metadata["finish_reason"] in ("stop", "length")


def test_the_request_is_that_of_a_plain_client(model, server):
    message = model.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)], documents=DOCUMENTS)
    body = {
        "model": server["model"],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        "documents": [
            {"title": "Bakery", "text": DOCUMENTS[0].page_content},
            {"title": "Tram", "text": DOCUMENTS[1].page_content},
            {"text": DOCUMENTS[2].page_content},
        ],
        "temperature": 0,
        "max_completion_tokens": 16,
        "palimpsest": {"rows": ["answer"]},
    }
    reply = httpx.post(server["base_url"] + "/chat/completions", json=body, timeout=600).json()["choices"][0]
    assert message.content == reply["message"]["content"]
    assert message.response_metadata["palimpsest"] == reply["palimpsest"]


def test_a_stream_adds_up_to_the_message(model):
    whole = model.invoke(QUESTION, documents=DOCUMENTS, causes=True)
    chunks = list(model.stream(QUESTION, documents=DOCUMENTS, causes=True))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert len(chunks) > 2
    # A stream's white space comes as it is generated.
    assert total.content.strip() == whole.content
    assert document_uses(total) == document_uses(whole)
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]


def test_rows_of_each_token_come_with_the_stream(model):
    total = None
    for chunk in model.stream(QUESTION, rows=["each", "answer"]):
        total = chunk if total is None else total + chunk
    whole = model.invoke(QUESTION, rows=["each", "answer"])
    assert total.response_metadata["palimpsest"]["each"] == whole.response_metadata["palimpsest"]["each"]


def test_the_asynchronous_calls_are_the_same(model):
    whole = model.invoke(QUESTION, documents=DOCUMENTS)

    async def both():
        message = await model.ainvoke(QUESTION, documents=DOCUMENTS)
        text = ""
        async for chunk in model.astream(QUESTION, documents=DOCUMENTS):
            text += chunk.content
        return message, text

    message, text = asyncio.run(both())
    assert message.content == whole.content == text.strip()
    assert document_uses(message) == document_uses(whole)


def test_a_knock_out_hides_a_document(model):
    message = model.invoke(QUESTION, documents=DOCUMENTS, knockouts=["messages[0]->Tram"])
    assert [use.mass == 0 for use in document_uses(message)] == [False, True, False]


def test_citations_come_as_annotations_where_the_server_has_them(model):
    try:
        message = model.invoke(QUESTION, documents=DOCUMENTS, cite=True)
    except PalimpsestError as error:
        if error.field and "cite" in error.field or "cite" in str(error):
            pytest.skip("the server has no `cite`")
        raise
    sentences = message.response_metadata["palimpsest"]["cite"]["sentences"]
    assert all({"text", "spans"} <= sentence.keys() for sentence in sentences)
    cited = {(use.label, place) for use in document_uses(message) for place in use.cited}
    for annotation in message.additional_kwargs.get("annotations", []):
        citation = annotation["url_citation"]
        assert (citation["title"], (citation["start_index"], citation["end_index"])) in cited
    total = None
    for chunk in model.stream(QUESTION, documents=DOCUMENTS, cite=True):
        total = chunk if total is None else total + chunk
    assert total.additional_kwargs.get("annotations") == message.additional_kwargs.get("annotations")


def test_parts_of_messages_keep_their_names(model):
    parts = [
        {"type": "text", "text": "The market is on Thursday. ", "span": "old"},
        {"type": "text", "text": "When is the market?", "span": "question"},
    ]
    message = model.invoke([HumanMessage(parts)], rows=["question"])
    told = message.response_metadata["palimpsest"]
    assert told["rows"] == ["question"] and {"old", "question"} <= {span["label"] for span in told["spans"]}


def test_it_is_a_link_of_a_chain(model):
    retriever = RunnableLambda(lambda question: DOCUMENTS)
    chain = RunnableLambda(lambda question: model.invoke(question, documents=retriever.invoke(question)))
    assert len(document_uses(chain.invoke(QUESTION))) == 3
    assert len(document_uses(model.with_documents(DOCUMENTS).invoke(QUESTION))) == 3
    assert [len(document_uses(one)) for one in model.with_documents(DOCUMENTS).batch([QUESTION, "Why?"])] == [3, 3]


def test_functions_can_be_called_and_their_results_read(model):
    @tool
    def departure(line: int) -> str:
        """When a tram leaves."""
        return "0:15"

    message = model.bind_tools([departure], tool_choice="any").invoke(QUESTION, max_tokens=200)
    if message.tool_calls:
        assert message.tool_calls[0]["name"] == "departure"
    call = {"name": "departure", "args": {"line": 3}, "id": "call_1"}
    history = [HumanMessage(QUESTION), AIMessage("", tool_calls=[call]), ToolMessage("0:15", tool_call_id="call_1")]
    assert isinstance(model.bind_tools([departure]).invoke(history).content, str)


def test_what_the_server_refuses_is_an_error_with_its_words_and_field(model):
    with pytest.raises(PalimpsestError, match="no span is called `nobody`") as refused:
        model.invoke(QUESTION, knockouts=["nobody->nowhere"])
    assert (refused.value.status, refused.value.field) == (400, "palimpsest.knockouts")
    with pytest.raises(PalimpsestError, match="no span is called `nobody`"):
        list(model.stream(QUESTION, knockouts=["nobody->nowhere"]))
    with pytest.raises(PalimpsestError, match="start `palimpsest serve x`"):
        ChatPalimpsest(model="x", base_url="http://127.0.0.1:9/v1").invoke("hello")


def test_names_of_documents_are_the_server_s(model):
    documents = [
        Document(page_content="a", metadata={"title": " Twice "}),
        Document(page_content="b", metadata={"title": "Twice"}),
        Document(page_content="c", metadata={"title": "last"}),
        "d",
    ]
    fields = sent(documents)
    assert labels(fields) == ["Twice", "Twice (2)", "document[2]", "document[3]"]
    message = model.invoke("Hello", documents=documents)
    spans = [span["label"] for span in message.response_metadata["palimpsest"]["spans"]]
    assert [name for name in spans if name in labels(fields)] == labels(fields)
