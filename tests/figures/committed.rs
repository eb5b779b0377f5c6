//! The committed figures, all of a softmax-only model, must be redrawn byte for byte from their tables, SVG and PNG: changes for other
//! models must not alter them. On a difference, the redrawn pictures are in the folder named by the message.

use std::path::PathBuf;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::figures::meaning::Meaning;
use palimpsest::figures::sheet::{Panel, Sheet, ValueAxis};
use palimpsest::lens::{
    Correctness, Curve, Group, Layer, LayerKind, Point, Scale, Series, Statistic, Target, table,
};

use super::{Plan, make};

/// STALE probes that are averaged together, as named in tables.
const POOLED: &str = "SR+IPA";

fn committed(file: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "figures", file].iter().collect();
    std::fs::read_to_string(path).unwrap()
}

fn statistic(key: &str) -> Statistic {
    let means = STALE
        .lens
        .curves
        .iter()
        .flat_map(|c| [Target::Signal, Target::Noise].map(|p| Statistic::Mean(*c, p)));
    means.chain([Statistic::RatioOfMeans, Statistic::MeanOfRatios]).find(|s| s.key() == key).unwrap()
}

/// The series of a table, in order.
fn series(name: &str) -> Vec<Series> {
    let text = committed(&format!("{name}.csv"));
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let mut all: Vec<Series> = Vec::new();
    for row in reader.records() {
        let row = row.unwrap();
        let named = |at: usize| (!["all", POOLED].contains(&&row[at])).then(|| row[at].to_owned());
        let number = |at: usize| row[at].parse::<f64>().ok();
        let correctness = [Correctness::All, Correctness::Correct, Correctness::Wrong];
        let correctness = correctness.into_iter().find(|c| c.key() == &row[3]).unwrap();
        let group = Group { probe: named(1), kind: named(2), correctness };
        let statistic = statistic(&row[4]);
        let scale = Scale::ALL.into_iter().find(|s| s.key() == &row[5]).unwrap();
        let point = Point {
            layer: Layer { index: row[6].parse().unwrap(), kind: LayerKind::Softmax },
            n: row[7].parse().unwrap(),
            undefined: row[8].parse().unwrap(),
            value: number(9),
            band: number(10).zip(number(11)),
            cases: row[12].split(';').filter_map(|value| value.parse().ok()).collect(),
            signed: None,
        };
        match all.last_mut() {
            Some(last) if last.group == group && last.statistic == statistic => {
                last.n = last.n.max(point.n);
                last.points.push(point);
            }
            _ => {
                let (probes, n, points) = (row[1].to_owned(), point.n, vec![point]);
                all.push(Series { group, probes, statistic, scale, n, points });
            }
        }
    }
    all
}

/// Data source named in a committed picture.
fn origin(svg: &str) -> String {
    svg.lines().find(|line| line.contains(" · ")).unwrap().to_owned()
}

/// Value axis of curves.
fn axis(scale: Scale) -> String {
    match scale {
        Scale::Mass => "attention mass (share of a row token's attention)".to_owned(),
        Scale::Density => "attention density (1 = uniform attention)".to_owned(),
    }
}

fn suffix(scale: Scale) -> &'static str {
    if scale == Scale::Density { " (density)" } else { "" }
}

#[test]
fn tables_of_softmax_models_are_written_as_committed() {
    for kind in ["curves-by-split", "curves-by-type", "ratio-of-means", "mean-of-ratios"] {
        for scale in Scale::ALL {
            let name = format!("{kind}-{}", scale.key());
            let ours = table::series_csv(&name, &[("", "", &series(&name))]);
            assert!(ours == committed(&format!("{name}.csv")).as_bytes(), "{name}.csv differs");
        }
    }
}

#[test]
fn curves_of_softmax_models_are_drawn_as_committed() {
    for scale in Scale::ALL {
        let name = format!("curves-by-type-{}", scale.key());
        let svg = committed(&format!("{name}.svg"));
        let all = series(&name);
        let of = |kind: &str, curve: Curve, part| {
            let wanted = |s: &&Series| {
                s.group.kind.as_deref() == Some(kind) && s.statistic == Statistic::Mean(curve, part)
            };
            all.iter().find(wanted).unwrap().clone()
        };
        let panel = |title: &str, drawn: &[(&str, Meaning, Curve, &str)]| {
            let signal = |one: &(&str, Meaning, Curve, &str)| of(one.0, one.2, Target::Signal);
            let line = |one: &(&str, Meaning, Curve, &str)| (one.1.stroke(), signal(one));
            let noise = |one: &(&str, Meaning, Curve, &str)| {
                (one.1.stroke().noise(), of(one.0, one.2, Target::Noise))
            };
            let named = |one: &(&str, Meaning, Curve, &str)| {
                (Some(one.1.stroke()), format!("{} (n = {})", one.3, signal(one).n))
            };
            let lines = drawn.iter().map(noise).chain(drawn.iter().map(line)).collect();
            Panel::of_layers(title.to_owned(), drawn.iter().map(named).collect(), lines)
        };
        let [back, old, new] =
            [("new", "old"), ("query", "old"), ("query", "new")].map(|(from, to)| Curve::new(from, to));
        let sides = |kind| {
            let lines =
                [(kind, Meaning::Old, old, "query to old"), (kind, Meaning::New, new, "query to new")];
            panel(kind, &lines)
        };
        let types = [("T1", Meaning::Group(0), back, "T1"), ("T2", Meaning::Group(1), back, "T2")];
        let row = vec![sides("T1"), sides("T2"), panel("new to old", &types)];
        let sheet = Sheet {
            title: format!("Attention by layer, for each type{}", suffix(scale)),
            origin: origin(&svg),
            y_label: axis(scale),
            percent: scale == Scale::Mass,
            axes: vec![ValueAxis { reference: (scale == Scale::Density).then_some(1.0), linear: None }],
            rows: vec![row],
            panel: (260, 210),
            reach: 1000.0,
            units: "cases",
            ..Sheet::default()
        };
        assert_as_committed(&name, sheet);
    }
}

#[test]
fn ratios_of_softmax_models_are_drawn_as_committed() {
    let kinds = [
        ("ratio-of-means", "ratio of the groups' means"),
        ("mean-of-ratios", "mean of each example's ratio"),
    ];
    for (kind, what) in kinds {
        for scale in Scale::ALL {
            let name = format!("{kind}-{}", scale.key());
            let svg = committed(&format!("{name}.svg"));
            let all = series(&name);
            // the judge of this run is not usable, so nothing is split
            assert!(all.iter().all(|s| s.group.correctness == Correctness::All));
            let panel = |series: &Series| {
                let stroke = Meaning::Query.stroke();
                let legend = vec![(Some(stroke), format!("all (n = {})", series.n))];
                let title = format!("{} {}", series.group.kind.as_deref().unwrap(), series.probes);
                Panel::of_layers(title, legend, vec![(stroke, series.clone())])
            };
            let rows = all.chunk_by(|a, b| a.group.probe == b.group.probe);
            let sheet = Sheet {
                title: format!("Query to new over query to old: {what}{}", suffix(scale)),
                origin: origin(&svg),
                y_label: format!("ratio of attention {}, new / old", scale.key()),
                percent: false,
                axes: vec![ValueAxis { reference: Some(1.0), linear: None }],
                rows: rows.map(|row| row.iter().map(panel).collect()).collect(),
                legend: Vec::new(),
                panel: (300, 150),
                reach: 10.0,
                units: "cases",
                ..Sheet::default()
            };
            assert_as_committed(&name, sheet);
        }
    }
}

#[test]
fn captions_of_softmax_models_are_as_committed() {
    let captions: serde_json::Value = serde_json::from_str(&committed("captions.json")).unwrap();
    // omitted groups and positions, and the range of the shading, differ from run to run
    let reading = |caption: &str| {
        let caption = caption.split(" Left out").next().unwrap();
        let caption = caption.split(" Shades from").next().unwrap();
        let sentences = caption.split_inclusive(". ");
        sentences.filter(|one| !one.starts_with("A place that has no")).collect::<String>()
    };
    // that run's judge is not usable, so nothing is split by verdict
    for figure in make(&Plan { verdicts: false, ..Plan::small() }).figures {
        let theirs = captions[&figure.name]["caption"].as_str().unwrap();
        assert_eq!(reading(&figure.caption), reading(theirs), "{}", figure.name);
    }
}

fn assert_as_committed(name: &str, sheet: Sheet) {
    let figure = sheet.figure(name, String::new(), Vec::new());
    let drawn = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("committed-figures");
    palimpsest::figures::write(&[figure], &drawn).unwrap();
    let committed: PathBuf = [env!("CARGO_MANIFEST_DIR"), "figures"].iter().collect();
    for ending in ["svg", "png"] {
        let file = format!("{name}.{ending}");
        let [ours, theirs] = [&drawn, &committed].map(|folder| std::fs::read(folder.join(&file)).unwrap());
        assert!(ours == theirs, "{file} differs from {}", drawn.display());
    }
}
