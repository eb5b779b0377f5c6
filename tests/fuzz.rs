//! Arbitrary bytes as model files and run folders: readers accept or reject them, never panic and never allocate excessively.
//!
//! `PALIMPSEST_FUZZ_CASES` sets the number of cases per property; CONTRIBUTING.md records the long runs.

use proptest::prelude::*;
use proptest::sample::Index;

pub mod allocator;
mod config;
mod gguf;
mod run_folder;
mod safetensors;

/// Cases per property: a few thousand, or the environment's number.
fn cases() -> ProptestConfig {
    let cases = std::env::var("PALIMPSEST_FUZZ_CASES").ok().and_then(|count| count.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(2048), failure_persistence: None, ..ProptestConfig::default() }
}

/// One change to a file. Positions are relative to its current length.
#[derive(Debug, Clone)]
enum Edit {
    /// Flips a bit.
    Flip(Index, u8),
    /// Replaces a byte.
    Byte(Index, u8),
    /// Overwrites 4 or 8 bytes with a little-endian number, possibly a length, count or offset.
    Number(Index, u64, bool),
    /// Replaces a digit, or the byte in its place, with a run of digits.
    Digits(Index, u64),
    /// Removes a range.
    Cut(Index, usize),
    /// Copies a range to another position.
    Splice(Index, usize, Index),
    /// Drops everything after a position.
    Truncate(Index),
}

/// Random numbers, with implausible lengths among them.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        any::<u32>().prop_map(u64::from),
        0..64u64,
        (0..64u32, -1..=1i64).prop_map(|(power, off)| (1u64 << power).wrapping_add_signed(off)),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    prop_oneof![
        4 => (place(), 0..8u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        2 => (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        4 => (place(), number(), any::<bool>()).prop_map(|(at, number, long)| Edit::Number(at, number, long)),
        2 => (place(), number()).prop_map(|(at, number)| Edit::Digits(at, number)),
        1 => (place(), 1..64usize).prop_map(|(at, length)| Edit::Cut(at, length)),
        2 => (place(), 1..256usize, place()).prop_map(|(from, length, to)| Edit::Splice(from, length, to)),
        1 => place().prop_map(Edit::Truncate),
    ]
}

/// A sequence of a few changes.
fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(edit(), 1..5)
}

fn apply(bytes: &mut Vec<u8>, edits: &[Edit]) {
    for edit in edits {
        let length = bytes.len();
        if length == 0 {
            return;
        }
        let run = |from: &Index, run: usize| {
            let from = from.index(length);
            from..(from + run).min(length)
        };
        match edit {
            Edit::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Edit::Byte(at, byte) => bytes[at.index(length)] = *byte,
            Edit::Number(at, number, long) => {
                let place = run(at, if *long { 8 } else { 4 });
                let size = place.len();
                bytes[place].copy_from_slice(&number.to_le_bytes()[..size]);
            }
            Edit::Digits(at, number) => {
                // The next digit after the position, so that numbers in text are hit often.
                let at = at.index(length);
                let at = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |next| at + next);
                bytes.splice(at..=at, number.to_string().into_bytes());
            }
            Edit::Cut(at, cut) => drop(bytes.drain(run(at, *cut))),
            Edit::Splice(from, copied, to) => {
                let copied = bytes[run(from, *copied)].to_vec();
                let to = to.index(length);
                bytes.splice(to..to, copied);
            }
            Edit::Truncate(at) => bytes.truncate(at.index(length)),
        }
    }
}
