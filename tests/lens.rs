//! What must hold for: lens.
