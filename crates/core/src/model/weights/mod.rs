//! Weight files, read without trusting them.
//!
//! Both readers map the files and check every length, count and offset against the bytes that are there before
//! anything is allocated or sliced, so a truncated or hostile file becomes an error that names the file and the
//! fault. They hand out bytes and tensors by name; which names a decoder needs is the decoder's business.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

pub mod blocks;
pub mod gguf;
pub mod gguf_tokenizer;
pub mod safetensors;
mod safetensors_error;
mod weight_files;

pub use blocks::BlocksError;
pub use gguf::{BlockType, GgufError, GgufFile};
pub use safetensors::{SafetensorsError, SafetensorsFolder, View};

/// A file's bytes.
fn map(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only. A file that another program truncates while it is mapped can still raise SIGBUS, as
    // in every program that maps its weights; files of our cache are replaced by rename, never rewritten in place.
    unsafe { Mmap::map(&file) }
}
