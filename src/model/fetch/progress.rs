//! The bars and notes of a fetch, on stderr. Bars draw nothing where stderr is not a terminal; notes are single lines.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over a known number of bytes.
pub(super) fn bytes(total: u64, message: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(message.to_string());
    let template = "{msg} [{wide_bar:.cyan/blue}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A spinner with the elapsed time, for work whose length is unknown.
pub(super) fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_string());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A line for the person who waits.
pub(super) fn note(message: &str) {
    eprintln!("{message}");
}
