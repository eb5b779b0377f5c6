//! A question about the data itself, for a judge: which value of a facet it would have given.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelCheck {
    pub facet: &'static str,
    pub values: &'static [&'static str],
    /// Probes that share the value of this facet are asked about once, by the first of them.
    pub unit: &'static str,
    /// The judge's input: a template as that of [`super::Rubric::template`], of one probe, for a choice. It must not show the facet.
    pub template: &'static str,
}
