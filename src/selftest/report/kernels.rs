//! Attention's kernels side by side, as a table and in words.

use super::super::kernels::{KernelTrial, Measure, Timed};
use super::{Report, listed, seconds};
use crate::ground::table::columns;
use crate::progress::grouped;
use palimpsest_core::attention::AttentionKernel;

impl Report {
    /// Empty where there is one kernel.
    pub(super) fn kernels_text(&self) -> String {
        let Some(times) = &self.attention_kernels else { return String::new() };
        let mut text =
            "\nAttention alone by each kernel: keys and values at hand, no linear maps.\n\n".to_owned();
        let mut header = vec!["LAYER".to_owned(), "TOKENS".to_owned(), "KERNEL".to_owned()];
        header.extend(Timed::MEASURES.map(|(name, _)| name.to_uppercase()));
        let mut rows = vec![header];
        for trial in &times.trials {
            for timed in &trial.kernels {
                let name = format!("{}, {}", trial.layer, trial.of);
                let mut row = vec![name, grouped(trial.tokens as u64), timed.kernel.to_string()];
                row.extend(Timed::MEASURES.map(|(_, of)| seconds(of(timed))));
                rows.push(row);
            }
        }
        text += &columns(&rows);
        for note in &times.notes {
            text += &format!("{note}\n");
        }
        if self.says_nothing_of_speed() {
            text += "These times show that the kernels run. They say nothing of which is faster.\n";
        }
        for (i, trial) in times.trials.iter().enumerate() {
            let longer =
                times.trials.get(i + 1).is_some_and(|next| (next.layer, next.of) == (trial.layer, trial.of));
            if !longer {
                text += &self.in_words(trial);
            }
        }
        text
    }

    /// Whether widths were reduced, or the device only pretends to be a card.
    fn says_nothing_of_speed(&self) -> bool {
        let card = self.devices.first().and_then(|facts| facts.card.as_deref());
        self.quick || card.is_some_and(|card| card.contains("no GPU"))
    }

    /// Which kernel is the fastest, and what `auto` takes.
    fn in_words(&self, trial: &KernelTrial) -> String {
        let auto = trial.auto;
        let mut text = format!("{}, {}: auto takes {}", trial.layer, trial.of, auto.forward);
        if auto.sums != auto.forward {
            text += &format!(", and {} for the sums of recorded rows", auto.sums);
        }
        if trial.kernels.len() > 1 && !self.says_nothing_of_speed() {
            text += &format!(". Over {} tokens ", grouped(trial.tokens as u64));
            let fastest = |(name, of): (&'static str, Measure)| Some((name, trial.fastest(of)?));
            let fastest: Vec<(&str, AttentionKernel)> =
                Timed::MEASURES.into_iter().filter_map(fastest).collect();
            let mut kernels: Vec<AttentionKernel> = fastest.iter().map(|(_, kernel)| *kernel).collect();
            kernels.sort_unstable();
            kernels.dedup();
            text += &match kernels.as_slice() {
                [one] => format!("{one} is the fastest in everything"),
                several => {
                    let of = |kernel: &AttentionKernel| {
                        let names =
                            fastest.iter().filter(|(_, fastest)| fastest == kernel).map(|(name, _)| *name);
                        format!("{kernel} is the fastest for {}", listed(names))
                    };
                    several.iter().map(of).collect::<Vec<_>>().join("; ")
                }
            };
            let prefill = trial.fastest(Timed::MEASURES[0].1).filter(|kernel| *kernel != auto.forward);
            if let Some(kernel) = prefill {
                text += &format!(". --attention-kernel {kernel} is the faster choice for its prefill");
            }
        }
        text + ".\n"
    }
}
