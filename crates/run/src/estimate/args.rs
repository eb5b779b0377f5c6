use crate::cards::NamedCard;
use crate::runs::setup::wrong;
use palimpsest_data::benchmarks::PAPER_ENCODING;

/// Flags of the estimate.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Estimate")]
pub struct EstimateArgs {
    /// Estimate the run's tokens, hours and bytes from a measurement of about a minute, and run nothing; with --card, measure nothing either
    #[arg(long)]
    pub estimate: bool,
    /// --estimate: a card that need not be here, by its published rates; the model's config is enough: a100-40, a100-80, h100, h200, l40s,
    /// rtx-4090
    #[arg(long, value_name = "NAME", requires = "estimate", conflicts_with = "device")]
    pub card: Option<NamedCard>,
    /// --estimate: seconds of prefill to measure
    #[arg(long, default_value_t = 45.0, value_name = "SECONDS", requires = "estimate")]
    pub estimate_seconds: f64,
    /// --estimate of an endpoint: the encoding to count in, o200k_base or cl100k_base
    #[arg(long, default_value = PAPER_ENCODING, value_name = "ENCODING", requires = "estimate")]
    pub estimate_tokenizer: String,
    /// --estimate of an endpoint: price of a million prompt tokens, in any currency
    #[arg(long, value_name = "PRICE", requires = "estimate")]
    pub price_in: Option<f64>,
    /// --estimate of an endpoint: price of a million generated tokens
    #[arg(long, value_name = "PRICE", requires = "estimate")]
    pub price_out: Option<f64>,
}

impl EstimateArgs {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let prices = [("--price-in", self.price_in), ("--price-out", self.price_out)];
        let seconds = ("--estimate-seconds", Some(self.estimate_seconds));
        for (flag, value) in prices.into_iter().chain([seconds]) {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return wrong(format!("{flag} {value} is not 0 or more"));
            }
        }
        if self.price_in.is_some() != self.price_out.is_some() {
            return wrong("give both --price-in and --price-out, or neither");
        }
        Ok(())
    }
}
