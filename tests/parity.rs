//! What must hold for: parity.
