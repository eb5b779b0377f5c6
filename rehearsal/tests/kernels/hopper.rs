//! palimpsest's prefill kernel for Hopper (`crates/core/src/attention/backends/cuda/hopper.cu`), against the definition of attention. Cards
//! of other architectures refuse its module, so each test runs in its own process on a card of compute capability 9.0.

use half::{bf16, f16};

use crate::attention::{Case, Launched, cases, prefill, prefills_alone};
use crate::card::rehearse;
use crate::element::Element;
use crate::{Candle, modules};

const HOPPER: (&str, &str) = ("REHEARSAL_COMPUTE_CAP", "9.0");
/// Head width and keys of a block.
const KERNELS: [(usize, usize); 3] = [(64, 128), (128, 128), (256, 64)];
/// Queries and threads of a block.
const QUERIES: usize = 128;
const THREADS: usize = 256;

impl Launched {
    fn hopper<T: Element>((width, keys): (usize, usize)) -> Self {
        let name = format!("attention_hopper_{}_{width}", T::NAME);
        let shared = (1024 + 2 * width * (QUERIES + 4 * keys)) as u32;
        Launched { name, threads: THREADS, queries: QUERIES, shared }
    }

    /// The kernel of the smallest width that fits.
    fn of<T: Element>(case: &Case) -> Self {
        let fits = |(width, _): &&(usize, usize)| case.d <= *width;
        Self::hopper::<T>(*KERNELS.iter().find(fits).expect("no head is wider"))
    }
}

fn load<T: Element>(candle: &mut Candle) {
    let names = KERNELS.map(|kernel| Launched::hopper::<T>(kernel).name);
    candle.load("hopper", &names.each_ref().map(String::as_str));
}

/// Several blocks of keys and of queries: whole ones, ragged ones, and windows that begin within them.
fn more() -> Vec<Case> {
    vec![
        Case::new(2, 1, 64, 256, 256),
        Case::new(2, 2, 64, 131, 509).windowed(300, 0).with_sinks(),
        Case::new(1, 1, 128, 1, 128),
        Case::new(2, 2, 128, 129, 383).capped(4.0),
        Case::new(1, 1, 8, 65, 0),
        Case::new(2, 2, 12, 130, 300).windowed(200, 40),
        Case::new(1, 1, 180, 70, 130),
        Case::new(2, 1, 200, 140, 120).windowed(70, 51),
        Case::new(1, 1, 256, 128, 0),
    ]
}

fn holds<T: Element>(candle: &mut Candle) {
    load::<T>(candle);
    let mut most = 0.0_f64;
    for case in cases().into_iter().chain(more()) {
        most = most.max(prefill::<T>(candle, &case, &Launched::of::<T>(&case)));
    }
    println!("{}: {most:.2e} from the definition at most", T::NAME);
    prefills_alone::<T>(candle, &Launched::hopper::<T>(KERNELS[0]));
}

#[test]
fn prefill_by_warpgroup_products_is_attention() {
    let Some(folders) = modules() else { return };
    rehearse("hopper::prefill_by_warpgroup_products_is_attention", &[HOPPER], || {
        let mut candle = Candle::of(folders);
        holds::<f16>(&mut candle);
        holds::<bf16>(&mut candle);
    })
    .is_clean();
}

/// A short case of each width, with races looked for.
fn short(folders: Vec<std::path::PathBuf>) {
    let mut candle = Candle::of(folders);
    load::<bf16>(&mut candle);
    for d in [64, 128, 256] {
        let case = Case::new(1, 1, d, 40, 280);
        prefill::<bf16>(&candle, &case, &Launched::of::<bf16>(&case));
    }
}

const RACES: (&str, &str) = ("REHEARSAL_RACES", "1");

#[test]
fn no_race_is_in_them() {
    let Some(folders) = modules() else { return };
    rehearse("hopper::no_race_is_in_them", &[HOPPER, RACES], || short(folders)).is_clean();
}

/// Expects a fault of a kernel that is compiled with another text.
fn altered(test: &str, alter: &str, parts: &[&str]) {
    let Some(folders) = modules() else { return };
    let settings = [HOPPER, RACES, ("REHEARSAL_ALTER", alter)];
    rehearse(&format!("hopper::{test}"), &settings, || short(folders)).is_fault(parts);
}

#[test]
fn a_missing_proxy_fence_in_them_is_found() {
    let alter = "attention_hopper_bf16_64: fence.proxy.async.shared::cta; =>";
    let parts = ["no fence.proxy.async of that thread comes between", "attention_hopper_bf16_64"];
    altered("a_missing_proxy_fence_in_them_is_found", alter, &parts);
}

#[test]
fn a_missing_wait_in_them_is_found() {
    let alter = "attention_hopper_bf16_128: wgmma.wait_group.sync.aligned 1; =>";
    let parts = ["is used before the wgmma.wait_group", "attention_hopper_bf16_128"];
    altered("a_missing_wait_in_them_is_found", alter, &parts);
}

#[test]
fn a_missing_barrier_in_them_is_found() {
    let alter = "attention_hopper_bf16_64: bar.sync \t0; =>";
    altered("a_missing_barrier_in_them_is_found", alter, &["a race: ", "attention_hopper_bf16_64"]);
}
