//! What must hold for: data.
