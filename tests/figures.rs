//! What must hold for: figures.
