//! Statements in C, with the registers they read and write and their jumps.

#[derive(Debug, Default)]
pub(super) struct Step {
    pub label: Option<usize>,
    /// Registers read, registers written.
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    pub guard: Option<String>,
    pub code: Code,
}

impl Step {
    pub(super) fn is_conditional(&self) -> bool {
        self.guard.is_some()
    }
}

#[derive(Debug, Default)]
pub(super) struct Code {
    /// C text, up to the wait.
    pub text: String,
    pub wait: Option<Wait>,
    pub flow: Flow,
}

#[derive(Debug)]
pub(super) struct Wait {
    /// One of `Waits`.
    pub what: &'static str,
    /// Index in the kernel.
    pub number: u32,
    /// C text after resuming.
    pub then: String,
}

impl From<String> for Code {
    fn from(text: String) -> Code {
        Code { text, ..Code::default() }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Flow {
    #[default]
    Next,
    Jump(usize),
    End,
}
