//! The embedder of builds without the feature `embedder`.

use super::EmbedError;
use crate::models::EmbedderFiles;

#[derive(Debug)]
pub enum Embedder {}

impl Embedder {
    pub fn built_in() -> Result<(), EmbedError> {
        Err(EmbedError::Absent)
    }

    pub fn open(_: &EmbedderFiles) -> Result<Self, EmbedError> {
        Err(EmbedError::Absent)
    }

    pub fn vocab(&self) -> usize {
        match *self {}
    }

    pub fn limit(&self) -> usize {
        match *self {}
    }

    pub fn tokens<S: AsRef<str> + Sync>(&self, _: &[S]) -> Result<Vec<Vec<u32>>, EmbedError> {
        match *self {}
    }

    pub fn embed(&self, _: &[&str], _: impl Fn(usize) + Sync) -> Result<Vec<Vec<f32>>, EmbedError> {
        match *self {}
    }

    pub fn embed_tokens(
        &self,
        _: &[Vec<u32>],
        _: impl Fn(usize) + Sync,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        match *self {}
    }
}
