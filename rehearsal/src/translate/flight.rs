//! Registers that warpgroup products use in the background ("wgmma.fence", "wgmma.wait_group"). Two misuses are undefined and invisible
//! where threads run one after the other, so they are found here, for every path through the kernel:
//!
//! - a use of a sum, or of a factor in registers, between a product and the wait for its group; a further product of the same shape may
//!   add to the sum, and others may read the factor;
//! - a product of registers that the thread has used since the last `wgmma.fence`.
//!
//! Forward data-flow analysis to a fixed point. A finding stops the program where it is reached.

use super::step::{Flow, GroupStep, Step};

/// A register at one place of the kernel.
#[derive(Clone, Copy, PartialEq, Default)]
struct Register {
    /// Used since the last fence.
    used: bool,
    flight: Option<Flight>,
}

/// A register of a product that was not waited for.
#[derive(Clone, Copy, PartialEq)]
struct Flight {
    /// Groups committed since, at least.
    commits: u32,
    /// Columns of the product, for a sum; 0 for a factor.
    columns: u32,
}

/// A statement's misuse of a register.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Misuse {
    InFlight(usize),
    Unfenced(usize),
}

impl Misuse {
    pub(super) fn text(self, name: impl Fn(usize) -> String) -> String {
        match self {
            Misuse::InFlight(register) => format!(
                "{} is used before the wgmma.wait_group of the wgmma.mma_async that it is given to",
                name(register)
            ),
            Misuse::Unfenced(register) => {
                format!("{} was used, and no wgmma.fence comes between", name(register))
            }
        }
    }
}

type State = Vec<Register>;

/// The misuse of each statement; empty for a function without warpgroup operations.
pub(super) fn misuses(steps: &[Step], labels: usize, registers: usize) -> Vec<Option<Misuse>> {
    if steps.iter().all(|step| step.code.group.is_none()) {
        return Vec::new();
    }
    let mut at_label: Vec<Option<State>> = vec![None; labels];
    loop {
        let (found, changed) = pass(steps, &mut at_label, registers);
        if !changed {
            return found;
        }
    }
}

/// One walk over the statements; true if a label's state changed.
fn pass(steps: &[Step], at_label: &mut [Option<State>], registers: usize) -> (Vec<Option<Misuse>>, bool) {
    let mut found = vec![None; steps.len()];
    let mut changed = false;
    let mut here: Option<State> = Some(vec![Register { used: true, flight: None }; registers]);
    for (step, found) in steps.iter().zip(&mut found) {
        if let Some(label) = step.label {
            if let Some(state) = &here {
                changed |= merge(&mut at_label[label], state);
            }
            here.clone_from(&at_label[label]);
            continue;
        }
        let Some(state) = &mut here else { continue };
        *found = apply(step, state);
        if let Flow::Jump(label) = step.code.flow {
            changed |= merge(&mut at_label[label], state);
        }
        if step.code.flow != Flow::Next && !step.is_conditional() {
            here = None;
        }
    }
    (found, changed)
}

/// Joins the state on another path; true if that changed `into`.
fn merge(into: &mut Option<State>, other: &State) -> bool {
    let Some(into) = into else {
        *into = Some(other.clone());
        return true;
    };
    let mut changed = false;
    for (one, other) in into.iter_mut().zip(other) {
        let flight = match (one.flight, other.flight) {
            (Some(one), Some(other)) => Some(Flight { commits: one.commits.min(other.commits), ..one }),
            (one, other) => one.or(other),
        };
        let both = Register { used: one.used || other.used, flight };
        changed |= both != *one;
        *one = both;
    }
    changed
}

fn apply(step: &Step, state: &mut State) -> Option<Misuse> {
    let mut misuse = None;
    let (sums, factor, columns): (&[usize], &[usize], _) = match &step.code.group {
        Some(GroupStep::Multiply { sums, factor, columns }) => (sums, factor, *columns),
        _ => (&[], &[], 0),
    };
    for &register in step.reads.iter().chain(&step.writes) {
        if sums.contains(&register) || factor.contains(&register) {
            continue;
        }
        if state[register].flight.is_some() {
            misuse = misuse.or(Some(Misuse::InFlight(register)));
        }
        state[register].used = true;
    }
    let given = sums.iter().map(|sum| (*sum, columns)).chain(factor.iter().map(|factor| (*factor, 0)));
    for (register, columns) in given {
        let Register { used, flight } = state[register];
        if flight.is_some_and(|flight| flight.columns != columns) {
            misuse = misuse.or(Some(Misuse::InFlight(register)));
        }
        if used {
            misuse = misuse.or(Some(Misuse::Unfenced(register)));
        }
        state[register].flight = Some(Flight { commits: 0, columns });
    }
    // A conditional one may not happen.
    if step.is_conditional() {
        return misuse;
    }
    match step.code.group {
        Some(GroupStep::Fence) => state.iter_mut().for_each(|register| register.used = false),
        Some(GroupStep::Commit) => {
            for flight in state.iter_mut().filter_map(|register| register.flight.as_mut()) {
                flight.commits = flight.commits.saturating_add(1);
            }
        }
        Some(GroupStep::Wait(left)) => {
            for register in state.iter_mut() {
                register.flight = register.flight.filter(|flight| flight.commits <= left);
            }
        }
        _ => {}
    }
    misuse
}
