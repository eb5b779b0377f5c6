//! What must hold for: cli.
