"""Parquet files as pyarrow writes them, for the reader's tests: tests/fixtures/memrewardbench/.

usage: python tests/reference/memrewardbench_fixtures.py   (pyarrow 21 or newer)
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent.parent / "fixtures/memrewardbench"
ROWS = [
    {
        "index": i,
        "task": "Multi-turn_Dialogue_Understanding",
        "subtask": subtask,
        "ctx_length": length,
        "question": f"Frage {i}: wo wohnt Zoë?",
        "chosen": f"memory {i}: Zoë wohnt in Köln.",
        "rejected": f"memory {i}: 不明",
    }
    for i, (subtask, length) in enumerate([("Mem0-Out", "8k"), ("A-Mem-Mem", "128k"), ("Mem0-Out", "8k")])
]


def main() -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(ROWS)
    for codec in ["snappy", "none", "zstd", "gzip"]:
        pq.write_table(table, HERE / f"{codec}.parquet", compression=codec)
    large = table.cast(pa.schema([(f.name, pa.large_string() if f.type == pa.string() else f.type) for f in table.schema]))
    pq.write_table(large, HERE / "large-strings.parquet", data_page_version="2.0", row_group_size=2)
    pq.write_table(table.drop_columns(["rejected"]), HERE / "no-rejected.parquet")
    lists = [[{"role": "assistant", "content": row["chosen"]}] for row in ROWS]
    at = table.schema.get_field_index("chosen")
    pq.write_table(table.set_column(at, "chosen", pa.array(lists)), HERE / "chosen-is-a-list.parquet")
    pq.write_table(table.set_column(at, "chosen", pa.array([1, 2, 3])), HERE / "chosen-is-a-number.parquet")
    missing = pa.array(["a", None, "c"])
    pq.write_table(table.set_column(at, "chosen", missing), HERE / "chosen-is-missing-once.parquet")


if __name__ == "__main__":
    main()
