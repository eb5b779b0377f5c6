//! `palimpsest dose`: effects of each factor of dose runs, as text, CSV and figures.

use std::path::{Path, PathBuf};

use crate::dose::{DoseOptions, Doses, table, words};

const EXAMPLES: &str = "\
Examples:
  palimpsest dose runs/slots
  palimpsest dose runs/slots --csv slots.csv
  palimpsest dose runs/slots --factor distance --gated
  palimpsest dose runs/slots --csv - | head
  palimpsest dose runs/slots --out slots
  palimpsest dose runs/slots-smollm2 runs/slots-gemma --out both";

/// The update effect by factor, within items, for runs of data made by `palimpsest build dose`.
///
/// An item's update effect u is the mean contrast (log p of the current value less log p of the stale one) of an update and of its twin with
/// the values swapped; half their difference is the value prior b. Printed for each factor: u by level, and the trends of mass, density and
/// value norms of attention and of the effects of hidden and removed sessions. Slopes and Spearman's correlations are within items;
/// intervals are over items. Of several runs, each has a text of its own, and one figure has a line per run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run folders, of data made by `palimpsest build dose`
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Write a CSV file with a row per item and level, and per run of several; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the text, the table and the figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only this factor; a grid is named by both, as in `depth_old*depth_new` [default: all that are varied]
    #[arg(long, value_name = "NAME")]
    factor: Option<String>,
    /// Only items that are right with the old session alone and with the new one alone, in both orders
    #[arg(long)]
    gated: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { runs, csv, out, factor, gated } = args;
    let options = DoseOptions { factor, gated };
    let all: Vec<Doses> = runs.iter().map(|dir| Doses::open(dir, &options)).collect::<Result<_, _>>()?;
    let rows = table::csv(&all);
    let texts: Vec<String> = all.iter().map(words::text).collect();
    let text = texts.join("\n");
    if csv.as_deref() == Some(Path::new("-")) {
        super::write_out(&rows)?;
    } else {
        super::write_out(text.as_bytes())?;
    }
    if let Some(path) = csv.filter(|path| path != Path::new("-")) {
        super::save(&path, &rows)?;
    }
    if let Some(folder) = out {
        super::figures::doses(&all, &folder)?;
        super::save(&folder.join("dose.csv"), &rows)?;
        super::save(&folder.join("dose.txt"), text)?;
    }
    Ok(())
}
