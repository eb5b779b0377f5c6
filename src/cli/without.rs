//! Stubs for commands whose features are disabled; they name the missing feature.

use std::ffi::OsString;

/// Not in this build of palimpsest.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whatever the command takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

#[cfg(not(feature = "figures"))]
pub mod figures {
    use std::path::Path;

    use crate::benchmarks::dataset::Dataset;
    use crate::case::lengths::SplitLengths;
    use crate::dose::Doses;
    use crate::ground_truth::GroundTruth;
    use crate::ground_truth::table::Row;

    pub use super::Args;

    pub fn run(_: Args) -> anyhow::Result<()> {
        anyhow::bail!(
            "this build of palimpsest draws no figures; build it with the cargo feature `figures`, which is on by default"
        );
    }

    pub fn distribution(_: &Dataset, _: &str, _: &Path) -> anyhow::Result<()> {
        run(Args { _rest: Vec::new() })
    }

    pub fn placement(_: &[(String, Vec<SplitLengths>)], _: &Path) -> anyhow::Result<()> {
        run(Args { _rest: Vec::new() })
    }

    pub fn doses(_: &Doses, _: &Path) -> anyhow::Result<()> {
        run(Args { _rest: Vec::new() })
    }

    pub fn ground_truth(_: &GroundTruth, _: &[Row], _: &Path) -> anyhow::Result<()> {
        run(Args { _rest: Vec::new() })
    }
}

pub mod report {
    #[cfg(feature = "serve")]
    use std::path::Path;

    pub use super::Args;

    const NEEDED: &str = "this build of palimpsest makes no overview; build it with the cargo features `figures` and `serve`, which are on by default";

    pub fn run(_: Args) -> anyhow::Result<()> {
        anyhow::bail!(NEEDED)
    }

    #[cfg(feature = "serve")]
    pub fn overview(_: &Path, _: Option<&str>) -> anyhow::Result<String> {
        anyhow::bail!(NEEDED)
    }
}

#[cfg(not(feature = "serve"))]
pub mod serve {
    pub use super::Args;

    pub fn run(_: Args) -> anyhow::Result<()> {
        anyhow::bail!(
            "this build of palimpsest has no server; build it with the cargo feature `serve`, which is on by default"
        );
    }
}
