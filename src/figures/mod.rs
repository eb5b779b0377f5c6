//! (this room's paragraph)
