//! The one door to attention, the observers that read it, and the store of what they saw.

mod store;

pub use store::{AttentionStore, StoreError};
