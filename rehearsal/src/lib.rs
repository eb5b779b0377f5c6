//! A pretend CUDA device: one shared library in place of libcuda, libcublas, libcublasLt, libcurand, libnvrtc
//! and libcudart, with which a Candle program built for CUDA runs on a machine without a card, kernels and
//! all.
//!
//! A call goes from the top of this list to the bottom:
//!
//! - [`driver`]: the driver API under its own names. Checks what a driver checks, counts, and hands work to a
//!   stream.
//! - [`products`], [`random`]: cuBLAS and cuRAND, on the same streams.
//! - [`order`]: streams and events; what comes before what, and when it runs.
//! - [`schedule`]: blocks, warps and barriers of one launch.
//! - [`runtime`]: callbacks of running kernels; [`standin`]: functions that libraries of kernels call.
//! - [`memory`]: allocations; every access is checked there.
//!
//! Kernels are Candle's own: a PTX module is read ([`ptx`]), a kernel of it becomes C ([`translate`]) and a
//! library ([`compile`]) when it is first launched. [`abi`] is what the two sides agree on.
//!
//! Beside these, [`settings`] reads the environment, [`faults`] makes calls fail, [`codes`] names errors,
//! [`counts`] are what [`report`] prints, [`stop`] ends a program because of a fault, and [`console`] is the one
//! place that prints and exits. The README says how it is used, and what it does not model.

pub mod abi;
pub mod codes;
pub mod compile;
pub mod console;
pub mod counts;
pub mod driver;
pub mod faults;
pub mod memory;
pub mod order;
pub mod products;
pub mod ptx;
pub mod random;
pub mod report;
pub mod runtime;
pub mod schedule;
pub mod settings;
pub mod standin;
pub mod stop;
pub mod translate;
