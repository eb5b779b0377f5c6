"""Reads exports with the readers that they are made for.

    pip install inspect-ai==0.3.285 pyarrow datasets
    palimpsest export --format inspect runs/first --out first.json      # likewise parquet, longmemeval
    python tests/reference/check_exports.py --inspect first.json --parquet first.parquet --longmemeval first.jsonl

Each reader is imported only where its file is given, so that the packages can stand in different environments.
"""

import argparse
import json


def inspect(path):
    from inspect_ai.log import EvalLog, read_eval_log, read_eval_log_sample_summaries

    # A field that the schema does not have would be dropped in silence.
    written, log = json.load(open(path)), read_eval_log(path)
    unknown = set(written) - set(EvalLog.model_fields)
    assert not unknown, unknown
    assert len(log.samples) == len(written["samples"]) > 0
    for ours, sample in zip(written["samples"], log.samples):
        unknown = set(ours) - set(type(sample).model_fields)
        assert not unknown, unknown
        answer = ours.get("output", {}).get("completion", "")
        assert sample.output.completion == answer, sample.id
        assert sample.messages[len(ours["input"]) - 1].text == ours["input"][-1]["content"]
        for judge, score in ours.get("scores", {}).items():
            assert sample.scores[judge].value == score["value"]
    summaries = read_eval_log_sample_summaries(path)
    assert len(summaries) == len(log.samples)
    print(f"inspect: {log.status}, {len(log.samples)} samples, {log.eval.task}, {log.eval.model}, scores:")
    for score in log.results.scores:
        why = (score.metadata or {}).get("no_result")
        # Verdicts that are no result have no accuracy for a viewer to show, and say why.
        # Of a condition without samples there is none either.
        accuracy = score.metrics.get("accuracy")
        assert (accuracy is not None) == (why is None) or score.scored_samples == 0, score
        assert (log.eval.metadata.get("no_result") or {}).get(score.name) == why, score
        assert any(score.name in tag for tag in log.eval.tags or []) == (why is not None), log.eval.tags
        value = f"{accuracy.value:.4f}" if accuracy else f"no result: {why or 'no samples'}"
        print(f"  {score.name}: {value} ({score.scored_samples} scored)")


def parquet(path):
    import datasets
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    loaded = datasets.load_dataset("parquet", data_files=path, split="train")
    assert loaded.to_list() == table.to_pylist()
    assert json.loads(table.schema.metadata[b"palimpsest.run"])["identity"]
    print(table.schema.remove_metadata())
    print(f"parquet: {len(loaded)} rows; the first: {loaded[0]}")


def longmemeval(path):
    # As src/evaluation/evaluate_qa.py of LongMemEval reads it: a JSON object a line, two fields.
    lines = [json.loads(line) for line in open(path).readlines()]
    assert all(set(line) == {"question_id", "hypothesis"} for line in lines)
    assert len({line["question_id"] for line in lines}) == len(lines)
    print(f"longmemeval: {len(lines)} hypotheses; the first: {lines[0]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    readers = [inspect, parquet, longmemeval]
    for reader in readers:
        parser.add_argument(f"--{reader.__name__}", metavar="FILE")
    given = parser.parse_args()
    for reader in readers:
        if path := getattr(given, reader.__name__):
            reader(path)
