//! Statements as C, with the registers that they read and write and where they jump.

/// One statement in C.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// The label it is.
    pub label: Option<usize>,
    /// Registers that it reads, and that it sets.
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// The condition that it runs under.
    pub guard: Option<String>,
    pub code: Code,
}

impl Step {
    /// True if it may be skipped.
    pub(super) fn is_conditional(&self) -> bool {
        self.guard.is_some()
    }
}

/// The C of one instruction.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// What it does, up to where it waits.
    pub text: String,
    /// Where it leaves the function to wait.
    pub wait: Option<Wait>,
    /// Where it goes.
    pub flow: Flow,
}

/// A place where a thread waits for others.
#[derive(Debug)]
pub(super) struct Wait {
    /// For what: one of `Waits`.
    pub what: &'static str,
    /// Its number in the kernel.
    pub number: u32,
    /// What it does when it goes on.
    pub then: String,
}

impl From<String> for Code {
    fn from(text: String) -> Code {
        Code { text, ..Code::default() }
    }
}

/// Where an instruction goes.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Flow {
    #[default]
    Next,
    Jump(usize),
    End,
}
