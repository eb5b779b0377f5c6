//! Wall time as GFLOP/s: throughput elements are floating-point operations.

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};

pub struct Flops;

impl Measurement for Flops {
    type Intermediate = <WallTime as Measurement>::Intermediate;
    type Value = <WallTime as Measurement>::Value;

    fn start(&self) -> Self::Intermediate {
        WallTime.start()
    }

    fn end(&self, start: Self::Intermediate) -> Self::Value {
        WallTime.end(start)
    }

    fn add(&self, a: &Self::Value, b: &Self::Value) -> Self::Value {
        WallTime.add(a, b)
    }

    fn zero(&self) -> Self::Value {
        WallTime.zero()
    }

    fn to_f64(&self, value: &Self::Value) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &GigaFlops
    }
}

struct GigaFlops;

impl ValueFormatter for GigaFlops {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    /// Operations per nanosecond equal GFLOP/s.
    fn scale_throughputs(&self, typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        let Throughput::Elements(flop) = throughput else {
            return WallTime.formatter().scale_throughputs(typical, throughput, values);
        };
        for value in values {
            *value = *flop as f64 / *value;
        }
        "GFLOP/s"
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}
