//! Progress bars on stderr; none when it is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `length` units named `unit`, with rate and time left.
pub fn bar(length: u64, unit: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(&format!("{{bar:40}} {{pos}}/{{len}} {unit} {{per_sec}} {{eta}} left"));
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
