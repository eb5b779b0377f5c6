//! Bars without a terminal: plain lines, one now and then.

use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::TermLike;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When the last line was printed; `None` makes the next one due.
#[derive(Debug, Clone)]
pub(super) struct Said(Arc<Mutex<Option<Instant>>>);

impl Default for Said {
    fn default() -> Self {
        Said(Arc::new(Mutex::new(Some(Instant::now()))))
    }
}

impl Said {
    pub fn set(&self, at: Option<Instant>) {
        *lock(&self.0) = at;
    }

    fn is_due(&self, every: Duration) -> bool {
        lock(&self.0).is_none_or(|said| said.elapsed() >= every)
    }
}

/// Takes what indicatif draws and prints it as a plain line, at most one every `every`.
#[derive(Debug)]
pub(super) struct Lines<W> {
    every: Duration,
    said: Said,
    /// The text drawn since the last flush.
    out: Mutex<(String, W)>,
}

impl<W: Write> Lines<W> {
    pub fn new(every: Duration, said: &Said, out: W) -> Self {
        Lines { every, said: said.clone(), out: Mutex::new((String::new(), out)) }
    }
}

impl<W: Write + Debug + Send> TermLike for Lines<W> {
    /// Lines are not wrapped.
    fn width(&self) -> u16 {
        u16::MAX
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        lock(&self.out).0.push_str(text);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut out = lock(&self.out);
        let line = std::mem::take(&mut out.0);
        let line = line.trim();
        if !line.is_empty() && self.said.is_due(self.every) {
            self.said.set(Some(Instant::now()));
            let _ = writeln!(out.1, "{line}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

    use super::*;

    /// Shared by a bar and its test.
    #[derive(Debug, Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(every: Duration) -> (ProgressBar, Said, impl Fn() -> String) {
        let (sink, said) = (Sink::default(), Said::default());
        let lines = Lines::new(every, &said, sink.clone());
        let bar = ProgressBar::with_draw_target(Some(3), ProgressDrawTarget::term_like(Box::new(lines)));
        bar.set_style(ProgressStyle::with_template("{msg} {pos}/{len}").unwrap());
        (bar, said, move || String::from_utf8(lock(&sink.0).clone()).unwrap())
    }

    #[test]
    fn a_bar_is_a_plain_line_whenever_one_is_due_and_its_end_is_none() {
        let (bar, _, printed) = printed(Duration::ZERO);
        bar.set_message("reading");
        bar.set_position(2);
        bar.set_message("writing");
        bar.finish_and_clear();
        assert!(
            printed().starts_with("reading 0/3\n") && printed().ends_with("\nwriting 2/3\n"),
            "{:?}",
            printed()
        );
    }

    #[test]
    fn nothing_is_printed_before_the_interval_unless_a_line_is_made_due() {
        let (bar, said, printed) = printed(Duration::from_secs(3600));
        bar.set_message("reading");
        assert_eq!(printed(), "");
        said.set(None);
        bar.set_message("writing");
        bar.set_message("ending");
        assert_eq!(printed(), "writing 0/3\n");
    }
}
