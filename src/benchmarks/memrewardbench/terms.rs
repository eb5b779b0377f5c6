//! The tasks, settings and lengths of the benchmark (MemoryRewardBench, table 2), with the spellings under which files name them.
//!
//! Spellings are compared without case and without anything that is no letter or digit. What is in no list is refused by name.

use std::fmt;

pub(super) const TITLE: &str = "MemoryRewardBench";
pub(super) const TASK: &str = "task";
pub(super) const SUBTASK: &str = "subtask";
pub(super) const CTX_LENGTH: &str = "ctx_length";
pub(super) const SETTING: &str = "setting";
pub(super) const LENGTH: &str = "length";
pub(super) const SOURCE: &str = "source";

pub(super) const VERDICT: &str = "verdict";
/// Form of the prompts of the two tasks in which something is to be understood.
pub(super) const UNDERSTANDING: &str = "understanding";
/// Form of those in which something is written.
pub(super) const GENERATION: &str = "generation";

pub(super) const CHOSEN: &str = "chosen";
pub(super) const REJECTED: &str = "rejected";
pub(super) const ONLY_CHOSEN: &str = "only_chosen";
pub(super) const ONLY_REJECTED: &str = "only_rejected";
/// Role, and kind of segment: the question with its long context.
pub(super) const QUESTION: &str = "question";
/// Role: the end of the question, about as long as a trajectory: what attention to a trajectory is compared with.
pub(super) const BLOCK: &str = "block";
pub(super) const FIRST: &str = "first";
pub(super) const SECOND: &str = "second";
pub(super) const TRAJECTORY: &str = "trajectory";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Reasoning,
    Dialogue,
    Generation,
}

impl Task {
    pub const ALL: [Task; 3] = [Task::Reasoning, Task::Dialogue, Task::Generation];

    pub fn name(self) -> &'static str {
        self.terms().name
    }

    pub fn short(self) -> &'static str {
        self.terms().short
    }

    pub fn parse(text: &str) -> Option<Task> {
        spelt(text, Task::ALL, Task::terms)
    }

    fn terms(self) -> Terms {
        let of = |name, short, also| Terms { name, short, also };
        match self {
            Task::Reasoning => {
                of("Long-context_Reasoning", "LR", &["longcontextunderstanding", "reasoning", "lu"])
            }
            Task::Dialogue => of(
                "Multi-turn_Dialogue_Understanding",
                "MD",
                &["multiturndialogue", "dialogueunderstanding", "dialogue"],
            ),
            Task::Generation => of("Long-form_Generation", "LG", &["generation"]),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
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

impl Setting {
    pub const ALL: [Setting; 10] = [
        Setting::SequentialNoise,
        Setting::SequentialDrop,
        Setting::MixedNoise,
        Setting::MixedDrop,
        Setting::Mem0Out,
        Setting::Mem0Mem,
        Setting::AMemOut,
        Setting::AMemMem,
        Setting::Sequential,
        Setting::Parallel,
    ];

    pub fn name(self) -> &'static str {
        self.terms().name
    }

    pub fn short(self) -> &'static str {
        self.terms().short
    }

    pub fn task(self) -> Task {
        use Setting::{AMemMem, AMemOut, Mem0Mem, Mem0Out, Parallel, Sequential};
        match self {
            Mem0Out | Mem0Mem | AMemOut | AMemMem => Task::Dialogue,
            Sequential | Parallel => Task::Generation,
            _ => Task::Reasoning,
        }
    }

    /// True if its trajectories are notes of A-Mem, which have tags (section 5.4).
    pub fn has_tags(self) -> bool {
        matches!(self, Setting::AMemOut | Setting::AMemMem)
    }

    /// The setting of a spelling. The names of the perturbations in table 4 and in the caption of table 7 are spellings too.
    pub fn parse(text: &str) -> Option<Setting> {
        spelt(text, Setting::ALL, Setting::terms)
    }

    fn terms(self) -> Terms {
        let of = |name, short, also| Terms { name, short, also };
        match self {
            Setting::SequentialNoise => {
                of("Sequential-Noise", "S-Noise", &["seqnoise", "sequentialselfcorrect", "ssc"])
            }
            Setting::SequentialDrop => of(
                "Sequential-Drop",
                "S-Drop",
                &["seqdrop", "sequentialdropinfo", "sequentialmaskinfo", "smi"],
            ),
            Setting::MixedNoise => of(
                "Mixed-Noise",
                "M-Noise",
                &["pnoise", "parallelnoise", "mixedselfcorrect", "parallelselfcorrect"],
            ),
            Setting::MixedDrop => of(
                "Mixed-Drop",
                "M-Drop",
                &["pdrop", "paralleldrop", "mixeddropinfo", "paralleldropinfo", "mixedmaskinfo"],
            ),
            Setting::Mem0Out => of("Mem0-Out", "MO", &[]),
            Setting::Mem0Mem => of("Mem0-Mem", "MM", &[]),
            Setting::AMemOut => of("A-Mem-Out", "AO", &[]),
            Setting::AMemMem => of("A-Mem-Mem", "AM", &[]),
            Setting::Sequential => of("Sequential", "S", &[]),
            Setting::Parallel => of("Parallel", "P", &[]),
        }
    }
}

/// One of the three data sets that long-form questions come from (appendix B.3). Rows do not name it; their form tells it.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Length {
    K8,
    K16,
    K32,
    K64,
    K128,
}

impl Length {
    pub const ALL: [Length; 5] = [Length::K8, Length::K16, Length::K32, Length::K64, Length::K128];

    pub fn name(self) -> &'static str {
        self.terms().name
    }

    /// The length of a spelling: `8k`, or so many tokens, in thousands of 1,000 or of 1,024.
    pub fn parse(text: &str) -> Option<Length> {
        spelt(text, Length::ALL, Length::terms)
    }

    fn terms(self) -> Terms {
        let of = |name, also| Terms { name, short: name, also };
        match self {
            Length::K8 => of("8k", &["8000", "8192"]),
            Length::K16 => of("16k", &["16000", "16384"]),
            Length::K32 => of("32k", &["32000", "32768"]),
            Length::K64 => of("64k", &["64000", "65536"]),
            Length::K128 => of("128k", &["128000", "131072"]),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct Terms {
    name: &'static str,
    short: &'static str,
    also: &'static [&'static str],
}

fn spelt<T: Copy>(text: &str, all: impl IntoIterator<Item = T>, terms: fn(T) -> Terms) -> Option<T> {
    let bare = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let text = bare(text);
    all.into_iter().find(|term| {
        let Terms { name, short, also } = terms(*term);
        text == bare(name) || text == bare(short) || also.contains(&&*text)
    })
}

pub(super) fn names<T: Copy, const N: usize>(all: [T; N], name: impl Fn(T) -> &'static str) -> String {
    all.map(name).join(", ")
}
