//! The translator against plain definitions: PTX written here is translated, compiled and run on a machine of
//! a hundred lines ([`machine`]), and compared with Rust's arithmetic, with exact arithmetic on integers, or
//! with what the manual says.

mod arithmetic;
mod compile;
mod conversions;
mod exact;
mod machine;
mod memory;
mod snippets;
mod threads;
