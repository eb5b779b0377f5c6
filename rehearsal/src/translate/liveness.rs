//! Registers alive across a wait: only these must outlive the C function's frame. Standard backward data-flow analysis to a fixed point.

use super::step::{Flow, Step};

type Set = Vec<u64>;

fn insert(set: &mut Set, register: usize) {
    let word = register / 64;
    if set.len() <= word {
        set.resize(word + 1, 0);
    }
    set[word] |= 1 << (register % 64);
}

fn remove(set: &mut Set, register: usize) {
    if let Some(word) = set.get_mut(register / 64) {
        *word &= !(1 << (register % 64));
    }
}

/// Adds `other` to `set`; true if that changed it.
fn merge(set: &mut Set, other: &Set) -> bool {
    if set.len() < other.len() {
        set.resize(other.len(), 0);
    }
    let mut changed = false;
    for (word, &more) in set.iter_mut().zip(other) {
        changed |= more & !*word != 0;
        *word |= more;
    }
    changed
}

/// For each statement, the registers alive across its wait; empty if it does not wait.
pub(super) fn at_waits(steps: &[Step], labels: usize) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new(); steps.len()];
    // Alive at each label so far.
    let mut at_label: Vec<Set> = vec![Set::new(); labels];
    loop {
        let mut changed = false;
        let mut alive = Set::new();
        for (step, out) in steps.iter().zip(&mut out).rev() {
            if let Some(label) = step.label {
                changed |= merge(&mut at_label[label], &alive);
                continue;
            }
            let after = match step.code.flow {
                Flow::Next => None,
                Flow::Jump(label) => Some(at_label[label].clone()),
                Flow::End => Some(Set::new()),
            };
            match after {
                Some(after) if step.is_conditional() => drop(merge(&mut alive, &after)),
                Some(after) => alive = after,
                None => {}
            }
            if step.code.wait.is_some() {
                // A waiting statement writes its results after the wait.
                let mut kept = alive.clone();
                step.writes.iter().for_each(|&register| remove(&mut kept, register));
                *out = registers(&kept);
            }
            if !step.is_conditional() {
                step.writes.iter().for_each(|&register| remove(&mut alive, register));
            }
            step.reads.iter().for_each(|&register| insert(&mut alive, register));
        }
        if !changed {
            return out;
        }
    }
}

fn registers(set: &Set) -> Vec<usize> {
    let bits = |(word, &bits): (usize, &u64)| {
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
    };
    set.iter().enumerate().flat_map(bits).collect()
}
