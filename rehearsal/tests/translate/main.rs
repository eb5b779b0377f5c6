//! The translator against plain definitions: PTX is translated, compiled and run on a minimal machine ([`machine`]), and compared with
//! Rust's arithmetic, with exact integer arithmetic, or with the manual.

mod arithmetic;
mod compile;
mod conversions;
mod exact;
mod machine;
mod memory;
mod snippets;
mod threads;
