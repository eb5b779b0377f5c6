//! What must hold for the figures and the report.

use std::path::Path;

use assert_cmd::Command;
use palimpsest::figures::{self, Figure, Origin, report};
use palimpsest::lens::{AnalysedRun, Correctness, Lens, Options};
use resvg::usvg::roxmltree::Document;

use super::synthetic_run::{self as synthetic, HOSTILE, Plan};

mod committed;

struct Made {
    dir: tempfile::TempDir,
    run: AnalysedRun,
    lens: Lens,
    figures: Vec<Figure>,
}

fn make(plan: &Plan) -> Made {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), plan);
    let run = AnalysedRun::open(dir.path()).unwrap();
    let lens = Lens::of(&run, &Options { resamples: 200, ..Options::default() }).unwrap();
    let figures = figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref())).unwrap();
    Made { dir, run, lens, figures }
}

fn page(made: &Made) -> String {
    let verdicts = made.run.verdicts(None).unwrap();
    report::page(&made.run, &verdicts, Some(&made.lens), &made.figures).unwrap()
}

fn find<'a>(made: &'a Made, name: &str) -> &'a Figure {
    made.figures.iter().find(|figure| figure.name == name).unwrap()
}

/// Shapes of a model and a run that pictures must stand: few and many layers, one case, no verdicts.
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

/// Every text of a figure lies within its picture, by a generous estimate of its width.
fn assert_within(figure: &Figure) {
    let document = Document::parse(&figure.svg).unwrap();
    let view = document.root_element().attribute("viewBox").unwrap();
    let size: Vec<f64> = view.split(' ').map(|number| number.parse().unwrap()).collect();
    for node in document.descendants().filter(|node| node.tag_name().name() == "text") {
        let number = |name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
        let text = node.text().unwrap().trim();
        let width = text.chars().count() as f64 * number("font-size") * 0.5;
        let upright = node.attribute("transform").is_none();
        let (at, room) = if upright { (number("x"), size[2]) } else { (number("y"), size[3]) };
        let (from, to) = match node.attribute("text-anchor").unwrap() {
            "start" => (at, at + width),
            "end" => (at - width, at),
            _ => (at - width / 2.0, at + width / 2.0),
        };
        assert!(from >= 0.0 && to <= room, "{}: `{text}` spans {from}..{to} of {room}", figure.name);
    }
}

#[test]
fn every_text_lies_within_its_picture() {
    for plan in shapes() {
        make(&plan).figures.iter().for_each(assert_within);
    }
}

#[test]
fn long_and_hostile_names_fit_and_stay_valid() {
    let dir = tempfile::tempdir().unwrap();
    let model = "/models/a-very-long-name-a-very-long-name-a-very-long-name-a-very-long-name<&\u{1}>\"'";
    synthetic::write(dir.path(), &Plan { model, ..Plan::small() });
    let run = AnalysedRun::open(dir.path()).unwrap();
    let lens = Lens::of(&run, &Options { resamples: 200, ..Options::default() }).unwrap();
    for figure in figures::draw_all(&lens, &Origin::of(&run, lens.judge.as_deref())).unwrap() {
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
        // beside the three panels' bands (two in each of the hybrid, one where all is linear) that of the legend
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
fn the_page_keeps_means_over_softmax_and_linear_layers_apart() {
    let html = page(&make(&Plan::hybrid()));
    for words in [
        "8 layers (2 softmax, 6 linear)",
        "The query's attention, mean over softmax layers (2 of 8)",
        "The query's implicit attention, share of |weight|, mean over linear layers (6 of 8)",
        "averaged over heads and the 2 softmax layers (",
    ] {
        assert!(html.contains(words), "the page lacks `{words}`");
    }
    let html = page(&make(&Plan::linear()));
    assert!(html.contains("mean over linear layers (6 of 6)") && html.contains("layers (all linear: "));
    assert!(!html.contains("mean over softmax layers"));
    let html = page(&make(&Plan::small()));
    assert!(html.contains("The query's attention, mean over layers</dt>"));
    assert!(html.contains("averaged over heads and layers, for each probe"));
    assert!(!html.contains("linear"));
}

#[test]
fn a_group_without_members_is_left_out_and_named_in_the_caption() {
    let made = make(&Plan::small());
    for name in ["curves-by-split-mass", "ratio-of-means-mass", "mean-of-ratios-density"] {
        let figure = find(&made, name);
        assert!(figure.caption.contains("having no members: T2 PR correct."), "{}", figure.caption);
        let table = String::from_utf8(figure.csv.clone()).unwrap();
        assert!(table.contains(",PR,T2,wrong,") && !table.contains(",PR,T2,correct,"), "{name}");
    }
    assert!(!find(&made, "curves-by-split-mass").svg.contains("T2 PR correct"));
    let unjudged = make(&Plan { verdicts: false, ..Plan::small() });
    assert!(find(&unjudged, "ratio-of-means-mass").caption.contains("no verdicts"));
}

#[test]
fn written_figures_are_svg_png_and_csv_with_captions_beside_them() {
    let made = make(&Plan::small());
    let out = made.dir.path().join("figures");
    let written = figures::write(&made.figures, &out).unwrap();
    assert_eq!(written.len(), made.figures.len() * 3 + 1);
    let captions: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("captions.json")).unwrap()).unwrap();
    for figure in &made.figures {
        assert_eq!(captions[&figure.name]["caption"], figure.caption.as_str());
        let png = std::fs::read(out.join(format!("{}.png", figure.name))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "{}", figure.name);
        // twice the size that the SVG says
        let size = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        let document = Document::parse(&figure.svg).unwrap();
        let said = |name: &str| document.root_element().attribute(name).unwrap().parse::<u32>().unwrap();
        assert_eq!((size(16), size(20)), (2 * said("width"), 2 * said("height")));
    }
}

/// The page's tags, so that what a session says is not taken for markup.
fn tags(html: &str) -> Vec<&str> {
    html.split('<').skip(1).filter_map(|piece| piece.split_once('>')).map(|(tag, _)| tag).collect()
}

#[test]
fn the_page_asks_for_nothing_and_runs_nothing() {
    let html = page(&make(&Plan::small()));
    for tag in tags(&html) {
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
        assert!(
            !["script", "link", "img", "iframe", "object", "embed", "base", "image", "use"].contains(&name),
            "{tag}"
        );
        for attribute in [" src=", " href=", " srcset=", " action=", " onerror=", " onload="] {
            assert!(!tag.contains(attribute), "{tag}");
        }
        assert!(!tag.contains("http://") && !tag.contains("https://") && !tag.contains("url("), "{tag}");
    }
    assert!(!html.contains("@import") && !html.contains("url("));
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn what_sessions_and_answers_say_stays_text() {
    let html = page(&make(&Plan::small()));
    assert!(!html.contains(HOSTILE) && !html.contains("<script"));
    assert!(html.contains("&lt;script&gt;alert(") && html.contains("&lt;&#x2f;details&gt;"));
    let open = tags(&html).iter().filter(|tag| **tag == "details" || tag.starts_with("details ")).count();
    assert_eq!(open, html.matches("</details>").count());
}

#[test]
fn the_page_shows_run_table_errors_and_dropped_sessions_in_words() {
    let html = page(&make(&Plan::small()));
    for words in [
        "smollm2-135m",
        synthetic::JUDGE,
        "STALE sample",
        "greedy",
        "4096 tokens",
        "How well it judges is not known",
        "1 session left out to fit the context: 0.",
        "the evidence alone needs 9,000 tokens of a context of 4,096",
        "17 of 18 probes were answered",
        "1 without verdict",
        "mean of the 6 cells",
        "OLD",
        "NEW",
        "The answer follows the later session.",
    ] {
        assert!(html.contains(words), "the page lacks `{words}`");
    }
    // T1 SR of six cases: 0, 2 and 4 are T1, of which 2 is judged wrong
    assert!(html.contains("<strong>66.7%</strong> <small>2 of 3</small><small>20.8–93.9%</small>"));
}

#[test]
fn a_judge_that_cannot_judge_gives_no_percentages_and_splits_no_figure() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::small());
    let path = dir.path().join("verdicts.jsonl");
    let rows = std::fs::read_to_string(&path).unwrap().replace(synthetic::JUDGE, "local:smollm2-135m");
    std::fs::write(&path, rows).unwrap();
    let run = AnalysedRun::open(dir.path()).unwrap();
    let lens = Lens::of(&run, &Options::default()).unwrap();
    assert_eq!(lens.judge, None);
    assert!(lens.groups().iter().all(|group| group.correctness == Correctness::All));
    let figures = figures::draw_all(&lens, &Origin::of(&run, None)).unwrap();
    assert!(figures.iter().all(|figure| !figure.svg.contains("correct (n")));
    let about = figures.iter().find(|figure| figure.caption.contains("the verdicts are no result"));
    assert!(about.is_some());
    let html = report::page(&run, &run.verdicts(None).unwrap(), Some(&lens), &figures).unwrap();
    assert!(html.contains("No result.") && html.contains("about 135 million parameters"));
    assert!(!html.contains("mean of the 6 cells") && !html.contains("20.8–93.9%"));
}

#[test]
fn a_run_without_attention_still_has_a_page() {
    let made = make(&Plan::small());
    let verdicts = made.run.verdicts(None).unwrap();
    let html = report::page(&made.run, &verdicts, None, &[]).unwrap();
    assert!(html.contains("No attention was recorded") && html.contains("Oatmeal with berries"));
    assert!(!html.contains("<svg"));
}

fn palimpsest(arguments: &[&str], dir: &Path) -> Command {
    let mut command = Command::cargo_bin("palimpsest").unwrap();
    command.args(arguments).arg(dir);
    command
}

#[test]
fn the_commands_write_into_the_run_and_say_where() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::small());
    let said = |command: &str| {
        let output = palimpsest(&[command, "--resamples", "200"], dir.path()).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let lens = said("lens");
    assert!(
        lens.contains("curves.csv") && lens.contains("T1 SR") && lens.contains("not measured: case-001 PR")
    );
    assert!(lens.contains("5 layers, 17 examples") && lens.contains("attention in %, mean over layers ("));
    assert!(!lens.contains("linear"));
    assert!(said("figures").contains("figures"));
    assert!(said("report").contains("report.html"));
    for file in ["lens/curves.csv", "lens/ratios.csv", "figures/strip-mean-mass.png", "report.html"] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn the_summary_of_a_hybrid_model_has_a_table_for_each_kind_of_layer() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::hybrid());
    let output = palimpsest(&["lens", "--resamples", "200"], dir.path()).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.contains("8 layers (2 softmax, 6 linear), 17 examples measured"), "{text}");
    let (_, tables) = text.split_once("\nattention in %, mean over softmax layers (2) (").unwrap();
    let (softmax, linear) =
        tables.split_once("\nshare of |weight| in %, mean over linear layers (6) (").unwrap();
    let row = |table: &str| table.lines().find(|line| line.starts_with("T1 SR  ")).unwrap().to_owned();
    assert_ne!(row(softmax), row(linear));
}

#[test]
fn the_commands_refuse_a_folder_that_is_no_run_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["lens", "figures", "report"] {
        let output = palimpsest(&[command], dir.path()).assert().code(1);
        let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert!(text.contains("is no run folder") && text.lines().count() == 1, "{text}");
    }
}
