//! Weight files, read without trusting them: readers map files and validate lengths, counts and offsets before allocating or slicing.
//! They return bytes and tensors by name and do not know which names a decoder needs.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

pub mod blocks;
pub mod gguf;
pub mod gguf_tokenizer;
pub mod safetensors;
pub mod weight_files;

pub use blocks::BlocksError;
pub use gguf::{BlockType, GgufError, GgufFile};
pub use safetensors::{SafetensorsFolder, View};
pub use weight_files::SafetensorsError;

fn map(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only. A file truncated by another program while mapped can still raise SIGBUS, as in every program that maps
    // its weights; files in our cache are replaced by rename, never rewritten in place.
    unsafe { Mmap::map(&file) }
}
