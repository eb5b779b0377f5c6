//! Attention output: weighted values per task, and the merge of partial results.

use super::decode::{DecodeRows, SegmentsOfRows, Weighed};
use super::fold::WeightedValues;
use super::pairs;
use super::queries::Queries;
use super::segment_sums::SegmentSums;
use super::sequence::Sequence;
use super::tasks::{Shape, Task};
use super::total::{Total, total};
use super::walk::Walked;

pub struct PartialOutput {
    pub task: Task,
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    /// (rows, d)
    pub out: Vec<f32>,
    pub segments: SegmentsOfRows,
}

impl Queries<'_> {
    pub fn weigh(&self, task: Task, sequence: &Sequence<'_>, decoding: bool) -> PartialOutput {
        if decoding {
            let (queries, positions) = self.rows(&task);
            let of_task = self.borders.get(task.queries.clone()).unwrap_or(&[]);
            let borders =
                of_task.iter().flat_map(|borders| std::iter::repeat_n(borders.as_slice(), self.shape.group));
            let Weighed { max, sum, out, segments } = pulp::Arch::new().dispatch(DecodeRows {
                queries,
                positions,
                hidden: self.hidden(&task),
                keys: sequence.keys(task.kv_head),
                values: sequence.values(task.kv_head),
                in_pairs: self.in_pairs(sequence) && pairs::serves_few(self.shape.d),
                range: task.keys.clone(),
                site: self.site,
                borders: borders.collect(),
            });
            return PartialOutput { task, max, sum, out, segments };
        }
        let fold = WeightedValues::new(sequence.values(task.kv_head), self.shape.d, self.in_pairs(sequence));
        let Walked { max, sum, fold } = self.walk(&task, sequence, fold);
        PartialOutput { out: fold.rows(max.len()), task, max, sum, segments: SegmentsOfRows::default() }
    }

    /// Segment sums of a query's weights from its partial results, which were computed with `borders`.
    pub fn recorded(&self, query: usize, parts: &[PartialOutput], borders: &[usize]) -> SegmentSums {
        let Shape { heads, group, .. } = self.shape;
        let segments = borders.len().saturating_sub(1);
        let mut all = SegmentSums::zeros(heads, segments);
        for head in 0..heads {
            let of_head = |part: &&PartialOutput| {
                part.task.kv_head == head / group && part.task.queries.contains(&query)
            };
            let row = |part: &PartialOutput| (query - part.task.queries.start) * group + head % group;
            let parts = || parts.iter().filter(of_head).map(|part| (part, row(part)));
            let ends = parts().map(|(part, r)| (part.max[r], part.sum[r]));
            let Total { max, total, sink } = total(self.site, head, ends);
            for (part, r) in parts() {
                let scale = (f64::from(part.max[r]) - max).exp() / total;
                let (touched, sums) = part.segments.row(r);
                for (segment, sum) in touched.zip(sums) {
                    all.mass[head * segments + segment] += sum * scale;
                }
            }
            all.sink[head] = sink / total;
        }
        all
    }

    /// Merges a row's partial results of one key/value head, normalises, and adds to the row's output `out` (heads, d). Each part comes
    /// with the index of the row's first head in it.
    pub fn merge<'b>(
        &self,
        kv_head: usize,
        parts: impl Iterator<Item = (&'b PartialOutput, usize)> + Clone,
        out: &mut [f32],
    ) {
        let Shape { group, d, .. } = self.shape;
        for g in 0..group {
            let head = kv_head * group + g;
            let sums = parts.clone().map(|(part, first)| (part.max[first + g], part.sum[first + g]));
            let Total { max, total, .. } = total(self.site, head, sums);
            let target = &mut out[head * d..][..d];
            for (part, first) in parts.clone() {
                let r = first + g;
                let weight = ((f64::from(part.max[r]) - max).exp() / total) as f32;
                for (x, y) in target.iter_mut().zip(&part.out[r * d..(r + 1) * d]) {
                    *x += weight * y;
                }
            }
        }
    }
}
