//! Warp operations: shuffles, votes, reductions, matrix products. Called when lanes of a warp wait for one.

use std::ffi::CStr;

use super::{RUNNING, matrix, stop_kernel};
use crate::abi::{Thread, waits, warp_op};

pub const WARP: usize = 32;

fn lanes_of(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(lane)
    })
}

/// Runs one operation for each group of lanes that waits for it, once all lanes of its mask do; finished lanes are not waited for. Returns
/// true if any ran.
pub fn exchange(warp: &[*mut Thread], waiting: &mut [i32]) -> bool {
    let those = |what: i32| {
        (0..warp.len()).filter(|lane| waiting[*lane] == what).fold(0, |bits, lane| bits | 1 << lane)
    };
    let (mut left, ended): (u32, u32) = (those(waits::AT_WARP_OP), those(waits::DONE));
    let there = u32::MAX >> (WARP - warp.len());
    let mut any = false;
    while left != 0 {
        let first = left.trailing_zeros() as usize;
        // SAFETY: threads of a block live as long as it runs, and only its worker touches them.
        let thread = |lane: usize| unsafe { &*warp[lane] };
        let (op, mask, at) = (thread(first).op, thread(first).mask, thread(first).at);
        let asks = op == warp_op::ACTIVE_MASK;
        let aligned = matches!(op, warp_op::MMA | warp_op::LDMATRIX);
        let same = |lane: &usize| {
            thread(*lane).op == op
                && (asks || thread(*lane).mask == mask)
                && (!(asks || aligned) || thread(*lane).at == at)
        };
        if aligned && there & !ended != u32::MAX {
            let lane = (there & !ended).trailing_ones();
            stop_lane(
                warp[first],
                &format!(
                    "lane {lane} takes no part, and all 32 of the warp must: it has ended, or never was"
                ),
            );
        }
        let together = lanes_of(left).filter(same).fold(0, |bits, lane| bits | 1 << lane);
        left &= !together;
        if asks || mask & there & !ended & !together == 0 {
            if !asks && together & !mask != 0 {
                let lane = (together & !mask).trailing_zeros() as usize;
                stop_lane(warp[lane], &format!("lane {lane} is not in its own mask {mask:#010x}"));
            }
            match op {
                // SAFETY: all threads of a whole warp, at one instruction, which checked the rows.
                warp_op::MMA => unsafe { matrix::multiply(warp) },
                // SAFETY: as above.
                warp_op::LDMATRIX => unsafe { matrix::load(warp) },
                _ => give_results(warp, together, op),
            }
            lanes_of(together).for_each(|lane| waiting[lane] = waits::RUNS);
            any = true;
        }
    }
    any
}

fn stop_lane(thread: *const Thread, why: &str) -> ! {
    RUNNING.set(thread);
    // SAFETY: the thread is live, and `at` is a literal of the kernel.
    let at = unsafe { CStr::from_ptr((*thread).at) }.to_string_lossy();
    stop_kernel(why, &at)
}

fn give_results(warp: &[*mut Thread], here: u32, op: i32) {
    let mut values = [0; WARP];
    for lane in lanes_of(here) {
        // SAFETY: as in `exchange`.
        values[lane] = unsafe { (*warp[lane]).value };
    }
    let ballot = lanes_of(here).filter(|lane| values[*lane] != 0).fold(0, |bits, lane| bits | 1u32 << lane);
    let reduced = lanes_of(here).map(|lane| values[lane]).reduce(|a, b| reduce(op, a, b)).unwrap_or(0);
    for lane in lanes_of(here) {
        // SAFETY: as in `exchange`; no other reference to it is alive.
        let thread = unsafe { &mut *warp[lane] };
        match op {
            warp_op::SHFL_UP | warp_op::SHFL_DOWN | warp_op::SHFL_BFLY | warp_op::SHFL_IDX => {
                let (source, inside) = shuffle_source(op, lane as u32, thread.lane, thread.clamp);
                if here >> source & 1 == 0 {
                    stop_lane(
                        thread,
                        &format!("lane {lane} shuffles from lane {source}, which takes no part"),
                    );
                }
                thread.predicate = i32::from(inside);
                thread.result = values[source as usize];
            }
            warp_op::VOTE_ALL => thread.predicate = i32::from(ballot == here),
            warp_op::VOTE_ANY => thread.predicate = i32::from(ballot != 0),
            warp_op::VOTE_UNI => thread.predicate = i32::from(ballot == here || ballot == 0),
            warp_op::VOTE_BALLOT => thread.result = ballot,
            warp_op::ACTIVE_MASK => thread.result = here,
            warp_op::WARP_SYNC => {}
            _ => thread.result = reduced,
        }
    }
}

fn reduce(op: i32, a: u32, b: u32) -> u32 {
    let signed = |a: u32| a as i32;
    match op {
        warp_op::REDUX_ADD => a.wrapping_add(b),
        warp_op::REDUX_MIN => signed(a).min(signed(b)) as u32,
        warp_op::REDUX_MAX => signed(a).max(signed(b)) as u32,
        warp_op::REDUX_UMIN => a.min(b),
        warp_op::REDUX_UMAX => a.max(b),
        warp_op::REDUX_AND => a & b,
        warp_op::REDUX_OR => a | b,
        warp_op::REDUX_XOR => a ^ b,
        _ => 0,
    }
}

/// Source lane of a shuffle, and whether it lies in the lane's segment; otherwise the lane keeps its own value. PTX packs the clamp into
/// bits 0-4 of `clamp` and the segment mask into bits 8-12.
fn shuffle_source(op: i32, lane: u32, distance: u32, clamp: u32) -> (u32, bool) {
    let (distance, clamp, segment) = (distance & 31, clamp & 31, clamp >> 8 & 31);
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    let (source, inside) = match op {
        warp_op::SHFL_UP => (lane.wrapping_sub(distance), lane as i32 - distance as i32 >= last as i32),
        warp_op::SHFL_DOWN => (lane + distance, lane + distance <= last),
        warp_op::SHFL_BFLY => (lane ^ distance, lane ^ distance <= last),
        _ => (first | distance & !segment, first | distance & !segment <= last),
    };
    if inside { (source, true) } else { (lane, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segments() {
        // Down by 4 in the whole warp (clamp 31) and in segments of 8 (mask 0b11000, clamp 7 within the segment).
        assert_eq!(shuffle_source(warp_op::SHFL_DOWN, 3, 4, 31), (7, true));
        assert_eq!(shuffle_source(warp_op::SHFL_DOWN, 30, 4, 31), (30, false));
        assert_eq!(shuffle_source(warp_op::SHFL_DOWN, 6, 4, 0b11000 << 8 | 31), (6, false));
        assert_eq!(shuffle_source(warp_op::SHFL_UP, 9, 1, 0), (8, true));
        assert_eq!(shuffle_source(warp_op::SHFL_UP, 0, 1, 0), (0, false));
        assert_eq!(shuffle_source(warp_op::SHFL_BFLY, 5, 16, 31), (21, true));
        assert_eq!(shuffle_source(warp_op::SHFL_IDX, 13, 2, 0b11000 << 8 | 31), (10, true));
    }
}
