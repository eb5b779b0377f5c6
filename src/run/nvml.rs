//! The energy counters of NVIDIA cards, as the driver's management library (NVML) tells them.
//!
//! Called by the meter of what a run costs. The library comes with the driver and is looked for when it is asked, so that every
//! build starts on machines without one. Of it five functions are used, whose names and arguments have not changed since they
//! were added; `nvmlDeviceGetTotalEnergyConsumption` needs a card from Volta on.

use std::ffi::{CString, c_char, c_int, c_ulonglong, c_void};
use std::path::Path;

use libloading::Library;

/// File names of the library. The first is the driver's own on Linux; the one without a number comes with toolkits.
pub const LIBRARIES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];

const SUCCESS: c_int = 0;

/// `nvmlDevice_t`, which is the library's business.
type Handle = *mut c_void;

type NoArguments = unsafe extern "C" fn() -> c_int;
type HandleByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type TotalEnergy = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int;

/// The counters of some cards.
#[derive(Debug)]
pub struct EnergyCounters {
    /// Of each card, in the order in which they were named.
    cards: Vec<Handle>,
    total_energy: TotalEnergy,
    library: Library,
}

impl EnergyCounters {
    /// The counters of the cards with these UUIDs, as the driver's library tells them; `None` where there is no library, or where it
    /// does not know a card's energy.
    pub fn of(uuids: &[&str]) -> Option<Self> {
        LIBRARIES.iter().find_map(|name| EnergyCounters::by(Path::new(name), uuids))
    }

    /// The same, with the library in this file.
    pub fn by(library: &Path, uuids: &[&str]) -> Option<Self> {
        // SAFETY: what runs when this library is loaded is the driver's own; a file of this name is the management library.
        let library = unsafe { Library::new(library) }.ok()?;
        // SAFETY: the types are those of NVML's header, and the functions are not used beyond the library, which is kept.
        let (init, by_uuid, total_energy) = unsafe {
            let init: NoArguments = *library.get(b"nvmlInit_v2\0").ok()?;
            let by_uuid: HandleByUuid = *library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
            let total_energy: TotalEnergy = *library.get(b"nvmlDeviceGetTotalEnergyConsumption\0").ok()?;
            (init, by_uuid, total_energy)
        };
        // SAFETY: it takes no arguments. Each success is undone when the counters are dropped.
        if unsafe { init() } != SUCCESS {
            return None;
        }
        let mut counters = EnergyCounters { cards: Vec::new(), total_energy, library };
        for uuid in uuids {
            let uuid = CString::new(*uuid).ok()?;
            let mut handle: Handle = std::ptr::null_mut();
            // SAFETY: a text that ends with 0, and a place for the handle.
            if unsafe { by_uuid(uuid.as_ptr(), &raw mut handle) } != SUCCESS {
                return None;
            }
            counters.cards.push(handle);
        }
        // A card that has no counter says so at the first reading.
        counters.millijoules()?;
        Some(counters)
    }

    /// Energy of each card since its driver was loaded, in millijoules, all of its processes together; `None` where one does not
    /// tell.
    pub fn millijoules(&self) -> Option<Vec<u64>> {
        let of_card = |&card: &Handle| {
            let mut energy: c_ulonglong = 0;
            // SAFETY: the handle is the library's, which is initialised as long as this lives.
            let told = unsafe { (self.total_energy)(card, &raw mut energy) };
            (told == SUCCESS).then_some(energy)
        };
        self.cards.iter().map(of_card).collect()
    }
}

impl Drop for EnergyCounters {
    fn drop(&mut self) {
        // SAFETY: as above; no handle is used after this.
        unsafe {
            if let Ok(shutdown) = self.library.get::<NoArguments>(b"nvmlShutdown\0") {
                shutdown();
            }
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
pub mod pretend {
    //! A made-up management library: it has the functions above and knows three cards, of which one has no counter.

    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Its counter begins at 5,000 mJ and is 250 mJ further at each reading.
    pub const FIRST: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0eff";
    /// Its counter begins at 70,000 mJ and is 1,000 mJ further at each reading.
    pub const SECOND: &str = "GPU-second";
    /// From before Volta.
    pub const OLD: &str = "GPU-old";

    const SOURCE: &str = r#"
#include <string.h>
struct card { unsigned long long energy, step; };
static struct card first = { 4750, 250 }, second = { 69000, 1000 }, old = { 0, 0 };
static int users = 0;
int nvmlInit_v2(void) { users++; return 0; }
int nvmlShutdown(void) { users--; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    if (users < 1) return 1;
    if (!strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0eff")) *card = &first;
    else if (!strcmp(uuid, "GPU-second")) *card = &second;
    else if (!strcmp(uuid, "GPU-old")) *card = &old;
    else return 6;
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *energy) {
    struct card *c = card;
    if (users < 1) return 1;
    if (c->step == 0) return 3;
    c->energy += c->step;
    *energy = c->energy;
    return 0;
}
"#;

    /// Compiles it into `folder`. Each file has counters of its own.
    pub fn library(folder: &Path) -> PathBuf {
        let (source, library) = (folder.join("nvml.c"), folder.join("libnvidia-ml.so.1"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
        library
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use pretend::{FIRST, OLD, SECOND, library};

    #[test]
    fn counters_are_those_of_the_cards_that_are_named_and_of_no_others() {
        let root = tempfile::tempdir().unwrap();
        let path = library(root.path());
        let counters = EnergyCounters::by(&path, &[SECOND, FIRST]).unwrap();
        // One reading was the trial.
        assert_eq!(counters.millijoules(), Some(vec![71_000, 5250]));
        assert_eq!(counters.millijoules(), Some(vec![72_000, 5500]));
        let alone = EnergyCounters::by(&path, &[FIRST]).unwrap();
        assert_eq!(alone.millijoules(), Some(vec![6000]));
        drop(counters);
        assert_eq!(alone.millijoules(), Some(vec![6250]), "the library stays open for the other one");
    }

    #[test]
    fn a_card_without_a_counter_an_unknown_one_and_no_library_are_no_counters() {
        let root = tempfile::tempdir().unwrap();
        let path = library(root.path());
        for cards in [&[FIRST, OLD][..], &["GPU-unknown"], &["MIG-1"], &["GPU\0"]] {
            assert!(EnergyCounters::by(&path, cards).is_none(), "{cards:?}");
        }
        assert!(EnergyCounters::by(&path, &[]).is_some_and(|none| none.millijoules() == Some(Vec::new())));
        assert!(EnergyCounters::by(&root.path().join("none.so"), &[FIRST]).is_none());
        // No library at all, and one without these functions.
        assert!(EnergyCounters::by(&root.path().join("nvml.c"), &[FIRST]).is_none());
    }
}
