//! Text summary printed by `palimpsest lens`. Attention in percent, averaged over layers of one kind.

use super::{Group, LayerKind, Lens, Scale, Series, Statistic, Study, Target};
use palimpsest_data::ground::table::{within, wrapped};
use palimpsest_run::runs::condition::label;

pub fn in_words(study: &Study, width: usize) -> String {
    let say = |text: &str| wrapped(text, width) + "\n";
    let mut text = String::new();
    for (condition, lens) in study.measured() {
        if study.selection.several {
            text += &say(&format!("condition {}", label(&condition.name)));
        }
        text.extend(about(lens).iter().map(|sentence| say(sentence)));
        for (kind, count) in lens.layer_kinds() {
            let (heading, rows) = attention(lens, kind, count);
            text += &format!("\n{}{}", say(&heading), within(&rows, |column| column > 0, 2, width));
        }
        text.push('\n');
    }
    for condition in study.conditions.iter().filter(|condition| condition.lens.is_none()) {
        let why = condition.without.as_deref().unwrap_or_default();
        text += &say(&format!("condition {}: not measured ({why})", label(&condition.name)));
    }
    text + &measures(study, width)
}

fn about(lens: &Lens) -> Vec<String> {
    let mut said = vec![match (&lens.judge, &lens.no_result) {
        (Some(judge), _) => format!("verdicts: {judge}"),
        (None, Some(why)) => format!("verdicts: no result, so nothing is split by correctness ({why})"),
        (None, None) => "verdicts: none, so nothing is split by correctness".to_owned(),
    }];
    said.push(format!("{}, {} examples measured", lens.layers_in_words(), lens.examples.len()));
    if let Some(drawn) = lens.drawn {
        let (most, seed) = (drawn.by.most, drawn.by.seed);
        said.push(format!(
            "up to {most} examples of each question form, {} and verdict were drawn (seed {seed}): {} of {}",
            lens.benchmark.split, drawn.kept, drawn.of
        ));
    }
    let far = lens.far_baselines().count();
    if far > 0 {
        let segment = lens.benchmark.segment;
        said.push(format!(
            "noise baselines: in {far} examples a neighbour was dropped or is evidence; the nearest {segment} that was kept takes its \
             place (examples.csv)"
        ));
    }
    said.extend(Some(lens.left_out_in_words()).filter(|left_out| !left_out.is_empty()));
    said.extend(
        lens.skipped.iter().map(|one| format!("not measured: {} {}: {}", one.case, one.probe, one.reason)),
    );
    said
}

/// A column's cells with their n; `None` without a value.
type Cells = Vec<Option<(String, usize)>>;

/// Heading and rows: a row per non-empty group, a column per curve with a value, with noise baselines in brackets; last the ratio. `n` is
/// that of the row's cells; a cell of fewer units has its own number beside it.
fn attention(lens: &Lens, kind: LayerKind, count: usize) -> (String, Vec<Vec<String>>) {
    // The only probe repeats the group over all of them.
    let is_shown = |group: &Group| (lens.probes.len() > 1 || group.probe.is_none()) && lens.units(group) > 0;
    let groups: Vec<Group> = lens.groups().into_iter().filter(is_shown).collect();
    let of = |group: &Group, statistic| lens.series(group, statistic, Scale::Mass);
    let shown =
        |series: &Series, factor: f64| series.mean_over(kind).map(|mean| format!("{:.3}", mean * factor));
    let mut has_noise = false;
    let mut columns: Vec<(String, Cells)> = Vec::new();
    for curve in &lens.curves {
        let cells = groups.iter().map(|group| {
            let signal = of(group, Statistic::Mean(*curve, Target::Signal));
            let noise = shown(&of(group, Statistic::Mean(*curve, Target::Noise)), 100.0);
            has_noise |= noise.is_some();
            let noise = noise.map(|noise| format!(" ({noise})")).unwrap_or_default();
            Some((shown(&signal, 100.0)? + &noise, signal.units_over(kind)))
        });
        columns.push((curve.label(), cells.collect()));
    }
    if let Some((over, under)) = lens.ratio {
        let cells = groups.iter().map(|group| {
            let ratio = of(group, Statistic::RatioOfMeans);
            Some((shown(&ratio, 1.0)?, ratio.units_over(kind)))
        });
        columns.push((format!("{}/{}", over.to, under.to), cells.collect()));
    }
    columns.retain(|(_, cells)| cells.iter().any(Option::is_some));
    let head = ["group", "n"].into_iter().chain(columns.iter().map(|(head, _)| &**head));
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    let mut differ = false;
    for (at, group) in groups.iter().enumerate() {
        let most = columns.iter().filter_map(|(_, cells)| Some(cells[at].as_ref()?.1)).max().unwrap_or(0);
        let cell = |(_, cells): &(String, Cells)| match &cells[at] {
            None => "-".to_owned(),
            Some((cell, n)) if *n == most => cell.clone(),
            Some((cell, n)) => {
                differ = true;
                format!("{cell} [{n}]")
            }
        };
        let mut row = vec![lens.label(group), most.to_string()];
        row.extend(columns.iter().map(cell));
        rows.push(row);
    }
    let what = if kind == LayerKind::Linear { "share of |weight|" } else { "attention" };
    let layers = match lens.has_kinds() {
        true => format!("mean over the {count} {} layers", kind.key()),
        false => "mean over layers".to_owned(),
    };
    let noise = if has_noise { " (noise baseline)" } else { "" };
    let ratio = lens.ratio.map_or_else(String::new, |(over, under)| {
        format!("; {}/{}: ratio of means at each layer, then the mean over layers", over.to, under.to)
    });
    let own = if differ { "; [n]: the number of a cell that has fewer" } else { "" };
    (format!("{what} in %, {layers}{noise}{ratio}; n: {} with a value{own}", lens.unit().many()), rows)
}

/// One table per measure: groups and conditions, averaged over layers of one kind. May be empty.
fn measures(study: &Study, width: usize) -> String {
    let mut text = String::new();
    let Some((_, lens)) = study.measured().next() else { return text };
    for (kind, _) in lens.layer_kinds() {
        for grouping in study.groupings() {
            let mut tables = String::new();
            for measure in study.measures() {
                let Some(scale) = measure.scales.first() else { continue };
                let mut lines = vec![["group", "n", "mean"].map(str::to_owned)];
                for row in &study.rows(measure, grouping, *scale) {
                    let condition = row.condition.as_deref().filter(|_| study.selection.several);
                    for one in &row.lines {
                        let Some(mean) = one.series.mean_over(kind) else { continue };
                        let mut named = vec![row.row.as_str(), condition.map_or("", label), &one.word];
                        named.retain(|word| !word.is_empty());
                        named.dedup();
                        let group = if named.is_empty() { "all".to_owned() } else { named.join(" ") };
                        lines.push([group, one.series.units_over(kind).to_string(), format!("{mean:.3}")]);
                    }
                }
                if lines.len() > 1 {
                    let heading = format!("{}, by {}", measure.label, scale.key());
                    let table = within(&lines, |column| column > 0, 1, width - INDENT.len());
                    let table: String = table.lines().map(|line| format!("{INDENT}{line}\n")).collect();
                    tables += &format!("{}\n{table}", wrapped(&heading, width));
                }
            }
            if !tables.is_empty() {
                let heading = format!(
                    "measures by {}, mean over {} layers; n: {} with a value",
                    grouping.label,
                    kind.key(),
                    lens.unit().many()
                );
                text += &format!("{}\n\n{tables}\n", wrapped(&heading, width));
            }
        }
    }
    text
}

const INDENT: &str = "  ";
