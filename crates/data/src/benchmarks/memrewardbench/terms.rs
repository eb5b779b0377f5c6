//! Tasks, settings and lengths (MemoryRewardBench, table 2). Spellings are compared by letters and digits only, ignoring case.

use std::fmt;

pub(super) const TITLE: &str = "MemoryRewardBench";
pub(super) const TASK: &str = "task";
pub(super) const SUBTASK: &str = "subtask";
pub(super) const CTX_LENGTH: &str = "ctx_length";
pub(super) const SETTING: &str = "setting";
pub(super) const LENGTH: &str = "length";
pub(super) const SOURCE: &str = "source";

pub(super) const VERDICT: &str = "verdict";
pub(super) const UNDERSTANDING: &str = "understanding";
pub(super) const GENERATION: &str = "generation";

pub(super) const CHOSEN: &str = "chosen";
pub(super) const REJECTED: &str = "rejected";
pub(super) const ONLY_CHOSEN: &str = "only_chosen";
pub(super) const ONLY_REJECTED: &str = "only_rejected";
/// Role and segment kind: the question with its long context.
pub(super) const QUESTION: &str = "question";
/// Role: the question's end, about as long as a trajectory; the baseline.
pub(super) const BLOCK: &str = "block";
pub(super) const FIRST: &str = "first";
pub(super) const SECOND: &str = "second";
pub(super) const TRAJECTORY: &str = "trajectory";

/// (term, name in files, table heading, aliases)
type Terms<T, const N: usize> = [(T, &'static str, &'static str, &'static [&'static str]); N];

const fn all<T: Copy, const N: usize>(terms: &Terms<T, N>) -> [T; N] {
    let mut all = [terms[0].0; N];
    let mut at = 0;
    while at < N {
        all[at] = terms[at].0;
        at += 1;
    }
    all
}

fn spelt<T: Copy>(text: &str, terms: &[(T, &str, &str, &[&str])]) -> Option<T> {
    let bare = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let text = bare(text);
    let is = |(_, name, short, also): &&(T, &str, &str, &[&str])| {
        text == bare(name) || text == bare(short) || also.contains(&&*text)
    };
    terms.iter().find(is).map(|(term, ..)| *term)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Reasoning,
    Dialogue,
    Generation,
}

const TASKS: Terms<Task, 3> = [
    (Task::Reasoning, "Long-context_Reasoning", "LR", &["longcontextunderstanding", "reasoning", "lu"]),
    (
        Task::Dialogue,
        "Multi-turn_Dialogue_Understanding",
        "MD",
        &["multiturndialogue", "dialogueunderstanding", "dialogue"],
    ),
    (Task::Generation, "Long-form_Generation", "LG", &["generation"]),
];

impl Task {
    pub const ALL: [Task; 3] = all(&TASKS);

    pub fn name(self) -> &'static str {
        TASKS[self as usize].1
    }

    pub fn short(self) -> &'static str {
        TASKS[self as usize].2
    }

    pub fn parse(text: &str) -> Option<Task> {
        spelt(text, &TASKS)
    }
}

/// In the order of table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    SequentialNoise,
    SequentialDrop,
    MixedNoise,
    MixedDrop,
    Mem0Out,
    Mem0Mem,
    AMemOut,
    AMemMem,
    Sequential,
    Parallel,
}

use Setting::{
    AMemMem, AMemOut, Mem0Mem, Mem0Out, MixedDrop, MixedNoise, Parallel, Sequential, SequentialDrop,
    SequentialNoise,
};

/// Aliases include the names in table 4 and in the caption of table 7.
const SETTINGS: Terms<Setting, 10> = [
    (SequentialNoise, "Sequential-Noise", "S-Noise", &["seqnoise", "sequentialselfcorrect", "ssc"]),
    (
        SequentialDrop,
        "Sequential-Drop",
        "S-Drop",
        &["seqdrop", "sequentialdropinfo", "sequentialmaskinfo", "smi"],
    ),
    (
        MixedNoise,
        "Mixed-Noise",
        "M-Noise",
        &["pnoise", "parallelnoise", "mixedselfcorrect", "parallelselfcorrect"],
    ),
    (
        MixedDrop,
        "Mixed-Drop",
        "M-Drop",
        &["pdrop", "paralleldrop", "mixeddropinfo", "paralleldropinfo", "mixedmaskinfo"],
    ),
    (Mem0Out, "Mem0-Out", "MO", &[]),
    (Mem0Mem, "Mem0-Mem", "MM", &[]),
    (AMemOut, "A-Mem-Out", "AO", &[]),
    (AMemMem, "A-Mem-Mem", "AM", &[]),
    (Sequential, "Sequential", "S", &[]),
    (Parallel, "Parallel", "P", &[]),
];

impl Setting {
    pub const ALL: [Setting; 10] = all(&SETTINGS);

    pub fn name(self) -> &'static str {
        SETTINGS[self as usize].1
    }

    pub fn short(self) -> &'static str {
        SETTINGS[self as usize].2
    }

    pub fn task(self) -> Task {
        match self {
            Mem0Out | Mem0Mem | AMemOut | AMemMem => Task::Dialogue,
            Sequential | Parallel => Task::Generation,
            SequentialNoise | SequentialDrop | MixedNoise | MixedDrop => Task::Reasoning,
        }
    }

    /// Trajectories are A-Mem notes (section 5.4).
    pub fn has_tags(self) -> bool {
        matches!(self, AMemOut | AMemMem)
    }

    pub fn parse(text: &str) -> Option<Setting> {
        spelt(text, &SETTINGS)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source datasets of long-form questions (appendix B.3), detected by form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    LongProc,
    LongGenBench,
    LongEval,
}

impl Source {
    pub const ALL: [Source; 3] = [Source::LongProc, Source::LongGenBench, Source::LongEval];

    pub fn name(self) -> &'static str {
        match self {
            Source::LongProc => "LongProc",
            Source::LongGenBench => "LongGenBench",
            Source::LongEval => "LongEval",
        }
    }

    pub fn parse(name: &str) -> Option<Source> {
        Source::ALL.into_iter().find(|source| source.name() == name)
    }
}

/// Context length; files also give token counts in units of 1,000 or 1,024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Length {
    K8,
    K16,
    K32,
    K64,
    K128,
}

const LENGTHS: Terms<Length, 5> = [
    (Length::K8, "8k", "8k", &["8000", "8192"]),
    (Length::K16, "16k", "16k", &["16000", "16384"]),
    (Length::K32, "32k", "32k", &["32000", "32768"]),
    (Length::K64, "64k", "64k", &["64000", "65536"]),
    (Length::K128, "128k", "128k", &["128000", "131072"]),
];

impl Length {
    pub const ALL: [Length; 5] = all(&LENGTHS);

    pub fn name(self) -> &'static str {
        LENGTHS[self as usize].1
    }

    pub fn parse(text: &str) -> Option<Length> {
        spelt(text, &LENGTHS)
    }
}

pub(super) fn names<T: Copy, const N: usize>(all: [T; N], name: impl Fn(T) -> &'static str) -> String {
    all.map(name).join(", ")
}
