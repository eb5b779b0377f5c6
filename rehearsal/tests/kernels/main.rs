//! Each kernel that palimpsest launches, compiled by nvcc, against a plain f64 definition: on ragged shapes, contiguous and strided, with
//! an offset that breaks vector alignment. This checks the translator against CUDA, and the kernels against their names.
//!
//! The modules are those of a CUDA build, Candle's and palimpsest's: `REHEARSAL_PTX` names their folders, as printed by
//! `scripts/rehearsal.sh --build`. Without it these tests are skipped and say so. `launched.txt` lists the kernels, from the reports of
//! palimpsest's runs on its tiny checkpoints.

mod attention;
#[path = "../card/mod.rs"]
mod card;
mod delta;
mod element;
mod elementwise;
mod hopper;
mod index;
mod layout;
mod own;
mod quantised;
mod reduce;

use std::cell::RefCell;
use std::collections::BTreeSet;

use card::{Card, Param};
use element::Element;

/// A device with the modules of a CUDA build, and the kernels tested on it.
pub struct Candle {
    card: Card,
    folders: Vec<std::path::PathBuf>,
    tried: RefCell<BTreeSet<String>>,
}

/// Module folders of a CUDA build. Prints a line and returns `None` if unknown.
fn modules() -> Option<Vec<std::path::PathBuf>> {
    let folders = std::env::var_os("REHEARSAL_PTX");
    if folders.is_none() {
        eprintln!("skipped: REHEARSAL_PTX does not name the folders of .ptx modules");
    }
    folders.map(|folders| std::env::split_paths(&folders).collect())
}

impl Candle {
    fn of(folders: Vec<std::path::PathBuf>) -> Self {
        Self { card: Card::new(0), folders, tried: RefCell::default() }
    }

    fn load(&mut self, module: &str, names: &[&str]) {
        let file = format!("{module}.ptx");
        let path = self.folders.iter().map(|folder| folder.join(&file)).find(|path| path.exists());
        let path = path.unwrap_or_else(|| panic!("no {file} in {:?}", self.folders));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        self.card.load(&text, names);
    }

    /// Launches a kernel for `elements` elements, as cudarc does.
    fn launch(&self, name: &str, elements: usize, params: &[Param]) {
        self.launch_as(name, [elements.div_ceil(1024) as u32, 1, 1], [1024, 1, 1], params);
    }

    fn launch_as(&self, name: &str, grid: [u32; 3], block: [u32; 3], params: &[Param]) {
        self.tried.borrow_mut().insert(name.to_string());
        assert_eq!(self.card.try_launch(name, grid, block, 0, params), 0, "{name}");
    }

    /// Uploads values `offset` elements into an allocation that ends with them.
    fn upload<T: Element>(&self, values: &[T], offset: usize) -> u64 {
        let padded: Vec<T> = (0..offset).map(|_| T::of(f64::NAN)).chain(values.iter().copied()).collect();
        self.card.upload(&padded, 0) + (offset * size_of::<T>()) as u64
    }

    fn empty<T>(&self, count: usize) -> u64 {
        self.card.alloc((count * size_of::<T>()).max(1), 0)
    }

    fn download<T: Element>(&self, at: u64, count: usize) -> Vec<T> {
        self.card.download(at, count, 0)
    }

    /// Compares device results with the definition, within `units` ulps.
    #[track_caller]
    fn expect<T: Element>(&self, what: &str, at: u64, expected: &[f64], units: f64) {
        self.expect_of_size::<T>(what, at, expected, T::LEAST, units);
    }

    /// Same, if intermediate results of magnitude `size` may cancel.
    #[track_caller]
    fn expect_of_size<T: Element>(&self, what: &str, at: u64, expected: &[f64], size: f64, units: f64) {
        let got = self.download::<T>(at, expected.len());
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let rounded = T::of(*expected).value();
            let allowed = units * T::UNIT * expected.abs().max(size);
            let close = (got.value() - rounded).abs() <= allowed || got.value() == rounded;
            assert!(
                close || (got.value().is_nan() && rounded.is_nan()),
                "{what}, {i}: {} for {rounded}",
                got.value()
            );
        }
    }
}

#[test]
fn every_kernel_that_palimpsest_launches_does_what_it_is_named_for() {
    let Some(folders) = modules() else { return };
    let mut candle = Candle::of(folders);
    elementwise::check(&mut candle);
    index::check(&mut candle);
    reduce::check(&mut candle);
    quantised::check(&mut candle);
    own::check(&mut candle);
    delta::check(&mut candle);
    attention::check(&mut candle);
    let tried = candle.tried.borrow();
    let missed: Vec<_> = include_str!("launched.txt").lines().filter(|name| !tried.contains(*name)).collect();
    assert!(missed.is_empty(), "launched by palimpsest and not tried here: {}", missed.join(" "));
}

#[test]
fn a_missing_fence_in_our_kernels_is_found() {
    let name = "a_missing_fence_in_our_kernels_is_found";
    let Some(folders) = modules() else { return };
    let body = || attention::rows_in_one_launch(&mut Candle::of(folders.clone()));
    for settings in [("REHEARSAL_RACES", "1"), ("REHEARSAL_ASYNC", "1")] {
        card::rehearse(name, &[settings], body).is_clean();
        let alter = ("REHEARSAL_ALTER", "rows_few: membar.gl; =>");
        card::rehearse(name, &[settings, alter], body).is_fault(&[
            "a race: warp",
            "rows_few",
            "device memory",
        ]);
    }
}
