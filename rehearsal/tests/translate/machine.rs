//! A minimal device that runs one block after the other: memory, threads, barriers and warp operations.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use rehearsal::abi::{Block, Kernel, PARAM_BYTES, Runtime, Seen, Thread, waits, warp_op};
use rehearsal::compile::{CompileError, kernel_with};

#[derive(Clone, Copy)]
pub struct Shape {
    pub blocks: u32,
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub dynamic: u32,
}

pub type Stopped = (String, String);

/// Final buffer contents.
type Answer = Result<Vec<Vec<u128>>, Stopped>;

thread_local! {
    /// Buffers of the launch: first address, one past the last.
    static BUFFERS: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<Option<Sender<Answer>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn access(
    _: *mut Thread,
    address: u64,
    bytes: u32,
    _: i32,
    at: *const c_char,
    seen: *mut Seen,
) {
    let found = BUFFERS.with_borrow(|all| {
        all.iter()
            .copied()
            .find(|(from, to)| *from <= address && address < *to && *to - address >= u64::from(bytes))
    });
    match found {
        Some((from, to)) => unsafe { *seen = Seen { from, to } },
        None => unsafe { stop(c"outside of every buffer".as_ptr(), at) },
    }
}

/// The kernel must not continue: its thread reports to the test and sleeps forever.
unsafe extern "C" fn stop(what: *const c_char, at: *const c_char) -> ! {
    let [what, at] = [what, at].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    ANSWER.with_borrow(|answer| answer.as_ref().expect("a launch").send(Err((what, at))).expect("a test"));
    loop {
        std::thread::park();
    }
}

unsafe extern "C" fn note(_: *mut Thread, _: u64, _: u32, _: i32, _: *const c_char) {}

static RUNTIME: Runtime = Runtime { access, note, stop };

pub fn kernel(ptx: &str) -> &'static Kernel {
    let name = ptx.split(".entry").nth(1).expect("an entry").trim_start();
    let name = &name[..name.find(['(', ' ', '\n']).expect("its end")];
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    kernel_in(&cache, ptx, name).unwrap_or_else(|error| panic!("{error}"))
}

pub fn kernel_in(cache: &Path, ptx: &str, name: &str) -> Result<&'static Kernel, CompileError> {
    kernel_with(&RUNTIME, ptx, name, cache)
}

/// Runs the first kernel of a module; its parameters are the addresses of the buffers of 32-bit words.
pub fn launch(ptx: &str, shape: Shape, buffers: &mut [Vec<u32>]) -> Result<(), Stopped> {
    let kernel = kernel(ptx);
    assert_eq!(kernel.params as usize, buffers.len(), "a buffer a parameter");
    let copies: Vec<Vec<u128>> = buffers
        .iter()
        .map(|words| {
            let word = |index: usize| u128::from(words.get(index).copied().unwrap_or(0));
            (0..words.len().div_ceil(4))
                .map(|at| (0..4).fold(0, |sum, i| sum | word(4 * at + i) << (32 * i)))
                .collect()
        })
        .collect();
    let sizes: Vec<usize> = buffers.iter().map(|words| words.len() * 4).collect();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut copies = copies;
        let mut params = vec![0_u128; PARAM_BYTES / 16];
        let bounds: Vec<(u64, u64)> = copies
            .iter_mut()
            .zip(sizes)
            .map(|(copy, bytes)| (copy.as_mut_ptr() as u64, copy.as_mut_ptr() as u64 + bytes as u64))
            .collect();
        for (index, (from, _)) in bounds.iter().enumerate() {
            let at = unsafe { *kernel.param_at.add(index) };
            unsafe { params.as_mut_ptr().byte_add(at as usize).cast::<u64>().write(*from) };
        }
        BUFFERS.set(bounds);
        ANSWER.set(Some(sender.clone()));
        for block in 0..shape.blocks {
            run_block(kernel, shape, block, params.as_mut_ptr().cast());
        }
        let _ = sender.send(Ok(copies));
    });
    let copies = receiver.recv().expect("an answer")?;
    for (words, copy) in buffers.iter_mut().zip(copies) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = (copy[index / 4] >> (32 * (index % 4))) as u32;
        }
    }
    Ok(())
}

fn run_block(kernel: &Kernel, shape: Shape, number: u32, params: *mut u8) {
    let shared_bytes = kernel.shared_static + shape.dynamic;
    let mut shared = vec![u128::MAX; shared_bytes.div_ceil(16) as usize];
    let mut seen = vec![Seen::default(); kernel.accesses as usize];
    let mut block = Block {
        params,
        shared: shared.as_mut_ptr().cast(),
        shared_bytes,
        shared_static: kernel.shared_static,
        ntid: [shape.threads, 1, 1],
        nctaid: [shape.blocks, 1, 1],
        ctaid: [number, 0, 0],
        seen: seen.as_mut_ptr(),
        traces: std::ptr::null_mut(),
        barriers: 1,
        uses: std::ptr::null_mut(),
        generic: std::ptr::null_mut(),
    };
    let stride = kernel.thread_bytes.div_ceil(16) as usize;
    let mut states = vec![0_u128; stride * shape.threads as usize];
    let mut locals = vec![0_u128; (kernel.local_bytes.div_ceil(16) * shape.threads) as usize];
    let mut threads: Vec<&mut Thread> = Vec::new();
    for linear in 0..shape.threads {
        let thread = unsafe { states.as_mut_ptr().add(stride * linear as usize).cast::<Thread>() };
        let local = locals.as_mut_ptr().wrapping_add((kernel.local_bytes.div_ceil(16) * linear) as usize);
        unsafe {
            (*thread).block = &raw mut block;
            (*thread).local = local.cast();
            (*thread).local_bytes = kernel.local_bytes;
            (*thread).tid = [linear, 0, 0];
            (*thread).linear = linear;
            threads.push(&mut *thread);
        }
    }
    loop {
        for thread in &mut threads {
            if thread.waits == waits::RUNS {
                thread.waits = unsafe { (kernel.run)(*thread) };
            }
        }
        if threads.iter().all(|thread| thread.waits == waits::DONE) {
            return;
        }
        let mut moved = false;
        for warp in threads.chunks_mut(32) {
            if warp.iter().any(|thread| thread.waits == waits::AT_WARP_OP) {
                warp_operation(warp);
                moved = true;
            }
        }
        if !moved {
            for thread in &mut threads {
                if thread.waits == waits::AT_BARRIER {
                    thread.waits = waits::RUNS;
                }
            }
        }
    }
}

/// Exchanges values of lanes waiting for a warp operation, as the manual describes `shfl`, `vote` and `redux`.
fn warp_operation(warp: &mut [&mut Thread]) {
    let here: Vec<usize> = (0..warp.len()).filter(|&lane| warp[lane].waits == waits::AT_WARP_OP).collect();
    let values: Vec<u32> = warp.iter().map(|thread| thread.value).collect();
    let ballot = here.iter().fold(0, |sum, &lane| sum | u32::from(values[lane] != 0) << lane);
    let all = here.iter().fold(0, |sum, &lane| sum | 1_u32 << lane);
    for &lane in &here {
        let thread = &mut *warp[lane];
        assert_eq!(thread.mask & !all, 0, "a lane of the mask is missing");
        let (own, by, clamp) = (lane as u32, thread.lane & 31, thread.clamp & 31);
        let segment = thread.clamp >> 8 & 31;
        let (first, last) = (own & segment, (own & segment) | (clamp & !segment));
        let (source, inside) = match thread.op {
            warp_op::SHFL_UP => (own.wrapping_sub(by), own as i32 - by as i32 >= last as i32),
            warp_op::SHFL_DOWN => (own + by, own + by <= last),
            warp_op::SHFL_BFLY => (own ^ by, own ^ by <= last),
            _ => (first | (by & !segment), first | (by & !segment) <= last),
        };
        let mine = here.iter().map(|&lane| values[lane]);
        match thread.op {
            warp_op::SHFL_UP..=warp_op::SHFL_IDX => {
                thread.result = values[if inside { source as usize } else { lane }];
                thread.predicate = i32::from(inside);
            }
            warp_op::VOTE_ALL => thread.predicate = i32::from(ballot == all),
            warp_op::VOTE_ANY => thread.predicate = i32::from(ballot != 0),
            warp_op::VOTE_BALLOT => thread.result = ballot,
            warp_op::REDUX_ADD => thread.result = mine.fold(0, u32::wrapping_add),
            warp_op::REDUX_MIN => {
                thread.result = mine.map(|value| value as i32).min().expect("a lane") as u32
            }
            warp_op::REDUX_UMAX => thread.result = mine.max().expect("a lane"),
            warp_op::WARP_SYNC => {}
            op => panic!("warp operation {op}"),
        }
        thread.waits = waits::RUNS;
    }
}
