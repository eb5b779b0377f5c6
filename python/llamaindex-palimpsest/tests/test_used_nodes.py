"""The postprocessor against a real server, alone and in LlamaIndex's query engine."""

import pytest
from llama_index.core import Settings, SummaryIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_palimpsest import KEY, PalimpsestError, UsedNodes

TEXTS = [
    "The bakery in Elm Street opens at six.",
    "The last tram leaves at a quarter past midnight.",
    "The museum has been closed since the flood.",
]
QUESTION = "When does the last tram leave?"
ANSWER = "The last tram leaves at a quarter past midnight."


def nodes():
    return [NodeWithScore(node=TextNode(text=text, id_=str(i)), score=0.5) for i, text in enumerate(TEXTS)]


def test_nodes_get_what_the_answer_loses_without_them_and_come_in_its_order(server):
    found = UsedNodes(**server, max_tokens=16).postprocess_nodes(nodes(), query_str=QUESTION)
    assert sorted(node.node_id for node in found) == ["0", "1", "2"]
    assert [node.score for node in found] == sorted((node.score for node in found), reverse=True)
    for node in found:
        told = node.node.metadata[KEY]
        assert node.score == told["log_p_drop"] and 0 < told["mass"] < 1 and isinstance(told["used"], bool)
        assert KEY not in node.node.get_content(metadata_mode="llm")


def test_a_given_answer_is_measured_by_causes_and_by_attention(server):
    response = Response(ANSWER, source_nodes=nodes())
    found = UsedNodes(**server).measure(response, QUESTION)
    assert response.source_nodes == found and len(found) == 3
    if server["model"] == "smollm2-135m":
        assert found[0].node_id == "1" and found[0].node.metadata[KEY]["used"]
    by_attention = UsedNodes(**server, by="attention").measure(Response(ANSWER, source_nodes=nodes()), QUESTION)
    assert any(node.node.metadata[KEY]["used"] for node in by_attention)
    masses = lambda found: {node.node_id: node.node.metadata[KEY]["mass"] for node in found}  # noqa: E731
    assert masses(found) == masses(by_attention)


def test_only_used_nodes_are_kept_where_that_is_asked_for(server):
    all_of_them = UsedNodes(**server).measure(Response(ANSWER, source_nodes=nodes()), QUESTION)
    kept = UsedNodes(**server, keep="used").measure(Response(ANSWER, source_nodes=nodes()), QUESTION)
    used = [node.node_id for node in all_of_them if node.node.metadata[KEY]["used"]]
    assert [node.node_id for node in kept] == used


def test_it_works_in_a_query_engine(server):
    Settings.llm = MockLLM(max_tokens=8)
    index = SummaryIndex([TextNode(text=text, id_=str(i)) for i, text in enumerate(TEXTS)])
    engine = index.as_query_engine(node_postprocessors=[UsedNodes(**server, max_tokens=8)])
    response = engine.query(QUESTION)
    assert {KEY} <= response.source_nodes[0].node.metadata.keys() and len(response.source_nodes) == 3


def test_what_cannot_be_measured_is_an_error_that_says_so(server):
    assert UsedNodes(**server).postprocess_nodes([], query_str=QUESTION) == []
    with pytest.raises(ValueError, match="needs the question"):
        UsedNodes(**server).postprocess_nodes(nodes())
    with pytest.raises(ValueError, match="no text"):
        UsedNodes(**server).measure(Response("", source_nodes=nodes()), QUESTION)
    empty = [NodeWithScore(node=TextNode(text=" ", id_="0"))]
    with pytest.raises(PalimpsestError, match=r"documents\[0\]"):
        UsedNodes(**server).postprocess_nodes(empty, query_str=QUESTION)
    with pytest.raises(PalimpsestError, match="start `palimpsest serve x`"):
        UsedNodes(model="x", base_url="http://127.0.0.1:9/v1").postprocess_nodes(nodes(), query_str=QUESTION)
