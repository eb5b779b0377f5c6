use std::path::Path;

use palimpsest::figures::{self, Figure, Origin};
use palimpsest::lens::{AnalysedRun, Correctness, Lens, Options, Study};
use roxmltree::Document;

use super::cli::{self, Ended, done, shown};
use super::synthetic_run::{self as synthetic, HOSTILE, Plan};

mod commands;
mod committed;
mod conditions;
mod overview;

struct Made {
    dir: tempfile::TempDir,
    lens: Lens,
    figures: Vec<Figure>,
}

fn make(plan: &Plan) -> Made {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), plan);
    let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    let figures = figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref()));
    Made { dir, lens, figures }
}

fn study(dir: &Path) -> Study {
    Study::open(dir, &[], &Options::default()).unwrap()
}

fn page(made: &Made) -> String {
    synthetic::page(&study(made.dir.path()), made.figures.clone())
}

fn find<'a>(made: &'a Made, name: &str) -> &'a Figure {
    made.figures.iter().find(|figure| figure.name == name).unwrap()
}

/// Model and run shapes that figures must handle: few and many layers, one case, no verdicts.
fn shapes() -> [Plan; 7] {
    [
        Plan::small(),
        Plan { cases: 2, layers: 3, heads: 1, sessions: 7, verdicts: false, ..Plan::small() },
        Plan { cases: 3, layers: 64, heads: 1, sessions: 30, verdicts: true, ..Plan::small() },
        Plan { cases: 1, layers: 1, heads: 1, sessions: 7, verdicts: true, ..Plan::small() },
        Plan::hybrid(),
        Plan { cases: 2, layers: 64, sessions: 12, verdicts: false, ..Plan::hybrid() },
        Plan { cases: 2, ..Plan::linear() },
    ]
}

#[test]
fn every_svg_is_valid_xml_that_refers_to_nothing_outside_itself() {
    for plan in shapes() {
        for figure in make(&plan).figures {
            let document = Document::parse(&figure.svg).unwrap_or_else(|e| panic!("{}: {e}", figure.name));
            for node in document.descendants().filter(|node| node.is_element()) {
                assert!(
                    !["image", "use", "style", "script", "foreignObject"].contains(&node.tag_name().name())
                );
                for attribute in node.attributes() {
                    let value = attribute.value();
                    assert!(!attribute.name().contains("href") && !value.contains("url("), "{}", figure.name);
                    assert!(!value.contains("NaN") && !value.contains("inf"), "{}: {value}", figure.name);
                }
            }
            let title = document
                .descendants()
                .find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "title")));
            assert_eq!(title.and_then(|node| node.text()), Some(figure.title.as_str()));
        }
    }
}

/// A text with its bounding box, in picture units.
struct Set {
    text: String,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Texts of a picture with their boxes, by the widths of the figures' font.
fn set(figure: &Figure) -> Vec<Set> {
    let document = Document::parse(&figure.svg).unwrap();
    let nodes = document.descendants().filter(|node| node.tag_name().name() == "text");
    let one = |node: roxmltree::Node<'_, '_>| {
        let number = |name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
        let text = node.text().unwrap().trim().to_owned();
        let (x, y, size) = (number("x"), number("y"), number("font-size"));
        let width = palimpsest::figures::Typeface::default().width(&text, size);
        let along = match node.attribute("text-anchor").unwrap() {
            "start" => (0.0, width),
            "end" => (-width, 0.0),
            _ => (-width / 2.0, width / 2.0),
        };
        // from a little below the baseline to cap height; no accents
        let across = if node.attribute("dy") == Some("0.76em") { (0.1, 0.95) } else { (-0.35, 0.35) };
        let across = (across.0 * size, across.1 * size);
        match node.attribute("transform") {
            None => {
                Set { text, left: x + along.0, right: x + along.1, top: y + across.0, bottom: y + across.1 }
            }
            Some(_) => {
                Set { text, left: x + across.0, right: x + across.1, top: y - along.1, bottom: y - along.0 }
            }
        }
    };
    nodes.map(one).filter(|set| !set.text.is_empty()).collect()
}

/// Picture size in its units.
fn view(figure: &Figure) -> [f64; 2] {
    let document = Document::parse(&figure.svg).unwrap();
    let view = document.root_element().attribute("viewBox").unwrap();
    let size: Vec<f64> = view.split(' ').map(|number| number.parse().unwrap()).collect();
    [size[2], size[3]]
}

/// Every text lies within its picture.
fn assert_within(figure: &Figure) {
    let [width, height] = view(figure);
    for Set { text, left, top, right, bottom } in set(figure) {
        let within = left >= 0.0 && right <= width + 1.0 && top >= 0.0 && bottom <= height + 1.0;
        assert!(
            within,
            "{}: `{text}` at {left}..{right}, {top}..{bottom} of {width} x {height}",
            figure.name
        );
    }
}

/// No two texts overlap.
fn assert_apart(figure: &Figure) {
    let texts = set(figure);
    for (at, one) in texts.iter().enumerate() {
        for other in &texts[..at] {
            let across = one.right.min(other.right) - one.left.max(other.left);
            let down = one.bottom.min(other.bottom) - one.top.max(other.top);
            // letters may touch by less than a pixel
            let over = across > 4.0 && down > 4.0;
            assert!(!over, "{}: `{}` lies over `{}`", figure.name, one.text, other.text);
        }
    }
}

#[test]
fn every_text_lies_within_its_picture() {
    for plan in shapes() {
        make(&plan).figures.iter().for_each(|figure| {
            assert_within(figure);
            assert_apart(figure);
        });
    }
}

/// Draws with a look.
fn make_by(look: figures::Look, plan: &Plan) -> Vec<Figure> {
    let _look = look.enter();
    make(plan).figures
}

fn column() -> figures::Look {
    let size = figures::look::Size { width: 84.0 / 25.4 * 96.0, text: 8.0 / 0.75 };
    figures::Look { titles: false, size: Some(size), ..figures::Look::default() }
}

#[test]
fn a_column_of_84_millimetres_holds_every_figure_with_words_of_8_points_and_nothing_over_another() {
    for plan in shapes() {
        for figure in make_by(column(), &plan) {
            assert_within(&figure);
            assert_apart(&figure);
            let document = Document::parse(&figure.svg).unwrap();
            assert_eq!(document.root_element().attribute("width"), Some("84.000mm"), "{}", figure.name);
            let millimetres = 84.0 / view(&figure)[0];
            let sizes =
                document.descendants().filter_map(|node| node.attribute("font-size")?.parse::<f64>().ok());
            let sizes: Vec<f64> = sizes.map(|size| size * millimetres / 25.4 * 72.0).collect();
            let most = sizes.iter().copied().fold(0.0, f64::max);
            let least = sizes.iter().copied().fold(f64::INFINITY, f64::min);
            assert!((most - 8.0).abs() < 0.1 && least > 6.5, "{}: {least} to {most} pt", figure.name);
            assert!(!texts(&figure).contains(&figure.title), "{}: the title is the caption's", figure.name);
        }
    }
}

#[test]
fn no_picture_is_wider_than_a_screen() {
    for plan in shapes() {
        for figure in make(&plan).figures {
            assert!(view(&figure)[0] <= 4.0 * 1240.0, "{}: {}", figure.name, view(&figure)[0]);
        }
    }
}

#[test]
fn a_style_file_changes_colours_words_and_font_in_every_figure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("style.toml");
    let font = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/figures/src/font/Arimo-Regular.ttf");
    std::fs::copy(font, dir.path().join("mine.ttf")).unwrap();
    std::fs::write(
        &path,
        "font = \"mine.ttf\"\n[colours]\nolder = \"#123456\"\n[words]\nold = \"outdated\"\n",
    )
    .unwrap();
    let style = figures::Style::read(&path).unwrap();
    let figures = make_by(figures::Look { style, ..figures::Look::default() }, &Plan::small());
    let split = figures.iter().find(|figure| figure.name == "curves-by-split-mass").unwrap();
    assert!(split.svg.contains("#123456") && !split.svg.contains("#D55E00"));
    let said = texts(split);
    assert!(said.iter().any(|text| text == "query to outdated"), "{said:?}");
    assert!(!said.iter().any(|text| text.contains("to old")));
    // the look ends with its scope
    assert!(find(&make(&Plan::small()), "curves-by-split-mass").svg.contains("#D55E00"));
}

#[test]
fn one_colour_means_one_thing_in_every_figure() {
    use palimpsest::figures::meaning::Meaning;
    let written = |meaning: Meaning| {
        let colour = meaning.own().colour;
        format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
    };
    let made = make(&Plan::small());
    let has = |name: &str, meaning: Meaning| find(&made, name).svg.contains(&written(meaning));
    for (name, shown, others) in [
        (
            "curves-by-split-mass",
            vec![Meaning::New, Meaning::Old, Meaning::Back],
            vec![Meaning::Right, Meaning::Group(0)],
        ),
        // Old and new in a panel for each type, and new to old with a line for each type.
        (
            "curves-by-type-mass",
            vec![Meaning::New, Meaning::Old, Meaning::Group(0), Meaning::Group(1)],
            vec![Meaning::Right, Meaning::Wrong],
        ),
        ("ratio-of-means-mass", vec![Meaning::Right, Meaning::Wrong], vec![Meaning::New, Meaning::Group(0)]),
    ] {
        assert!(shown.iter().all(|meaning| has(name, *meaning)), "{name}");
        assert!(!others.iter().any(|meaning| has(name, *meaning)), "{name}");
    }
}

#[test]
fn captions_and_titles_are_plain_text() {
    for plan in shapes() {
        for figure in make(&plan).figures {
            assert!(!format!("{}{}", figure.title, figure.caption).contains('`'), "{}", figure.caption);
        }
    }
}

#[test]
fn long_and_hostile_names_fit_and_stay_valid() {
    let dir = tempfile::tempdir().unwrap();
    let model = "/models/a-very-long-name-a-very-long-name-a-very-long-name-a-very-long-name<&\u{1}>\"'";
    synthetic::write(dir.path(), &Plan { model, ..Plan::small() });
    let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    for figure in figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref())) {
        assert_within(&figure);
    }
}

#[test]
fn figures_are_the_same_each_time_and_say_model_data_and_units() {
    let (first, second) = (make(&Plan::small()), make(&Plan::small()));
    for (a, b) in first.figures.iter().zip(&second.figures) {
        assert_eq!(a.svg, b.svg);
        assert_eq!(a.csv, b.csv);
        for words in ["smollm2-135m", "STALE sample", "layer", "6 cases"] {
            assert!(a.svg.contains(words), "{} lacks {words}", a.name);
        }
    }
    assert!(find(&first, "curves-by-split-mass").svg.contains("share of a row token&apos;s attention"));
    assert!(find(&first, "curves-by-type-mass").svg.contains("T2 (n = 3)"));
}

#[test]
fn a_reader_sees_in_every_figure_which_layers_are_linear() {
    const LEGEND: &str = "linear layer: share of |weight|";
    for plan in [Plan::hybrid(), Plan::linear()] {
        let made = make(&plan);
        for figure in &made.figures {
            assert_eq!(figure.svg.matches(LEGEND).count(), 1, "{}", figure.name);
            assert_eq!(figure.caption.matches("At linear layers (").count(), 1, "{}", figure.caption);
        }
        // the bands of three panels (two in each of the hybrid, one where all layers are linear) and of the legend
        let bands = find(&made, "curves-by-type-mass").svg.matches("fill=\"#ECECEC\"").count();
        assert_eq!(bands, 3 * if plan.softmax_every == 4 { 2 } else { 1 } + 1);
    }
    for figure in &make(&Plan::small()).figures {
        let text = format!("{} {}", figure.svg, figure.caption);
        assert!(!text.contains("linear") && !text.contains("#ECECEC"), "{}", figure.name);
        assert!(!String::from_utf8(figure.csv.clone()).unwrap().contains("layer_kind"), "{}", figure.name);
    }
}

#[test]
fn the_overview_names_the_kinds_of_layers_and_never_averages_over_both() {
    let html = page(&make(&Plan::hybrid()));
    assert!(html.contains("8 layers (2 softmax, 6 linear)"), "{html}");
    assert!(html.contains("mean over the 2 softmax layers"), "{html}");
    let html = page(&make(&Plan::linear()));
    assert!(html.contains("6 layers (6 linear)") && !html.contains("softmax layers"), "{html}");
}

#[test]
fn a_group_without_members_is_left_out_and_named_in_the_caption() {
    // cases 1 and 3 are T2, and correct for SR
    let made = make(&Plan { cases: 4, ..Plan::small() });
    for name in ["curves-by-split-mass", "ratio-of-means-mass", "mean-of-ratios-density"] {
        let figure = find(&made, name);
        assert!(figure.caption.contains("having no members: T2 SR wrong."), "{}", figure.caption);
        let table = String::from_utf8(figure.csv.clone()).unwrap();
        assert!(table.contains(",SR,T2,correct,") && !table.contains(",SR,T2,wrong,"), "{name}");
    }
    assert!(!find(&made, "curves-by-split-mass").svg.contains("T2 SR wrong"));
    let unjudged = make(&Plan { verdicts: false, ..Plan::small() });
    assert!(find(&unjudged, "ratio-of-means-mass").caption.contains("no verdicts"));
}

#[test]
fn figures_take_the_probes_that_the_paper_takes_and_name_them() {
    let made = make(&Plan::small());
    let of_type = find(&made, "curves-by-type-mass");
    assert!(of_type.caption.starts_with("Means over SR and IPA: "), "{}", of_type.caption);
    let table = String::from_utf8(of_type.csv.clone()).unwrap();
    assert!(table.contains(",SR+IPA,T1,") && !table.contains(",all,T1,"));
    for name in ["curves-by-split-mass", "ratio-of-means-mass", "mean-of-ratios-mass"] {
        let figure = find(&made, name);
        let said = "Split by verdict: SR and IPA; PR is in the tables of palimpsest lens.";
        assert!(figure.caption.contains(said), "{}", figure.caption);
        assert!(figure.svg.contains("T1 IPA") && !figure.svg.contains("T1 PR"), "{name}");
    }
    // an unsplit figure shows every probe
    let unjudged = make(&Plan { verdicts: false, ..Plan::small() });
    assert!(find(&unjudged, "ratio-of-means-mass").svg.contains("T1 PR"));
}

/// Texts of a picture.
fn texts(figure: &Figure) -> Vec<String> {
    let document = Document::parse(&figure.svg).unwrap();
    let nodes = document.descendants().filter(|node| node.tag_name().name() == "text");
    nodes.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn legends_name_the_bands_where_there_are_any_and_the_single_cases_where_there_are_none() {
    let named = |figure: &Figure, text: &str| texts(figure).iter().filter(|one| *one == text).count();
    let (band, noise) = ("95% band", "dotted: noise baseline of the line of its colour");
    let single = "single cases (n < 5: no band)";
    let many = make(&Plan { cases: 12, ..Plan::small() });
    let of_type = find(&many, "curves-by-type-mass");
    assert_eq!((named(of_type, band), named(of_type, noise), named(of_type, single)), (1, 1, 0));
    let ratios = find(&many, "ratio-of-means-mass");
    assert_eq!((named(ratios, noise), named(ratios, single)), (0, 1), "baselines have no ratio");
    let few = make(&Plan::small());
    let of_type = find(&few, "curves-by-type-mass");
    assert_eq!((named(of_type, band), named(of_type, noise), named(of_type, single)), (0, 1, 1));
    assert!(of_type.svg.contains("<circle"));
    // a single case is its own curve
    let one = make(&Plan { cases: 1, ..Plan::small() });
    let of_type = find(&one, "curves-by-type-mass");
    assert_eq!(named(of_type, single), 0);
    assert!(!of_type.svg.contains("<circle"));
}

#[test]
fn bands_that_go_beyond_the_axis_are_marked() {
    let mark = "goes on beyond the axis";
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { cases: 12, verdicts: false, ..Plan::small() };
    synthetic::write(dir.path(), &plan);
    let drawn = || {
        let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
        let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
        let figures = figures::draw_all(&lens, &Origin::of(&run, None));
        figures.into_iter().find(|figure| figure.name == "curves-by-type-mass").unwrap()
    };
    assert!(!texts(&drawn()).iter().any(|text| text == mark));
    // one case of six has all the mass, the others almost none: a mean without it is decades lower
    for case in (0..12).step_by(2) {
        for probe in ["SR", "IPA"] {
            let path = dir.path().join(format!("attention/case-{case:03}-{probe}.safetensors"));
            let mut store = palimpsest_core::attention::AttentionStore::load(&path).unwrap();
            let factor = if case == 0 { 1.0 } else { 1e-5 };
            store.mass.mapv_inplace(|mass| mass * factor);
            store.save(&path).unwrap();
        }
    }
    assert!(texts(&drawn()).iter().any(|text| text == mark));
}

#[test]
fn every_session_of_a_case_has_the_number_of_its_span_and_dropped_ones_leave_a_gap() {
    let made = make(&Plan { sessions: 30, ..Plan::small() });
    let figure = find(&made, "strip-case-mass");
    let said = texts(figure);
    let count = |text: &str| said.iter().filter(|one| *one == text).count();
    // session[0] was dropped: the axis begins at 1; old is session[1] and new session[28] of case 0; three probes
    for number in 6..30 {
        assert_eq!(count(&number.to_string()), 3, "session[{number}]");
    }
    assert_eq!((count("30"), count("old"), count("new")), (0, 3, 3));
    assert!(count("28") == 3, "new keeps its number");
    assert!(
        figure
            .caption
            .contains("numbered from 0, as in the run's files; a gap is where sessions were not shown")
    );
    assert!(
        said.contains(&"29 sessions (without session 0), 100 tokens".replace("100", &tokens(&made))),
        "{said:?}"
    );
    let table = String::from_utf8(figure.csv.clone()).unwrap();
    assert!(table.lines().next().unwrap().ends_with(",layer,value"));
    assert!(table.lines().any(|line| line.contains(",SR,28,new,")));
}

/// Prompt tokens of the first example.
fn tokens(made: &Made) -> String {
    made.lens.examples[0].prompt_tokens.to_string()
}

#[test]
fn heat_maps_say_how_many_cases_each_place_has_and_what_their_shades_are() {
    let made = make(&Plan::small());
    let figure = find(&made, "strip-mean-mass");
    let said = texts(figure);
    // no case has a session between the first one and old's neighbour; all six have old and new
    assert!(said.iter().filter(|text| *text == "6").count() >= 6, "{said:?}");
    assert!(said.iter().filter(|text| *text == "n").count() == 3, "one a map");
    assert!(figure.caption.contains(" Shades from ") && figure.caption.contains("the greatest"));
}

#[test]
fn the_last_layer_has_a_tick_in_every_figure() {
    for (plan, last) in
        [(Plan { layers: 30, ..Plan::small() }, "29"), (Plan { layers: 64, ..Plan::hybrid() }, "63")]
    {
        let made = make(&Plan { cases: 2, verdicts: false, ..plan });
        for figure in &made.figures {
            assert!(texts(figure).iter().any(|text| text == last), "{} lacks {last}", figure.name);
        }
    }
}

/// Figures of a run with changed masses of the query on the old session.
fn figures_of_changed(change: impl Fn(ndarray::ArrayViewMut2<f32>)) -> Vec<figures::Figure> {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan { cases: 2, verdicts: false, ..Plan::small() });
    for case in 0..2 {
        for probe in ["SR", "PR", "IPA"].into_iter().filter(|probe| (case, *probe) != (1, "PR")) {
            let path = dir.path().join(format!("attention/case-{case:03}-{probe}.safetensors"));
            let mut store = palimpsest_core::attention::AttentionStore::load(&path).unwrap();
            let old = store.keys.iter().position(|span| span.is("old")).unwrap();
            change(store.mass.slice_mut(ndarray::s![.., .., 1, old]));
            store.save(&path).unwrap();
        }
    }
    let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    figures::draw_all(&lens, &Origin::of(&run, None))
}

#[test]
fn layers_without_mass_are_named() {
    let figures = figures_of_changed(|mut mass| {
        [0, 1, 3].into_iter().for_each(|layer| mass.row_mut(layer).fill(0.0));
    });
    let caption = |name: &str| &figures.iter().find(|figure| figure.name == name).unwrap().caption;
    let said = "a ring at its foot and a gap in the line: query to old at layers 0–1, 3.";
    assert!(caption("curves-by-type-mass").contains(said), "{}", caption("curves-by-type-mass"));
    assert!(caption("strip-case-mass").contains("Cells of 0: at layers 0–1, 3."));
    assert!(caption("strip-case-mass").contains("of them 0"));
}

#[test]
fn exact_zeros_are_marked_as_such_and_not_as_beyond_the_axis() {
    // a knock-out: the query's mass on the old session is zero at every layer
    let figures = figures_of_changed(|mut mass| mass.fill(0.0));
    let find = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap();
    let curves = texts(find("curves-by-type-mass"));
    assert!(curves.iter().any(|text| text == "exactly 0") && curves.iter().any(|text| text == "0"));
    assert!(!curves.iter().any(|text| text == "goes on beyond the axis"), "{curves:?}");
    // no example has a ratio: nothing is drawn over the title, and the caption explains it
    let ratios = find("mean-of-ratios-mass");
    assert_apart(ratios);
    assert!(ratios.caption.contains("Nothing is drawn"), "{}", ratios.caption);
}

#[test]
fn a_draw_and_distant_baselines_are_told_in_captions() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { cases: 12, sessions: 12, ..Plan::small() };
    synthetic::write(dir.path(), &plan);
    let path = dir.path().join("attention/case-000-SR.safetensors");
    synthetic::store(&plan, 0, "SR", &[1, 4, 5, 10]).save(&path).unwrap();
    let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
    let per_group = Some(palimpsest::lens::PerGroup { most: 4, seed: 7 });
    let lens = synthetic::lens(dir.path(), &Options { per_group, ..Options::default() }).unwrap();
    let of = lens.drawn.unwrap();
    for figure in figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref())) {
        let said = format!(
            "Drawn (seed 7): up to 4 examples of each question, type and verdict, {} of 35.",
            of.kept
        );
        assert!(figure.caption.contains(&said), "{}", figure.caption);
    }
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    let figures = figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref()));
    let said = "In 1 of 35 examples a neighbour was dropped to fit the context or is evidence itself: the nearest session that was \
                kept in that direction stands in, up to 5 sessions away";
    let by_type = figures.iter().find(|figure| figure.name == "curves-by-type-mass").unwrap();
    assert!(by_type.caption.contains(said), "{}", by_type.caption);
}

#[test]
fn two_models_are_drawn_side_by_side_on_one_value_axis() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    synthetic::write(&a, &Plan { model: "nine-b", ..Plan::small() });
    synthetic::write(&b, &Plan { model: "twenty-seven-b", ..Plan::hybrid() });
    let out = dir.path().join("both");
    let figures =
        |arguments: &[&str]| cli::palimpsest([&["figures", shown(&a), shown(&b)], arguments].concat());
    let refused = figures(&[]);
    assert!(refused.err.contains("2 runs") && refused.err.contains("--out"), "{}", refused.err);
    assert_eq!(refused.code, Some(1));
    done(figures(&["--out", shown(&out)]));
    for name in ["curves-by-split", "curves-by-type", "ratio-of-means", "mean-of-ratios"] {
        let svg = std::fs::read_to_string(out.join(format!("{name}-mass.svg"))).unwrap();
        assert!(svg.contains("nine-b · ") && svg.contains("twenty-seven-b · "), "{name}");
        let mut reader = csv::Reader::from_path(out.join(format!("{name}-mass.csv"))).unwrap();
        let rows: Vec<std::collections::BTreeMap<String, String>> =
            reader.deserialize().map(Result::unwrap).collect();
        for (model, layers) in [("nine-b", 5), ("twenty-seven-b", 8)] {
            let of = rows.iter().filter(|row| row["model"] == model).map(|row| &row["layer"]);
            let of: std::collections::BTreeSet<&String> = of.collect();
            assert_eq!(of.len(), layers, "{name}, {model}");
        }
    }
    assert!(!out.join("strip-mean-mass.svg").exists(), "heat maps are of one run");
    let captions = std::fs::read_to_string(out.join("captions.json")).unwrap();
    assert!(
        captions.contains("layer axes of their own")
            && captions.contains("twenty-seven-b: At linear layers (")
    );
    // a table of one run has no such column
    assert!(!String::from_utf8(make(&Plan::small()).figures[0].csv.clone()).unwrap().contains("model"));
}

#[test]
fn the_distribution_of_a_label_is_drawn_with_its_counts() {
    use palimpsest::case::{Case, labels};
    let case = |(category, kind): (&str, &str)| {
        let labels = [("category", category), ("type", kind)].map(|(a, b)| (a.to_owned(), b.to_owned()));
        Ok::<_, String>(Case { labels: labels.into_iter().collect(), ..Case::default() })
    };
    let cases = [("Routine", "T1"), ("Routine", "T2"), ("Health & Body", "T2"), ("Routine", "T2")];
    let counts = labels::count(cases.map(case), "category", "type").unwrap();
    let figure = figures::distribution(&counts, "file.json · 4 cases");
    assert_within(&figure);
    let said = texts(&figure);
    for text in ["Cases by category", "Routine", "Health & Body", "3 (75.0%)", "1 (25.0%)", "T1", "T2"] {
        assert!(said.iter().any(|one| one == text), "{text}: {said:?}");
    }
    assert_eq!(
        String::from_utf8(figure.csv).unwrap(),
        "label,value,cases,T1,T2\ncategory,Routine,3,1,2\ncategory,Health & Body,1,0,1\n"
    );
}

fn palimpsest(arguments: &[&str], dir: &Path) -> Ended {
    cli::palimpsest([arguments, &[shown(dir)]].concat())
}
