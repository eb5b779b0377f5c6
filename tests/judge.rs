//! What must hold for: judge.
