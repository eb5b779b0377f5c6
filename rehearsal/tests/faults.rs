//! Planted faults that a GPU lets pass or reports unhelpfully: the rehearsal finds them and says what and where. Beside each is the same
//! program without the fault, which must pass.

mod card;

use card::*;

/// Small kernels. `copy`: `to[i] = from[i]` for i below n. `half_barrier`: only even threads reach the barrier.
const PTX: &str = r"
.version 7.0
.target sm_80
.address_size 64

.visible .entry copy(.param .u64 to, .param .u64 from, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd4, %rd5;
    ld.global.f32 %f1, [%rd6];
    add.s64 %rd7, %rd3, %rd5;
    st.global.f32 [%rd7], %f1;
DONE:
    ret;
}

.visible .entry half_barrier()
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 1;
    setp.eq.s32 %p1, %r2, 1;
    @%p1 bra ODD;
    bar.sync 0;
ODD:
    shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
    ret;
}
";

fn card(number: i32) -> Card {
    let mut card = Card::new(number);
    card.load(PTX, &["copy", "half_barrier"]);
    card
}

const TWO: (&str, &str) = ("REHEARSAL_DEVICES", "2");
const ASYNC: (&str, &str) = ("REHEARSAL_ASYNC", "1");

#[test]
fn a_correct_program_passes() {
    for (number, settings) in [&[][..], &[ASYNC], &[TWO, ASYNC]].into_iter().enumerate() {
        let end = rehearse("a_correct_program_passes", settings, || {
            let card = card(0);
            let from = card.upload(&[1.0_f32, 2.0, 3.0], 2);
            let to = card.alloc(12, 2);
            card.launch("copy", 1, 32, 2, params_of![to, from, 3_u32]);
            assert_eq!(card.download::<f32>(to, 3, 2), [1.0, 2.0, 3.0]);
            card.free(from, 2);
            card.free(to, 2);
        });
        assert_eq!(end.status, Some(0), "{number}: {}", end.stderr);
        end.is_clean();
    }
}

#[test]
fn a_read_one_past_the_end_is_found() {
    let end = rehearse("a_read_one_past_the_end_is_found", &[], || {
        let card = card(0);
        let (from, to) = (card.upload(&[1.0_f32; 7], 0), card.alloc(64, 0));
        card.launch("copy", 1, 32, 0, params_of![to, from, 8_u32]);
    });
    end.is_fault(&[
        "kernel copy reads 4 bytes",
        "0 bytes past the end of an allocation of 28 bytes",
        "ld.global.f32",
    ]);
    end.is_fault(&["block [0, 0, 0], thread [7, 0, 0]"]);
}

#[test]
fn a_write_one_past_the_end_is_found() {
    let end = rehearse("a_write_one_past_the_end_is_found", &[], || {
        let card = card(0);
        let (from, to) = (card.upload(&[1.0_f32; 8], 0), card.alloc(28, 0));
        card.launch("copy", 1, 32, 0, params_of![to, from, 8_u32]);
    });
    end.is_fault(&[
        "kernel copy writes 4 bytes",
        "0 bytes past the end of an allocation of 28 bytes",
        "st.global.f32",
    ]);
}

#[test]
fn the_allocation_behind_is_not_reached_by_accident() {
    for bytes in ["512", "65536", "1048576"] {
        // The size reaches the process through an otherwise unused setting.
        let size: usize = bytes.parse().unwrap_or_default();
        let cap = format!("{size}.0");
        let settings = [("REHEARSAL_COMPUTE_CAP", cap.as_str())];
        let end = rehearse("the_allocation_behind_is_not_reached_by_accident", &settings, || {
            let cap = std::env::var("REHEARSAL_COMPUTE_CAP").unwrap_or_default();
            let size: usize = cap.trim_end_matches(".0").parse().unwrap_or_default();
            let card = card(0);
            let (from, to) = (card.alloc(size, 0), card.alloc(size + 4, 0));
            card.alloc(size, 0);
            card.launch(
                "copy",
                (size / 4 + 1).div_ceil(128) as u32,
                128,
                0,
                params_of![to, from, size as u32 / 4 + 1],
            );
        });
        end.is_fault(&[
            "kernel copy reads 4 bytes",
            "0 bytes past the end",
            &format!("allocation of {bytes} bytes"),
        ]);
    }
}

#[test]
fn many_blocks_are_shared_by_threads_of_the_host() {
    const COUNT: usize = 100_003;
    for (threads, faulty) in [("1", false), ("4", false), ("3", true)] {
        let name = "many_blocks_are_shared_by_threads_of_the_host";
        let end = rehearse(name, &[("REHEARSAL_THREADS", threads)], || {
            let past = usize::from(std::env::var("REHEARSAL_THREADS").is_ok_and(|threads| threads == "3"));
            let card = card(0);
            let values: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
            let (from, to) = (card.upload(&values, 0), card.alloc(4 * COUNT + 4, 0));
            let count = (COUNT + past) as u32;
            card.launch("copy", count.div_ceil(64), 64, 0, params_of![to, from, count]);
            assert_eq!(card.download::<f32>(to, COUNT, 0), values);
        });
        if faulty {
            end.is_fault(&[
                "kernel copy reads 4 bytes",
                "0 bytes past the end of an allocation of 400012 bytes",
            ]);
        } else {
            end.is_clean();
        }
    }
}

#[test]
fn a_misaligned_access_and_a_null_pointer_are_found() {
    let name = "a_misaligned_access_and_a_null_pointer_are_found";
    // An otherwise unused setting selects the case in the process.
    for (threads, part) in [("1", "misaligned"), ("2", "neither device memory nor the block's own")] {
        let end = rehearse(name, &[("REHEARSAL_THREADS", threads)], || {
            let misaligned = std::env::var("REHEARSAL_THREADS").is_ok_and(|threads| threads == "1");
            let card = card(0);
            let to = card.alloc(64, 0);
            card.launch("copy", 1, 1, 0, params_of![to, if misaligned { to + 2 } else { 0 }, 1_u32]);
        });
        end.is_fault(&["kernel copy", "4 bytes", part, "ld.global.f32"]);
    }
}

#[test]
fn a_copy_past_the_end_is_found() {
    let end = rehearse("a_copy_past_the_end_is_found", &[], || {
        let card = card(0);
        let at = card.alloc(28, 0);
        card.download::<f32>(at, 8, 0);
    });
    end.is_fault(&["cuMemcpyDtoHAsync reads 32 bytes", "4 more than the allocation of 28 bytes"]);
}

#[test]
fn use_after_free_is_found() {
    for settings in [&[][..], &[ASYNC]] {
        let end = rehearse("use_after_free_is_found", settings, || {
            let card = card(0);
            let (from, to) = (card.upload(&[1.0_f32; 8], 0), card.alloc(32, 0));
            card.free(from, 0);
            card.alloc(32, 0);
            card.launch("copy", 1, 8, 0, params_of![to, from, 8_u32]);
            card.synchronise(0);
        });
        end.is_fault(&[
            "kernel copy reads 4 bytes",
            "allocation of 32 bytes on device 0",
            "freed by cuMemFreeAsync",
        ]);
    }
}

#[test]
fn a_second_free_is_found() {
    let end = rehearse("a_second_free_is_found", &[], || {
        let card = card(0);
        let at = card.alloc(32, 0);
        card.free(at, 0);
        card.free(at, 0);
    });
    end.is_fault(&["cuMemFreeAsync frees", "was freed by cuMemFreeAsync"]);
}

#[test]
fn memory_that_nobody_wrote_is_nan() {
    let end = rehearse("memory_that_nobody_wrote_is_nan", &[], || {
        let card = card(0);
        let (from, to) = (card.alloc(4096, 0), card.upload(&[0.0_f32; 4], 0));
        card.launch("copy", 1, 4, 0, params_of![to, from, 3_u32]);
        let values = card.download::<f32>(to, 4, 0);
        assert!(values[..3].iter().all(|value| value.is_nan()) && values[3] == 0.0, "{values:?}");
    });
    end.is_clean();
}

#[test]
fn a_pointer_of_the_other_card_is_found() {
    let end = rehearse("a_pointer_of_the_other_card_is_found", &[TWO], || {
        let one = card(1);
        let from = one.upload(&[1.0_f32; 8], 0);
        one.synchronise(0);
        let zero = card(0);
        let to = zero.alloc(32, 0);
        zero.launch("copy", 1, 8, 0, params_of![to, from, 8_u32]);
    });
    end.is_fault(&["kernel copy on device 0 reads 4 bytes of device 1"]);
}

#[test]
fn a_launch_in_the_wrong_context_is_refused() {
    let end = rehearse("a_launch_in_the_wrong_context_is_refused", &[TWO], || {
        let (zero, one) = (card(0), card(1));
        let (of_one, to) = (one.stream(NON_BLOCKING), one.upload(&[1.0_f32], 0));
        let launch =
            |card: &Card, stream| card.try_launch("copy", [1; 3], [1; 3], stream, params_of![to, to, 1_u32]);
        assert_eq!(launch(&zero, 0), INVALID_CONTEXT);
        zero.make_current();
        assert_eq!(launch(&zero, of_one), INVALID_HANDLE);
        let event = zero.event();
        // SAFETY: handles only.
        assert_eq!(unsafe { cuEventRecord(event, of_one) }, INVALID_HANDLE);
        // SAFETY: no context.
        unsafe { ok(cuCtxSetCurrent(0)) };
        assert_eq!(launch(&zero, 0), INVALID_CONTEXT);
    });
    end.says(&["kernel copy was loaded on device 0, and device 1 is current", "CUDA_ERROR_INVALID_CONTEXT"]);
    end.says(&["kernel copy on a stream of device 1", "CUDA_ERROR_INVALID_HANDLE"]);
    end.says(&["no context is current"]);
}

#[test]
fn empty_grids_and_large_blocks_are_refused() {
    let end = rehearse("empty_grids_and_large_blocks_are_refused", &[], || {
        let card = card(0);
        let at = card.upload(&[1.0_f32], 0);
        let params = params_of![at, at, 0_u32];
        for (grid, block) in [
            ([0, 1, 1], [32, 1, 1]),
            ([1, 1, 1], [0, 1, 1]),
            ([1, 1, 1], [1025, 1, 1]),
            ([1, 1, 1], [1, 1, 65]),
            ([1, 1, 1], [64, 32, 1]),
            ([1, 65536, 1], [1, 1, 1]),
        ] {
            assert_eq!(card.try_launch("copy", grid, block, 0, params), INVALID_VALUE, "{grid:?} {block:?}");
        }
        let much = [Param::from(at), Param::from(at), Param::from(0_u32), Param::shared(49_153)];
        assert_eq!(card.try_launch("copy", [1; 3], [1; 3], 0, &much), INVALID_VALUE);
        assert_eq!(card.try_launch("copy", [1; 3], [1024, 1, 1], 0, params), 0);
    });
    end.says(&["kernel copy with a grid of [0, 1, 1] blocks", "CUDA_ERROR_INVALID_VALUE"]);
}

#[test]
fn shared_memory_beyond_48_kib_is_asked_for_and_ends_with_the_card() {
    for (capability, most) in [("8.0", 166_912), ("8.6", 101_376), ("8.9", 101_376), ("9.0", 232_448)] {
        let name = "shared_memory_beyond_48_kib_is_asked_for_and_ends_with_the_card";
        let end = rehearse(name, &[("REHEARSAL_COMPUTE_CAP", capability)], || {
            let card = card(0);
            // SAFETY: the pointer is that of a live value.
            let most: i32 = unsafe { made(|to| cuDeviceGetAttribute(to, 97, 0)) };
            let launch = |bytes: i32| {
                let at = card.upload(&[1.0_f32], 0);
                let params =
                    [Param::from(at), Param::from(at), Param::from(0_u32), Param::shared(bytes as u32)];
                card.try_launch("copy", [1; 3], [1; 3], 0, &params)
            };
            assert_eq!(launch(49_152), 0);
            assert_eq!(launch(49_153), INVALID_VALUE);
            assert_eq!(card.try_shared("copy", most), 0);
            assert_eq!(launch(most), 0);
            assert_eq!(card.try_shared("copy", most + 1), INVALID_VALUE);
            assert_eq!(launch(most + 1), INVALID_VALUE);
        });
        end.says(&["a block of this card has at most", &most.to_string(), "CUDA_ERROR_INVALID_VALUE"]);
    }
}

#[test]
fn a_module_for_later_cards_is_refused() {
    let end = rehearse("a_module_for_later_cards_is_refused", &[("REHEARSAL_COMPUTE_CAP", "7.5")], || {
        let _context = Card::new(0);
        let text = std::ffi::CString::new(PTX).expect("PTX has no zero byte");
        let mut module = 0;
        // SAFETY: the pointers are those of live values.
        unsafe { assert_eq!(cuModuleLoadData(&raw mut module, text.as_ptr().cast()), NO_BINARY_FOR_GPU) };
    });
    end.says(&["the module is for sm_80 and later, and this card is of compute capability 7.5"]);
}

#[test]
fn allocations_of_nothing_are_refused_and_copies_of_nothing_are_not() {
    let end = rehearse("allocations_of_nothing_are_refused_and_copies_of_nothing_are_not", &[], || {
        let card = card(0);
        let mut at = 0;
        // SAFETY: the pointers are those of live values, and nothing is copied.
        unsafe {
            assert_eq!(cuMemAllocAsync(&raw mut at, 0, 0), INVALID_VALUE);
            assert_eq!(cuMemAlloc_v2(&raw mut at, 0), INVALID_VALUE);
            ok(cuMemcpyHtoDAsync_v2(0, std::ptr::null(), 0, 0));
            ok(cuMemcpyDtoHAsync_v2(std::ptr::null_mut(), 0, 0, 0));
            ok(cuMemcpyDtoDAsync_v2(0, 0, 0, 0));
            ok(cuMemsetD8Async(0, 1, 0, 0));
        }
        card.synchronise(0);
    });
    end.says(&["an allocation of 0 bytes", "CUDA_ERROR_INVALID_VALUE"]);
}

#[test]
fn memory_ends_where_it_is_told_to() {
    let end = rehearse("memory_ends_where_it_is_told_to", &[("REHEARSAL_MEMORY", "4096")], || {
        let card = card(0);
        let info = || {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the pointers are those of live values.
            unsafe { ok(cuMemGetInfo_v2(&raw mut free, &raw mut total)) };
            (free, total)
        };
        // A byte takes a granule of 512.
        let all: Vec<u64> = (0..8).map(|_| card.alloc(1, 0)).collect();
        assert_eq!(info(), (0, 4096));
        let mut at = 0;
        // SAFETY: as above.
        unsafe { assert_eq!(cuMemAllocAsync(&raw mut at, 1, 0), OUT_OF_MEMORY) };
        card.free(all[0], 0);
        card.free(all[1], 0);
        assert_eq!(info(), (1024, 4096));
        // SAFETY: as above.
        unsafe { assert_eq!(cuMemAllocAsync(&raw mut at, 1025, 0), OUT_OF_MEMORY) };
        card.alloc(1024, 0);
    });
    end.is_clean();
}

#[test]
fn a_barrier_that_not_all_reach_is_found() {
    let end = rehearse("a_barrier_that_not_all_reach_is_found", &[], || {
        card(0).launch("half_barrier", 1, 32, 0, &[]);
    });
    end.is_fault(&["kernel half_barrier", "of 32 threads 16 wait at a barrier"]);
}

#[test]
fn a_kernel_is_compiled_with_another_text_where_that_is_asked() {
    let name = "a_kernel_is_compiled_with_another_text_where_that_is_asked";
    let altered = |change: &str| {
        rehearse(name, &[("REHEARSAL_ALTER", change)], || {
            let card = card(0);
            let (from, to) = (card.upload(&[1.0_f32, 2.0, 3.0], 0), card.alloc(12, 0));
            card.launch("copy", 1, 32, 0, params_of![to, from, 3_u32]);
            assert_eq!(card.download::<f32>(to, 3, 0), [4.0; 3]);
        })
    };
    altered("copy: ld.global.f32 %f1, [%rd6]; => mov.f32 %f1, 0f40800000;").is_clean();
    // Text of another kernel is not this kernel's.
    let end = altered("copy: shfl.sync.idx.b32 => shfl.sync.up.b32");
    assert_eq!(end.status, Some(2), "{}", end.stderr);
    assert!(end.stderr.contains("REHEARSAL_ALTER: copy has no `shfl.sync.idx.b32`"), "{}", end.stderr);
}

#[test]
fn products_are_checked_like_kernels() {
    let name = "products_are_checked_like_kernels";
    let end = rehearse(name, &[TWO], || {
        let card = card(0);
        let (a, c) = (card.upload(&[1.0_f32, 2.0, 3.0, 4.0], 2), card.alloc(12, 2));
        // SAFETY: the pointers are those of live values.
        unsafe {
            let handle = made(|to| cublasCreate_v2(to));
            ok(cublasSetStream_v2(handle, 2));
            let product = |m, lda, c| cublasSgemm_v2(handle, 0, 0, m, 2, 2, &1.0, a, lda, a, 2, &0.0, c, 2);
            assert_eq!(product(2, 1, c), 7, "CUBLAS_STATUS_INVALID_VALUE: lda is less than m");
            assert_eq!(product(-1, 2, c), 7);
            assert_eq!(product(0, 2, c), 0, "a product of nothing is none");
            // C needs 16 bytes and has 12.
            product(2, 2, c);
        }
    });
    end.is_fault(&["gemm f32 writes 16 bytes", "4 more than the allocation of 12 bytes"]);
    end.is_fault(&["lda is 1, less than the 2 rows of a", "CUBLAS_STATUS_INVALID_VALUE"]);
}
