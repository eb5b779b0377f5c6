//! `mma` and `ldmatrix`.

use half::{bf16, f16};

use crate::card::{Param, rehearse};
use crate::{card, module, params_of};

/// Random f16-representable numbers of either sign and very different magnitude (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn number(&mut self) -> f32 {
        let bits = self.bits();
        ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0) * [0.125, 1.0, 1.0, 16.0][bits as usize & 3]
    }
}

/// Bits and value of a half.
fn rounded(brain: bool, x: f32) -> (u32, f64) {
    if brain {
        let half = bf16::from_f32(x);
        (half.to_bits().into(), half.into())
    } else {
        let half = f16::from_f32(x);
        (half.to_bits().into(), half.into())
    }
}

/// Row and column of element `i` of a lane's fragment of A ("Matrix Fragments for mma.m16n8k16"; for k8, the first four).
fn place_in_a(lane: usize, i: usize) -> (usize, usize) {
    let row = if matches!(i, 0 | 1 | 4 | 5) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, (lane % 4) * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
}

/// Same for B, whose rows are the inner dimension.
fn place_in_b(lane: usize, i: usize) -> (usize, usize) {
    ((lane % 4) * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, lane >> 2)
}

/// Same for C and D.
fn place_in_c(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 2 + (i & 1))
}

/// A kernel in which each lane loads ten registers and stores four.
fn product(shape: &str, of: &str) -> String {
    let (a, b) = if shape == "m16n8k16" { ("%r0, %r1, %r2, %r3", "%r4, %r5") } else { ("%r0, %r1", "%r4") };
    let loads: String =
        (0..10).map(|i| format!("ld.global.u32 %r{i}, [%d0+{}];\n", 4 * i)).collect::<String>();
    module(
        2,
        &format!(
            "mad.wide.u32 %d0, %lane, 40, %p0;
            {loads}
            mov.b32 %f0, %r6; mov.b32 %f1, %r7; mov.b32 %f2, %r8; mov.b32 %f3, %r9;
            mma.sync.aligned.{shape}.row.col.f32.{of}.{of}.f32 {{%f0, %f1, %f2, %f3}}, {{{a}}}, {{{b}}},
                {{%f0, %f1, %f2, %f3}};
            mad.wide.u32 %d1, %lane, 16, %p1;
            st.global.v4.f32 [%d1], {{%f0, %f1, %f2, %f3}};"
        ),
    )
}

#[test]
fn mma_is_the_product_of_the_documented_fragments() {
    let mut random = Random(1);
    for (shape, inner) in [("m16n8k16", 16), ("m16n8k8", 8)] {
        for brain in [false, true] {
            let card = card(&product(shape, if brain { "bf16" } else { "f16" }));
            let mut matrix =
                |n: usize| -> Vec<(u32, f64)> { (0..n).map(|_| rounded(brain, random.number())).collect() };
            let (a, b) = (matrix(16 * inner), matrix(inner * 8));
            let c: Vec<f32> = (0..16 * 8).map(|_| random.number()).collect();
            let mut given = vec![0xFFFF_FFFF_u32; 32 * 10];
            for lane in 0..32 {
                let of_lane = &mut given[10 * lane..][..10];
                for i in 0..inner / 2 {
                    let (row, column) = place_in_a(lane, i);
                    put(&mut of_lane[i / 2], i, a[row * inner + column].0);
                }
                for i in 0..inner / 4 {
                    let (row, column) = place_in_b(lane, i);
                    put(&mut of_lane[4 + i / 2], i, b[row * 8 + column].0);
                }
                for i in 0..4 {
                    let (row, column) = place_in_c(lane, i);
                    of_lane[6 + i] = c[row * 8 + column].to_bits();
                }
            }
            let (from, to) = (card.upload(&given, 0), card.alloc(32 * 16, 0));
            card.launch("test", 1, 32, 0, params_of![from, to]);
            let found = card.download::<f32>(to, 128, 0);
            for lane in 0..32 {
                for i in 0..4 {
                    let (row, column) = place_in_c(lane, i);
                    let terms = (0..inner).map(|k| a[row * inner + k].1 * b[k * 8 + column].1);
                    let start = f64::from(c[row * 8 + column]);
                    let (sum, size) =
                        terms.fold((start, start.abs()), |(sum, size), x| (sum + x, size + x.abs()));
                    // One f32 rounding per term.
                    let allowed = size * inner as f64 * f64::from(f32::EPSILON) / 2.0;
                    let got = f64::from(found[4 * lane + i]);
                    assert!(
                        (got - sum).abs() <= allowed,
                        "{shape} {brain} [{row}, {column}]: {got} for {sum}"
                    );
                }
            }
        }
    }
}

/// Packs element `i` into its half of a register.
fn put(register: &mut u32, i: usize, bits: u32) {
    let shift = 16 * (i as u32 & 1);
    *register = *register & !(0xFFFF << shift) | bits << shift;
}

#[test]
fn ldmatrix_gives_each_lane_its_elements() {
    const STRIDE: usize = 48; // bytes between rows
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            let registers: Vec<String> = (0..count).map(|i| format!("%r{i}")).collect();
            let stores: String =
                (0..count).map(|i| format!("st.global.u32 [%d1+{}], %r{i};\n", 4 * i)).collect();
            let trans = if transposed { ".trans" } else { "" };
            // Lane i holds the address of stored row 31 - i.
            let card = card(&module(
                2,
                &format!(
                    "mul.lo.u32 %r5, %lane, {STRIDE};
                    mov.u32 %r6, tile;
                    add.s32 %r6, %r6, %r5;
                    mad.wide.u32 %d0, %lane, 16, %p0;
                    ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d0];
                    st.shared.v4.u32 [%r6], {{%r10, %r11, %r12, %r13}};
                    bar.warp.sync -1;
                    sub.s32 %r7, 31, %lane;
                    mov.u32 %r8, tile;
                    mad.lo.s32 %r8, %r7, {STRIDE}, %r8;
                    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r8];
                    mad.wide.u32 %d1, %lane, {}, %p1;
                    {stores}",
                    registers.join(", "),
                    4 * count
                ),
            ));
            let halves: Vec<u16> = (0..32 * 8).map(|i| (i * 257 + 3) as u16).collect();
            let (from, to) = (card.upload(&halves, 0), card.alloc(32 * 4 * count, 0));
            let params = [Param::from(from), Param::from(to), Param::shared(32 * STRIDE as u32)];
            card.launch("test", 1, 32, 0, &params);
            let found = card.download::<u32>(to, 32 * count, 0);
            for lane in 0..32 {
                for matrix in 0..count {
                    let element =
                        |row: usize, column: usize| u32::from(halves[8 * (31 - (8 * matrix + row)) + column]);
                    let (row, column) = (lane / 4, lane % 4 * 2);
                    let (low, high) = if transposed {
                        (element(column, row), element(column + 1, row))
                    } else {
                        (element(row, column), element(row, column + 1))
                    };
                    assert_eq!(
                        found[count * lane + matrix],
                        low | high << 16,
                        "x{count}{trans}, lane {lane}"
                    );
                }
            }
        }
    }
}

/// Expects a fault whose line contains these parts.
#[track_caller]
fn faults(test: &str, body: &str, threads: u32, parts: &[&str]) {
    let end = rehearse(test, &[], || {
        let card = card(&module(0, body));
        let shared = [Param::shared(1024)];
        card.launch("test", 1, threads, 0, &shared);
    });
    end.is_fault(parts);
}

const MMA: &str =
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3},
    {%r4, %r5}, {%f0, %f1, %f2, %f3};";

#[test]
fn a_lane_that_has_ended_before_an_mma_is_found() {
    let body = format!("setp.eq.u32 %q0, %lane, 9;\n@%q0 exit;\n{MMA}");
    faults(
        "fragments::a_lane_that_has_ended_before_an_mma_is_found",
        &body,
        32,
        &["lane 9 takes no part", "mma.sync.aligned"],
    );
}

#[test]
fn a_lane_that_passes_an_mma_by_is_found() {
    let body = format!("setp.ne.u32 %q0, %lane, 41;\n@%q0 {MMA}\nbar.sync 0;");
    let parts = ["of 64 threads 33 wait at a barrier, 31 for other lanes of their warp", "mma.sync.aligned"];
    faults("fragments::a_lane_that_passes_an_mma_by_is_found", &body, 64, &parts);
}

#[test]
fn an_mma_of_half_a_warp_is_found() {
    faults(
        "fragments::an_mma_of_half_a_warp_is_found",
        MMA,
        48,
        &["lane 16 takes no part", "mma.sync.aligned"],
    );
}

#[test]
fn misaligned_rows_of_ldmatrix_are_found() {
    let body = "mov.u32 %r5, 1000;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r5];";
    let name = "fragments::misaligned_rows_of_ldmatrix_are_found";
    faults(name, body, 32, &["16 bytes at byte 1000 of 1024, misaligned", "ldmatrix"]);
}

#[test]
fn rows_of_ldmatrix_end_with_shared_memory() {
    let body = "mov.u32 %r5, 1024;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r5];";
    let name = "fragments::rows_of_ldmatrix_end_with_shared_memory";
    faults(name, body, 32, &["16 bytes at byte 1024 of 1024, out of bounds", "ldmatrix"]);
}

#[test]
fn lanes_whose_rows_ldmatrix_does_not_read_may_say_anything() {
    let body = "mov.u32 %r5, 0;\nsetp.gt.u32 %q0, %lane, 7;\n@%q0 mov.u32 %r5, 77777;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r5];";
    let end = rehearse("fragments::lanes_whose_rows_ldmatrix_does_not_read_may_say_anything", &[], || {
        card(&module(0, body)).launch("test", 1, 32, 0, &[Param::shared(1024)]);
    });
    end.is_clean();
}
