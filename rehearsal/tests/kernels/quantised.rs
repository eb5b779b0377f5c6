//! Kernels that dequantise GGUF blocks to f32, against the format definitions, element by element.

use half::f16;

use crate::Candle;
use crate::card::Param;

/// A format: name, elements and bytes per block, offsets of its f16 numbers, threads per launch, and the value of element `i`.
struct Format {
    name: &'static str,
    elements: usize,
    bytes: usize,
    halves: &'static [usize],
    threads: u32,
    value: fn(&[u8], usize) -> f64,
}

fn half_at(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// Element `i` of 32 nibbles: the low ones hold the first half.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Fifth bit of element `i` of 32.
fn fifth(bits: &[u8], i: usize) -> u8 {
    bits[i / 8] >> (i % 8) & 1
}

/// 6-bit scale and minimum of sub-block `j` of 8, packed in twelve bytes.
fn scale_and_minimum(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let (low, high) = (packed[j + 4] & 15, packed[j + 4] >> 4);
        (low | packed[j - 4] >> 6 << 4, high | packed[j] >> 6 << 4)
    }
}

/// Scale `j` of 16 of Q3_K: four bits, and two more in the last four bytes.
fn six_bits(packed: &[u8], j: usize) -> u8 {
    packed[j % 8] >> (j / 8 * 4) & 15 | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4
}

/// Element `i` of 256; each run of 32 bytes holds four 2-bit elements per byte.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// Element `i` of 256; each run of 32 bytes holds two 4-bit elements per byte.
fn four_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

fn scaled(block: &[u8], i: usize, q: u8) -> f64 {
    let (scale, minimum) = scale_and_minimum(&block[4..16], i / 32);
    half_at(block, 0) * f64::from(scale) * f64::from(q) - half_at(block, 2) * f64::from(minimum)
}

const FORMATS: [Format; 10] = [
    Format {
        name: "q4_0",
        elements: 32,
        bytes: 18,
        halves: &[0],
        threads: 32,
        value: |b, i| half_at(b, 0) * (f64::from(nibble(&b[2..], i)) - 8.0),
    },
    Format {
        name: "q4_1",
        elements: 32,
        bytes: 20,
        halves: &[0, 2],
        threads: 32,
        value: |b, i| half_at(b, 0) * f64::from(nibble(&b[4..], i)) + half_at(b, 2),
    },
    Format {
        name: "q5_0",
        elements: 32,
        bytes: 22,
        halves: &[0],
        threads: 256,
        value: |b, i| half_at(b, 0) * (f64::from(nibble(&b[6..], i) | fifth(&b[2..], i) << 4) - 16.0),
    },
    Format {
        name: "q5_1",
        elements: 32,
        bytes: 24,
        halves: &[0, 2],
        threads: 256,
        value: |b, i| half_at(b, 0) * f64::from(nibble(&b[8..], i) | fifth(&b[4..], i) << 4) + half_at(b, 2),
    },
    Format {
        name: "q8_0",
        elements: 32,
        bytes: 34,
        halves: &[0],
        threads: 32,
        value: |b, i| half_at(b, 0) * f64::from(b[2 + i].cast_signed()),
    },
    Format {
        name: "q2_K",
        elements: 256,
        bytes: 84,
        halves: &[80, 82],
        threads: 64,
        value: |b, i| {
            let (scale, minimum) = (b[i / 16] & 15, b[i / 16] >> 4);
            half_at(b, 80) * f64::from(scale) * f64::from(two_bits(&b[16..], i))
                - half_at(b, 82) * f64::from(minimum)
        },
    },
    Format {
        name: "q3_K",
        elements: 256,
        bytes: 110,
        halves: &[108],
        threads: 64,
        value: |b, i| {
            let q = two_bits(&b[32..], i) | (b[i % 32] >> (i / 32) & 1) << 2;
            half_at(b, 108) * (f64::from(six_bits(&b[96..], i / 16)) - 32.0) * (f64::from(q) - 4.0)
        },
    },
    Format {
        name: "q4_K",
        elements: 256,
        bytes: 144,
        halves: &[0, 2],
        threads: 32,
        value: |b, i| scaled(b, i, four_bits(&b[16..], i)),
    },
    Format {
        name: "q5_K",
        elements: 256,
        bytes: 176,
        halves: &[0, 2],
        threads: 64,
        value: |b, i| scaled(b, i, four_bits(&b[48..], i) | (b[16 + i % 32] >> (i / 32) & 1) << 4),
    },
    Format {
        name: "q6_K",
        elements: 256,
        bytes: 210,
        halves: &[208],
        threads: 64,
        value: |b, i| {
            let low = b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
            let q = low | two_bits(&b[128..192], i) << 4;
            half_at(b, 208) * f64::from(b[192 + i / 16].cast_signed()) * (f64::from(q) - 32.0)
        },
    },
];

pub fn check(candle: &mut Candle) {
    for Format { name, elements, bytes, halves, threads, value } in FORMATS {
        let kernel = format!("dequantize_block_{name}_f32");
        candle.load("quantized", &[&kernel]);
        // A block count that no launch size divides.
        let blocks = if elements == 32 { 29 } else { 3 };
        let mut data: Vec<u8> =
            (0..blocks * bytes).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
        for (number, block) in data.chunks_mut(bytes).enumerate() {
            for (i, at) in halves.iter().enumerate() {
                let half = f16::from_f32(0.01 * (number + 3 * i) as f32 - 0.05);
                block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
        let count = blocks * elements;
        let (at, to) = (candle.upload(&data, 0), candle.empty::<f32>(count));
        let mut params = vec![Param::from(at), Param::from(to)];
        // Older formats take the count in blocks, or in elements if a thread unpacks two.
        if elements == 32 {
            params.push(Param::from(if threads == 32 { blocks } else { count } as i32));
        }
        let of_a_launch_block = if threads == 256 { 512 } else { 256 };
        candle.launch_as(&kernel, [count.div_ceil(of_a_launch_block) as u32, 1, 1], [threads, 1, 1], &params);
        let expected: Vec<f64> = data
            .chunks(bytes)
            .flat_map(|block| (0..elements).map(|i| value(block, i)).collect::<Vec<_>>())
            .collect();
        candle.expect_of_size::<f32>(&kernel, to, &expected, 64.0, 2.0);
    }
}
