//! cuRAND: uniform and normal numbers on a generator's stream. Good numbers, but not cuRAND's: output that depends on them differs on a
//! GPU. Each number depends only on the seed and its index in the sequence.
#![allow(non_snake_case, reason = "the functions' names are cuRAND's")]

use std::ffi::{c_int, c_ulonglong};

use crate::codes::{Refusal, curand};
use crate::driver::{Answer, Driver, Generator, ask_memory, export, give};
use crate::settings::settings;

/// Random bits at an index: the finaliser of SplitMix64.
fn bits(seed: u64, place: u64) -> u64 {
    let mut x = seed.wrapping_add((place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// In (0, 1], like cuRAND's, in steps that f32 holds.
fn uniform(seed: u64, place: u64) -> f64 {
    ((bits(seed, place) >> 40) + 1) as f64 / f64::from(1 << 24)
}

/// Standard normal by Box-Muller, using one of each pair.
fn normal(seed: u64, place: u64) -> f64 {
    let (radius, angle) = (uniform(seed, place & !1), uniform(seed, place | 1) * std::f64::consts::TAU);
    (-2.0 * radius.ln()).sqrt() * if place & 1 == 0 { angle.cos() } else { angle.sin() }
}

fn generator(driver: &mut Driver, handle: usize) -> Result<&mut Generator, Refusal> {
    driver.generators.get_mut(&handle).ok_or_else(|| {
        Refusal::new(curand::CURAND_STATUS_NOT_INITIALIZED, format!("{handle:#x} is no generator of cuRAND"))
    })
}

fn fill<T: 'static>(
    driver: &mut Driver,
    handle: usize,
    to: *mut T,
    count: usize,
    what: &'static str,
    number: impl Fn(u64, u64) -> T + Send + 'static,
) -> Answer {
    let Generator { stream, seed, made } = *generator(driver, handle)?;
    generator(driver, handle)?.made += count as u64;
    driver.counts.launches.entry(what).or_default().calls += 1;
    let op = driver.begin(stream, what)?;
    let device = driver.order.device(op.stream);
    let (to, bytes) = (to as u64, (count * size_of::<T>()) as u64);
    let then = op.clone();
    driver.order.submit(&op, move || {
        if bytes > 0 {
            ask_memory(|memory| memory.access(&then, device, to, bytes, true));
        }
        if settings().arithmetic {
            for place in 0..count {
                // SAFETY: the range was checked against live allocations.
                unsafe { (to as *mut T).add(place).write_unaligned(number(seed, made + place as u64)) };
            }
        }
    });
    Ok(())
}

/// cuRAND generates normal numbers in pairs, so counts must be even.
fn even(count: usize) -> Answer {
    if count.is_multiple_of(2) {
        return Ok(());
    }
    let why = format!("{count} normal numbers; they are made in pairs, so their number must be even");
    Err(Refusal::new(curand::CURAND_STATUS_LENGTH_NOT_MULTIPLE, why))
}

export! {
    /// Creates a generator; all kinds are the same here.
    fn curandCreateGenerator(to: *mut usize, _kind: c_int) Context |driver| {
        let handle = driver.new_handle();
        driver.generators.insert(handle, Generator::default());
        give(to, handle)
    }

    fn curandDestroyGenerator(handle: usize) Context |driver| {
        generator(driver, handle)?;
        driver.generators.remove(&handle);
        Ok(())
    }

    fn curandSetStream(handle: usize, stream: usize) Context |driver| {
        driver.order.stream(stream, driver.here)?;
        generator(driver, handle)?.stream = stream;
        Ok(())
    }

    /// Sets a generator's seed and restarts its sequence.
    fn curandSetPseudoRandomGeneratorSeed(handle: usize, seed: c_ulonglong) Context |driver| {
        let generator = generator(driver, handle)?;
        (generator.seed, generator.made) = (seed, 0);
        Ok(())
    }

    /// Sets a generator's offset in its sequence.
    fn curandSetGeneratorOffset(handle: usize, offset: c_ulonglong) Context |driver| {
        generator(driver, handle)?.made = offset;
        Ok(())
    }

    fn curandGenerateUniform(handle: usize, to: *mut f32, count: usize) Context |driver| {
        fill(driver, handle, to, count, "curandGenerateUniform", |seed, place| uniform(seed, place) as f32)
    }

    fn curandGenerateUniformDouble(handle: usize, to: *mut f64, count: usize) Context |driver| {
        fill(driver, handle, to, count, "curandGenerateUniformDouble", uniform)
    }

    fn curandGenerateNormal(handle: usize, to: *mut f32, count: usize, mean: f32, deviation: f32)
        Context |driver|
    {
        even(count)?;
        fill(driver, handle, to, count, "curandGenerateNormal", move |seed, place| {
            mean + deviation * normal(seed, place) as f32
        })
    }

    fn curandGenerateNormalDouble(handle: usize, to: *mut f64, count: usize, mean: f64, deviation: f64)
        Context |driver|
    {
        even(count)?;
        fill(driver, handle, to, count, "curandGenerateNormalDouble", move |seed, place| {
            mean + deviation * normal(seed, place)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_means_and_deviations() {
        let moments = |number: fn(u64, u64) -> f64| {
            let all: Vec<f64> = (0..100_000).map(|place| number(7, place)).collect();
            let mean = all.iter().sum::<f64>() / 1e5;
            (mean, (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5).sqrt())
        };
        let (mean, deviation) = moments(uniform);
        assert!(
            (mean - 0.5).abs() < 5e-3 && (deviation - 1.0 / 12_f64.sqrt()).abs() < 5e-3,
            "{mean} {deviation}"
        );
        let (mean, deviation) = moments(normal);
        assert!(mean.abs() < 1e-2 && (deviation - 1.0).abs() < 1e-2, "{mean} {deviation}");
        assert!((0..100_000).all(|place| uniform(3, place) > 0.0));
    }
}
