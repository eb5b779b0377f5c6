//! Why a readout of the code's variant stops.

use super::super::asking::{Fault, Unreachable};

/// Why a readout stops.
#[derive(Debug)]
pub enum Stop {
    /// A model could not be asked.
    Unreachable(Unreachable),
    /// A reply could not be read.
    Fault(Fault),
}

impl From<Unreachable> for Stop {
    fn from(error: Unreachable) -> Self {
        Stop::Unreachable(error)
    }
}

/// A step's reply.
pub fn readable<T>(asked: Result<Result<T, Fault>, Unreachable>) -> Result<T, Stop> {
    asked?.map_err(Stop::Fault)
}
