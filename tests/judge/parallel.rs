//! Parallel judge calls, and a judge with unreadable replies.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palimpsest::judge::Conduct;

use super::*;

/// Judges by the prompt, slower for some cases, and counts concurrent calls.
struct Line<'a> {
    /// Current and maximum number of concurrent calls.
    busy: &'a (AtomicUsize, AtomicUsize),
    calls: &'a AtomicUsize,
    /// Replies unreadably if the prompt contains this.
    mute: &'a str,
}

impl ChatModel for Line<'_> {
    fn name(&self) -> String {
        "stub#judge".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        let (busy, most) = self.busy;
        most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let text = &messages[0].content;
        // The first call takes the longest.
        std::thread::sleep(Duration::from_millis(if call == 0 { 200 } else { 10 }));
        busy.fetch_sub(1, Ordering::SeqCst);
        let right = text.len().is_multiple_of(2);
        let text = match text.contains(self.mute) {
            true => "I had rather talk about tea.".to_owned(),
            false => format!(r#"{{"SR": {right}, "PR": false, "IPA": true}}"#),
        };
        Ok(said(text))
    }
}

/// Judges `dir` with `lines` concurrent calls; returns the maximum concurrency.
fn judge_at_once(
    dir: &std::path::Path,
    lines: usize,
    mute: &str,
    give_up_after: Option<usize>,
) -> (Result<Summary, RunError>, usize, usize) {
    let (busy, calls) = ((AtomicUsize::new(0), AtomicUsize::new(0)), AtomicUsize::new(0));
    let line = || Line { busy: &busy, calls: &calls, mute };
    let mut all: Vec<Line<'_>> = std::iter::repeat_with(line).take(lines).collect();
    let models = all.iter_mut().map(|line| line as &mut (dyn ChatModel + Send)).collect();
    let mut judge = Judge::Reply { models, sampling: GREEDY };
    let mut store = RunStore::open(dir).unwrap();
    let conduct = Conduct { show_progress: false, verbose: false, give_up_after };
    let came = run(&mut store, &mut judge, stale(), &AtomicBool::new(false), conduct);
    (came, busy.1.into_inner(), calls.into_inner())
}

const NEVER: &str = "(no prompt has this)";

#[test]
fn calls_at_once_leave_the_same_files_as_one_after_the_other() {
    let ((_one, alone), (_other, together)) = (finished(9), finished(9));
    let (first, most, _) = judge_at_once(&alone, 1, NEVER, None);
    assert_eq!(most, 1);
    let (second, most, calls) = judge_at_once(&together, 4, NEVER, None);
    assert!((2..=4).contains(&most), "{most} at once");
    assert_eq!((first.unwrap(), calls), (second.unwrap(), 9));
    for name in ["verdicts.jsonl", "replies.jsonl", "rubrics.jsonl"] {
        let bytes = |dir: &std::path::Path| std::fs::read(dir.join(name)).unwrap();
        assert_eq!(bytes(&alone), bytes(&together), "{name}");
    }
    // Nothing is left to judge.
    let (again, _, calls) = judge_at_once(&together, 4, NEVER, None);
    assert_eq!((again.unwrap().skipped, calls), (27, 0));
}

#[test]
fn replies_in_a_row_that_nobody_can_read_end_it_and_what_was_judged_stays() {
    for lines in [1, 3] {
        let (_root, dir) = finished(9);
        let (came, _, _) = judge_at_once(&dir, lines, "", Some(4));
        let error = came.unwrap_err().to_string();
        for part in [
            "4 replies of stub#judge in a row",
            "case `case-3` (SR, PR, IPA)",
            "I had rather talk about tea.",
            "--give-up-after 0",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let rows = std::fs::read_to_string(dir.join("verdicts.jsonl")).unwrap().lines().count();
        // Finished and in-flight calls are kept too.
        let most = if lines == 1 { 4 * 3 } else { 27 };
        assert!((4 * 3..=most).contains(&rows) && rows % 3 == 0, "{rows} rows");
        let (mended, _, _) = judge_at_once(&dir, lines, NEVER, Some(4));
        assert_eq!(mended.unwrap().done, 27);
        let (_root, dir) = finished(9);
        let (on, _, calls) = judge_at_once(&dir, lines, "", None);
        assert_eq!((on.unwrap().errors, calls), (27, 18), "each is asked twice");
    }
}
