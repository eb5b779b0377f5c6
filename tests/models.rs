//! What must hold for: models.
