//! One file a policy.

pub mod expected_attention;
pub mod h2o;
pub mod knorm;
pub mod kvzap;
pub mod random;
pub mod sessions;
pub mod snapkv;
pub mod streaming;
pub mod tova;
