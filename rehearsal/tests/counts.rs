//! Counters, injected failures and settings, as a program and its environment see them.

mod card;

use std::ffi::c_void;

use card::*;

fn report(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("rehearsal-{name}-{}.json", std::process::id()))
}

/// A value of the report, by its line and field name. The report has one field per line.
fn number(json: &str, line: &str, name: &str) -> u64 {
    let line = json.lines().find(|text| text.trim_start().starts_with(&format!("\"{line}\":"))).unwrap_or("");
    let after = line.split(&format!("\"{name}\": ")).nth(1).unwrap_or("");
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no {name} in {line:?} of {json}"))
}

#[test]
fn everything_is_counted() {
    let path = report("counted");
    let end = rehearse("everything_is_counted", &[("REHEARSAL_REPORT", path.to_str().unwrap())], || {
        let card = Card::new(0);
        let first = card.upload(&[1_u8; 1000], 0);
        let second = card.upload(&[1_u8; 24], 0);
        // SAFETY: no host pointers except those of live values.
        unsafe {
            ok(cuMemcpyDtoDAsync_v2(first, second, 24, 0));
            ok(cuMemsetD8Async(first, 0, 10, 0));
            let handle = made(|to| cublasCreate_v2(to));
            let at = card.upload(&[1.0_f32; 12], 0);
            ok(cublasSgemm_v2(handle, 0, 0, 2, 2, 3, &1.0, at, 2, at, 3, &0.0, at + 24, 2));
        }
        card.download::<u8>(first, 7, 0);
        card.free(second, 0);
        card.free(first, 0);
        card.synchronise(0);
        let event = card.event();
        card.record(event, 0);
        card.wait(2, event);
    });
    end.is_clean();
    let json = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let of = |line, name| number(&json, line, name);
    assert_eq!((of("copies", "to_device\": {\"calls"), of("copies", "to_host\": {\"calls")), (3, 1));
    assert!(json.contains("\"to_device\": {\"calls\": 3, \"bytes\": 1072}"), "{json}");
    assert!(json.contains("\"to_host\": {\"calls\": 1, \"bytes\": 7}"), "{json}");
    assert!(json.contains("\"on_device\": {\"calls\": 1, \"bytes\": 24}"), "{json}");
    assert!(json.contains("\"fills\": {\"calls\": 1, \"bytes\": 10}"), "{json}");
    assert!(json.contains("\"gemm f32\": {\"calls\": 1, \"flops\": 24"), "{json}");
    // 1000 bytes take two granules of 512; 24 and 48 bytes take one each.
    assert_eq!((of("devices", "peak_bytes"), of("devices", "peak_asked_bytes")), (2048, 1072));
    assert_eq!((of("devices", "live_bytes"), of("devices", "allocations")), (48, 3));
    assert_eq!((of("synchronisations", "synchronisations"), of("event_records", "event_records")), (1, 1));
    assert_eq!((of("event_waits", "event_waits"), of("calls", "cuMemFreeAsync")), (1, 2));
}

#[test]
fn a_call_can_be_made_to_fail_and_some_failures_last() {
    let plan = [(
        "REHEARSAL_FAIL",
        "cuMemAllocAsync:2,cuStreamSynchronize:1=CUDA_ERROR_LAUNCH_FAILED,cuMemAlloc_v2:1",
    )];
    let end = rehearse("a_call_can_be_made_to_fail_and_some_failures_last", &plan, || {
        let card = Card::new(0);
        let at = card.alloc(8, 0);
        let mut other = 0;
        // SAFETY: the pointers are those of live values.
        unsafe {
            assert_eq!(cuMemAllocAsync(&raw mut other, 8, 0), OUT_OF_MEMORY);
            ok(cuMemAllocAsync(&raw mut other, 8, 0));
            assert_eq!(cuStreamSynchronize(0), LAUNCH_FAILED);
            // The device is lost: every later call returns this error, cuBLAS its own.
            assert_eq!(cuStreamSynchronize(0), LAUNCH_FAILED);
            assert_eq!(cuMemFreeAsync(at, 0), LAUNCH_FAILED);
            let mut handle = 0;
            assert_eq!(cublasCreate_v2(&raw mut handle), 13);
        }
    });
    // An unused plan is reported, so that a failure test cannot pass without failing anything.
    end.says(&["cuMemAlloc_v2:1 was never called so often"]);
}

#[test]
fn stand_ins_are_launched_like_kernels() {
    #[repr(C)]
    struct Job {
        to: *mut u32,
        value: u32,
    }
    unsafe extern "C" fn work(job: *mut c_void) {
        // SAFETY: the job below, or a copy of it.
        unsafe {
            let job = &*job.cast::<Job>();
            job.to.write(job.value);
        }
    }
    let enqueue = |to: u64, bytes: usize, stream: usize| {
        let mut job = Job { to: to as *mut u32, value: 42 };
        let uses = Use { at: to as *const c_void, bytes, write: 1 };
        // SAFETY: all pointers are those of live values.
        unsafe {
            let job = &raw mut job;
            ok(rehearsal_enqueue(stream, work, job.cast(), size_of::<Job>(), &uses, 1, c"plain".as_ptr()));
            (*job).value = 0;
        }
    };
    let path = report("standin");
    let settings = [("REHEARSAL_REPORT", path.to_str().unwrap()), ("REHEARSAL_ASYNC", "1")];
    let end = rehearse("stand_ins_are_launched_like_kernels", &settings, || {
        let card = Card::new(0);
        let to = card.alloc(4, 0);
        enqueue(to, 4, 0);
        assert_eq!(card.download::<u32>(to, 1, 0), [42], "the data was copied at the call");
        // SAFETY: handles only.
        unsafe { ok(cuCtxSynchronize()) };
    });
    end.is_clean();
    let json = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(json.contains("\"plain\": {\"calls\": 1"), "{json}");
}

#[test]
fn a_stand_in_that_reaches_too_far_is_found() {
    unsafe extern "C" fn work(_: *mut c_void) {}
    let end = rehearse("a_stand_in_that_reaches_too_far_is_found", &[], || {
        let at = Card::new(0).alloc(4, 0);
        let uses = Use { at: at as *const c_void, bytes: 8, write: 0 };
        // SAFETY: all pointers are those of live values.
        unsafe { rehearsal_enqueue(0, work, std::ptr::null_mut(), 0, &uses, 1, c"plain".as_ptr()) };
    });
    end.is_fault(&["kernel plain reads 8 bytes", "4 more than the allocation of 4 bytes"]);
}

#[test]
fn without_arithmetic_memory_is_counted_and_not_used() {
    let path = report("counted-only");
    let settings = [
        ("REHEARSAL_ARITHMETIC", "off"),
        ("REHEARSAL_MEMORY", "1TiB"),
        ("REHEARSAL_REPORT", path.to_str().unwrap()),
    ];
    let end = rehearse("without_arithmetic_memory_is_counted_and_not_used", &settings, || {
        let card = Card::new(0);
        let all: Vec<u64> = (0..6).map(|_| card.alloc(100 << 30, 0)).collect();
        // SAFETY: no host pointers.
        unsafe { ok(cuMemsetD8Async(all[0], 1, 100 << 30, 0)) };
        assert_eq!(card.download::<u8>(all[5], 16, 0), [0; 16]);
        card.free(all[0], 0);
        card.alloc(1 << 30, 0);
    });
    end.is_clean();
    let json = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(number(&json, "devices", "peak_bytes"), 600 << 30);
    assert_eq!(number(&json, "devices", "live_bytes"), 501 << 30);
}

#[test]
fn a_wrong_setting_ends_the_program_before_it_begins() {
    for (name, value) in
        [("REHEARSAL_MEMORY", "lots"), ("REHEARSAL_FAIL", "cuInit"), ("REHEARSAL_ASNYC", "1")]
    {
        let end = rehearse("a_wrong_setting_ends_the_program_before_it_begins", &[(name, value)], || {
            Card::new(0);
            std::process::exit(3);
        });
        assert_eq!(end.status, Some(2), "{name}: {}", end.stderr);
        assert!(end.stderr.contains(name), "{}", end.stderr);
    }
}
