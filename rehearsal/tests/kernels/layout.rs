//! Shapes and strides for the kernel tests.

use crate::Candle;
use crate::card::Param;
use crate::element::Element;

pub struct Layout {
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
    /// Elements before the first one in its allocation.
    pub offset: usize,
}

impl Layout {
    fn new(dims: &[usize], strides: &[usize], offset: usize) -> Self {
        Self { dims: dims.to_vec(), strides: strides.to_vec(), offset }
    }

    pub fn contiguous(dims: &[usize]) -> Self {
        let strides = (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect();
        Self { dims: dims.to_vec(), strides, offset: 0 }
    }

    pub fn is_contiguous(&self) -> bool {
        self.strides == Self::contiguous(&self.dims).strides
    }

    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Offset of element `i`.
    pub fn place(&self, mut i: usize) -> usize {
        let mut place = 0;
        for (dim, stride) in self.dims.iter().zip(&self.strides).rev() {
            place += i % dim * stride;
            i /= dim;
        }
        place
    }

    /// Elements from the first to the last, gaps included.
    pub fn extent(&self) -> usize {
        1 + self.dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>()
    }

    /// Test values in this layout: device address, and the elements in order.
    pub fn operand<T: Element>(&self, candle: &Candle, seed: usize) -> (u64, Vec<f64>) {
        self.operand_of(candle, |place| T::sample(seed + place))
    }

    pub fn operand_of<T: Element>(&self, candle: &Candle, value: impl Fn(usize) -> T) -> (u64, Vec<f64>) {
        let memory: Vec<T> = (0..self.extent()).map(value).collect();
        let elements = (0..self.count()).map(|i| memory[self.place(i)].value()).collect();
        (candle.upload(&memory, self.offset), elements)
    }

    /// The kernels' `info` argument: dims and strides of operands, in device memory. Null if all are contiguous, as in Candle.
    pub fn info(&self, candle: &Candle, others: &[&Self]) -> Param {
        let all = [&[self], others].concat();
        if all.iter().all(|layout| layout.is_contiguous()) {
            return Param::from(0_u64);
        }
        self.full_info(candle, others)
    }

    /// Same for kernels that always need it.
    pub fn full_info(&self, candle: &Candle, others: &[&Self]) -> Param {
        let strides = [&[self], others].concat().into_iter().flat_map(|layout| layout.strides.clone());
        let numbers: Vec<u64> = self.dims.iter().copied().chain(strides).map(|n| n as u64).collect();
        Param::from(candle.card.upload(&numbers, 0))
    }
}

/// One element, odd counts, vectorisable counts, a transpose, a broadcast, row and column slices; aligned and unaligned.
pub fn layouts() -> Vec<Layout> {
    let mut all: Vec<_> =
        [&[1][..], &[7], &[64], &[1037], &[3, 5, 7], &[2, 4, 8, 16]].map(Layout::contiguous).into();
    all.push(Layout { offset: 3, ..Layout::contiguous(&[1030]) });
    all.push(Layout::new(&[5, 7], &[1, 5], 0));
    all.push(Layout::new(&[3, 4, 5], &[0, 5, 1], 1));
    all.push(Layout::new(&[4, 6], &[10, 1], 2));
    all.push(Layout::new(&[2, 3, 33], &[200, 1, 5], 0));
    all
}
