//! Stub for builds without the feature `parquet`.

use std::io;

use crate::benchmarks::shape::Node;

pub(super) const MAGIC: &str = "PAR1";

pub(super) fn rows(_: Vec<u8>) -> io::Result<std::iter::Empty<io::Result<Node>>> {
    let what = "this build of palimpsest reads no Parquet; build it with the cargo feature `parquet`, which is on by default, or write \
                the file as JSONL";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}
