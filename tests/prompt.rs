//! What must hold for: prompt.
