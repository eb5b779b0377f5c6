//! Shared functions of every module; depends on none of them.

pub mod csv;
pub mod difference;
pub mod file_stem;
pub mod folder;
pub mod json;
pub mod jsonl;
pub mod numbers;
pub mod order;
pub mod schema;
pub mod sheet;
pub mod table;
pub mod text_file;
pub mod words;
