//! A pretend CUDA device: one shared library in place of libcuda, libcublas, libcublasLt, libcurand, libnvrtc and libcudart, on which a
//! CUDA build of a Candle program runs without a GPU, kernels included. A call passes through, in order:
//!
//! - [`driver`]: the driver API. Checks arguments, counts calls, and submits work to a stream.
//! - [`products`], [`random`]: cuBLAS and cuRAND, on the same streams.
//! - [`order`]: streams and events: ordering of work, and when it runs.
//! - [`schedule`]: blocks, warps and barriers of one launch.
//! - [`runtime`]: callbacks of running kernels; [`standin`]: functions called by kernel libraries.
//! - [`memory`]: allocations; every access is checked there.
//!
//! Kernels are Candle's own: at first launch the PTX module is parsed ([`ptx`]) and the kernel translated to C ([`translate`]) and
//! compiled ([`compile`]). [`abi`] is the interface of both sides. [`settings`] reads the environment, [`faults`] injects failures,
//! [`codes`] names errors, [`report`] prints [`counts`], [`stop`] ends a faulty program, and only [`console`] prints and exits. Usage and
//! limits: README.

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
