//! Lines on standard error that nobody waits for. A thread writes them, so that a reader who stops reading stops nothing else.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that may wait. Further ones are dropped.
const WAITING: usize = 1024;

/// Time for waiting lines before an exit.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

static STDERR: LazyLock<Option<Writer>> = LazyLock::new(|| Writer::new(io::stderr()));

/// Like [`super::note`], without waiting for the reader. To be followed by [`flush_notes`] before an exit.
pub fn note_later(message: impl Display) {
    match &*STDERR {
        Some(writer) => writer.add(format!("{message}\n")),
        None => super::note(message),
    }
}

/// Waits until all lines are written, at most for half a second.
pub fn flush_notes() {
    STDERR.iter().for_each(|writer| writer.flush(FLUSH_TIMEOUT));
}

enum Message {
    Line(String),
    /// Answered once the lines before it are written.
    Flush(SyncSender<()>),
}

struct Writer {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicUsize>,
}

impl Writer {
    /// `None` without a thread.
    fn new(out: impl Write + Send + 'static) -> Option<Self> {
        let (queue, messages) = sync_channel(WAITING);
        let dropped = Arc::<AtomicUsize>::default();
        let own = Arc::clone(&dropped);
        let write = move || write(&messages, &own, out);
        thread::Builder::new().name("notes".to_owned()).spawn(write).ok()?;
        Some(Writer { queue, dropped })
    }

    fn add(&self, line: String) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = back;
            thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Errors are ignored: a closed stderr must not stop a job.
fn write(messages: &Receiver<Message>, dropped: &AtomicUsize, mut out: impl Write) {
    for message in messages {
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ =
                writeln!(out, "note: {lost} lines were dropped, since standard error was not read in time");
        }
        match message {
            Message::Line(line) => drop(out.write_all(line.as_bytes())),
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Waits in each write until the other end of the channel takes it.
    struct Pipe(SyncSender<String>, Sender<()>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.1.send(());
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_unread_stderr_stops_nobody_and_its_reader_is_told_of_dropped_lines() {
        let ((unread, reader), (begun, begins)) = (sync_channel(0), channel());
        let writer = Writer::new(Pipe(unread, begun)).unwrap();
        writer.add("first\n".to_owned());
        begins.recv().unwrap();
        // The writer holds the first line, and the queue is empty.
        (0..WAITING + 7).for_each(|number| writer.add(format!("{number}\n")));
        writer.flush(Duration::ZERO);
        let read = thread::spawn(move || reader.iter().collect::<String>());
        writer.flush(Duration::from_secs(60));
        drop(writer);
        let text = read.join().unwrap();
        assert!(text.starts_with("first\nnote: 7 lines were dropped, since"), "{text}");
        assert!(text.ends_with(&format!("\n{}\n", WAITING - 1)), "{text}");
        assert_eq!(text.lines().count(), 1 + 1 + WAITING);
    }
}
