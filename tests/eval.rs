//! What must hold for: eval.
