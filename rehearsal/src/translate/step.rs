//! Statements in C, with the registers they read and write and their jumps.

#[derive(Debug, Default)]
pub(super) struct Step {
    pub label: Option<usize>,
    /// Registers read, registers written.
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    pub guard: Option<String>,
    pub code: Code,
    /// The instruction as a C string.
    pub at: String,
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
    pub group: Option<GroupStep>,
}

/// A warpgroup operation, for [`super::flight`].
#[derive(Debug)]
pub(super) enum GroupStep {
    Fence,
    Commit,
    /// Groups that may be left.
    Wait(u32),
    /// Registers of D, and of A if it lies in registers; columns of D.
    Multiply {
        sums: Vec<usize>,
        factor: Vec<usize>,
        columns: u32,
    },
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
