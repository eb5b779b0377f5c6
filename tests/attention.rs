//! What must hold for: attention.
