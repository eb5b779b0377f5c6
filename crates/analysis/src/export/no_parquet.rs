//! Stub for builds without the feature `parquet`: returns an error.

use std::io::Write;

use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::store::RunFolder;

pub fn write(_: impl Write + Send, _: &RunFolder, _: &[String], _: Option<&Judged>) -> anyhow::Result<usize> {
    anyhow::bail!(
        "this build of palimpsest writes no Parquet; build it with the cargo feature `parquet`, which is on by default"
    )
}
