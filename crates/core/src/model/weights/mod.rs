//! Weight files, read without trusting them: readers map files and validate lengths, counts and offsets before allocating or slicing.
//! They return bytes and tensors by name and do not know which names a decoder needs.

pub mod blocks;
pub mod gguf;
pub mod gguf_tokenizer;
mod mapped;
pub mod safetensors;
pub mod weight_files;

pub use blocks::BlocksError;
pub use gguf::{BlockType, GgufError, GgufFile, Value};
pub use safetensors::{SafetensorsFolder, View};
pub use weight_files::SafetensorsError;
