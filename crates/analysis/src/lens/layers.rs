//! Attention of a store by decoder layer.
//!
//! Stores of hybrid models keep masses of softmax layers and implicit weights of linear-attention layers apart, with different head counts.
//! Both are averaged over heads and merged in decoder order. A linear layer's value is its **share**: sum of |a| over a span divided by the
//! sum over all tokens, so shares sum to 1 as masses do. Layer kinds (full softmax, windowed, linear) are never averaged together.

use std::path::Path;

use ndarray::{Array2, Array3, Array4, Axis};

use crate::heads::file::HeadWeights;
use palimpsest_core::attention::{AttentionStore, StoreError, uniform_share};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// Softmax over all previous keys; values are masses.
    Softmax,
    /// Softmax over a window of keys; values are masses.
    Windowed,
    /// Gated delta rule; values are shares of the implicit weights' absolute values.
    Linear,
}

impl LayerKind {
    pub const ALL: [LayerKind; 3] = [LayerKind::Softmax, LayerKind::Windowed, LayerKind::Linear];

    pub fn key(self) -> &'static str {
        match self {
            LayerKind::Softmax => "softmax",
            LayerKind::Windowed => "windowed",
            LayerKind::Linear => "linear",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer {
    pub index: usize,
    pub kind: LayerKind,
}

impl Layer {
    pub fn is_linear(self) -> bool {
        self.kind == LayerKind::Linear
    }
}

pub(super) fn named(layers: &[Layer]) -> String {
    let one = |layer: &Layer| match layer.kind {
        LayerKind::Softmax => layer.index.to_string(),
        kind => format!("{} ({})", layer.index, kind.key()),
    };
    format!("[{}]", layers.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Mean of per-layer values over layers of one kind; `None` without such layers.
pub fn mean_over(layers: &[Layer], kind: LayerKind, values: &[f64]) -> Option<f64> {
    let of_kind =
        || layers.iter().zip(values).filter(|(layer, _)| layer.kind == kind).map(|(_, value)| value);
    let count = of_kind().count();
    (count > 0).then(|| of_kind().sum::<f64>() / count as f64)
}

/// Mean of curves at each layer, ignoring NaN; NaN if none is defined, `None` without curves.
pub(super) fn mean_by_layer(curves: impl Iterator<Item: AsRef<[f64]>>, layers: usize) -> Option<Vec<f64>> {
    let mut sums = vec![(0.0, 0); layers];
    let mut any = false;
    for curve in curves {
        let values = curve.as_ref();
        for ((sum, count), value) in sums.iter_mut().zip(values).filter(|(_, value)| !value.is_nan()) {
            *sum += value;
            *count += 1;
        }
        any = true;
    }
    any.then(|| sums.into_iter().map(|(sum, count)| sum / f64::from(count)).collect())
}

#[derive(Debug)]
pub struct ByLayer {
    /// Ascending; the first axis of the arrays.
    pub layers: Vec<Layer>,
    /// `[layers, rows, keys]`: masses at softmax layers, shares at linear ones.
    pub mass: Array3<f64>,
    /// `[layers, rows, keys]`: mass of uniform attention: stored for softmax layers; computed from span bounds with full visibility for
    /// linear layers and version 0.1.0 stores.
    pub share: Array3<f64>,
    /// `[layers, rows, keys]`: signed sums of the weights; NaN at softmax layers, `None` without linear layers.
    pub signed: Option<Array3<f64>>,
}

impl ByLayer {
    /// Averages a store over heads, optionally by weights that must match its layers and heads. With weights, linear layers and layers
    /// without weight are omitted.
    pub fn of(path: &Path, store: &AttentionStore, heads: Option<&HeadWeights>) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Broken { path: path.to_owned(), reason };
        let shares =
            |name: &str, values: &Array4<f32>| match values.iter().find(|m| !m.is_finite() || **m < 0.0) {
                Some(bad) => Err(broken(format!("`{name}` holds {bad}, which is no share of attention"))),
                None => Ok(()),
            };
        // (layers, rows, keys); no mean without heads
        let averaged = |name: &str, values: &Array4<f32>| {
            let mean = values.mapv(f64::from).mean_axis(Axis(1));
            mean.ok_or_else(|| broken(format!("`{name}` has no attention heads")))
        };
        shares("mass", &store.mass)?;
        if let Some(bad) =
            store.uniform.iter().flat_map(|uniform| &uniform.share).find(|s| !(0.0..=1.001).contains(*s))
        {
            return Err(broken(format!("`share` holds {bad}, which is no share of the tokens")));
        }
        // without softmax layers, `mass` is empty and has no heads
        let mass = match store.layers.is_empty() {
            true => Array3::zeros((0, store.rows.len(), store.keys.len())),
            false => match heads {
                Some(HeadWeights { weights, .. }) => by_weight(&store.mass, weights),
                None => averaged("mass", &store.mass)?,
            },
        };
        let (mut share, mut signed) = (None, None);
        if let Some(delta) = &store.delta {
            shares("delta_share", &delta.share)?;
            if let Some(bad) = delta.signed.iter().find(|sum| !sum.is_finite()) {
                return Err(broken(format!("`delta_signed` holds {bad}, which is no sum of weights")));
            }
            share = Some(averaged("delta_share", &delta.share)?);
            signed = Some(averaged("delta_signed", &delta.signed)?);
        }

        let windowed = |at: usize| {
            store.uniform.as_ref().is_some_and(|uniform| matches!(uniform.windows.get(at), Some(Some(_))))
        };
        let softmax_kind = |at| if windowed(at) { LayerKind::Windowed } else { LayerKind::Softmax };
        let weighs = |at: &usize| heads.is_none_or(|heads| heads.weights.row(*at).sum() > 0.0);
        let softmax = store.layers.iter().enumerate().filter(|(at, _)| weighs(at));
        let softmax = softmax.map(|(at, &index)| (index, softmax_kind(at), at));
        let linear = store.delta.iter().filter(|_| heads.is_none());
        let linear = linear.flat_map(|delta| delta.layers.iter().enumerate());
        let linear = linear.map(|(at, &index)| (index, LayerKind::Linear, at));
        let mut places: Vec<(usize, LayerKind, usize)> = softmax.chain(linear).collect();
        places.sort_by_key(|(index, _, _)| *index);
        let mut same = places.chunk_by(|a, b| a.0 == b.0);
        if let Some([(index, ..), ..]) = same.find(|same| same.len() > 1) {
            return Err(broken(format!("it holds layer {index} twice")));
        }
        if places.is_empty() {
            return Err(broken("it holds the attention of no layer".to_owned()));
        }
        let shape = (places.len(), store.rows.len(), store.keys.len());
        let (mut all, mut sums) = (Array3::zeros(shape), Array3::from_elem(shape, f64::NAN));
        let whole = Array3::from_shape_fn((1, shape.1, shape.2), |(_, r, k)| {
            uniform_share(store.rows[r].range(), store.keys[k].range(), None)
        });
        let mut unit = Array3::zeros(shape);
        for (layer, (_, kind, at)) in places.iter().enumerate() {
            let source = match kind {
                LayerKind::Softmax | LayerKind::Windowed => Some(&mass),
                LayerKind::Linear => share.as_ref(),
            };
            let mut unit = unit.index_axis_mut(Axis(0), layer);
            match (&store.uniform, kind) {
                (Some(uniform), LayerKind::Softmax | LayerKind::Windowed) => {
                    unit.assign(&uniform.share.index_axis(Axis(0), *at).mapv(f64::from));
                }
                _ => unit.assign(&whole.index_axis(Axis(0), 0)),
            }
            if let Some(source) = source {
                all.index_axis_mut(Axis(0), layer).assign(&source.index_axis(Axis(0), *at));
            }
            if let (LayerKind::Linear, Some(signed)) = (kind, &signed) {
                sums.index_axis_mut(Axis(0), layer).assign(&signed.index_axis(Axis(0), *at));
            }
        }
        let layers: Vec<Layer> = places.iter().map(|&(index, kind, _)| Layer { index, kind }).collect();
        let any = layers.iter().any(|layer| layer.is_linear());
        Ok(ByLayer { layers, mass: all, share: unit, signed: any.then_some(sums) })
    }
}

/// `[layers, heads, rows, keys]` to `[layers, rows, keys]`, averaged by head weights (layers, heads); 0 at layers without weight.
fn by_weight(mass: &Array4<f32>, weights: &Array2<f64>) -> Array3<f64> {
    let (layers, _, rows, keys) = mass.dim();
    let mut mean = Array3::zeros((layers, rows, keys));
    for ((mut mean, mass), weights) in mean.outer_iter_mut().zip(mass.outer_iter()).zip(weights.rows()) {
        let sum = weights.sum();
        for (of_head, weight) in mass.outer_iter().zip(weights).filter(|(_, weight)| **weight > 0.0) {
            mean.zip_mut_with(&of_head, |mean, mass| *mean += f64::from(*mass) * weight / sum);
        }
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masses_by_weight_are_means_over_heads_and_by_equal_weights_the_plain_mean() {
        let mass = Array4::from_shape_fn((2, 3, 2, 2), |(l, h, r, k)| (l * 7 + h * 3 + r * 2 + k) as f32);
        let weights = ndarray::array![[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]];
        let mean = by_weight(&mass, &weights);
        assert!((mean[[0, 1, 1]] - (3.0 + 3.0 * 9.0) / 4.0).abs() < 1e-12);
        assert!((mean[[1, 0, 1]] - 11.0).abs() < 1e-12);
        let equal = by_weight(&mass, &Array2::from_elem((2, 3), 0.3));
        let plain = mass.mapv(f64::from).mean_axis(Axis(1)).unwrap();
        assert!(equal.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}
