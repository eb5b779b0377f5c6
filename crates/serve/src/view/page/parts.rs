//! Page sources, in order of assembly.

pub const HTML: &str = include_str!("page.html");
/// Follows the shared style.
pub const STYLE: &str = include_str!("page.css");
pub const SCRIPTS: &[(&str, &str)] = &[
    ("10-base.js", include_str!("10-base.js")),
    ("11-address.js", include_str!("11-address.js")),
    ("20-api.js", include_str!("20-api.js")),
    ("21-rows.js", include_str!("21-rows.js")),
    ("30-scene.js", include_str!("30-scene.js")),
    ("31-picture.js", include_str!("31-picture.js")),
    ("40-grid.js", include_str!("40-grid.js")),
    ("41-table.js", include_str!("41-table.js")),
    ("50-case.js", include_str!("50-case.js")),
    ("51-strip.js", include_str!("51-strip.js")),
    ("52-map.js", include_str!("52-map.js")),
    ("53-texts.js", include_str!("53-texts.js")),
    ("55-memory.js", include_str!("55-memory.js")),
    ("60-ask.js", include_str!("60-ask.js")),
    ("70-compare.js", include_str!("70-compare.js")),
    ("80-take.js", include_str!("80-take.js")),
    ("90-main.js", include_str!("90-main.js")),
];
