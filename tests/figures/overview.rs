//! Files of figures, and the overview of a run.

use super::*;

#[test]
fn written_figures_are_svg_pdf_png_and_csv_with_captions_beside_them() {
    let made = make(&Plan::small());
    let out = made.dir.path().join("figures");
    let written = figures::write(&made.figures, &out).unwrap();
    assert_eq!(written.len(), made.figures.len() * 4 + 1);
    let captions: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("captions.json")).unwrap()).unwrap();
    for figure in &made.figures {
        assert_eq!(captions[&figure.name]["caption"], figure.caption.as_str());
        let png = std::fs::read(out.join(format!("{}.png", figure.name))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "{}", figure.name);
        // twice the size of the SVG
        let size = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        let document = Document::parse(&figure.svg).unwrap();
        let said = |name: &str| document.root_element().attribute(name).unwrap().parse::<u32>().unwrap();
        assert_eq!((size(16), size(20)), (2 * said("width"), 2 * said("height")));
        let pdf = std::fs::read(out.join(format!("{}.pdf", figure.name))).unwrap();
        assert!(pdf.starts_with(b"%PDF-"), "{}", figure.name);
        let pdf: Vec<u8> = pdf.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
        assert!(!holds(&pdf, b"/CreationDate"), "{}", figure.name);
        // the used glyphs, embedded as a font with their Unicode mapping
        for word in ["/FontFile2", "/ToUnicode", "/BaseFont/PALIMP+Arimo"] {
            assert!(holds(&pdf, word.as_bytes()), "{} lacks {word}", figure.name);
        }
        let page = format!("/MediaBox[00{}{}]", points(said("width")), points(said("height")));
        assert!(holds(&pdf, page.as_bytes()), "{} lacks {page}", figure.name);
    }
    let again = made.dir.path().join("again");
    figures::write(&made.figures, &again).unwrap();
    for path in written {
        let file = path.file_name().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(again.join(file)).unwrap(), "{file:?}");
    }
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|part| part == wanted)
}

/// Pixels to points, as PDF writes them.
fn points(pixels: u32) -> f64 {
    f64::from(pixels) * 0.75
}

/// The page's tags; session text must not count as markup.
fn tags(html: &str) -> Vec<&str> {
    html.split('<').skip(1).filter_map(|piece| piece.split_once('>')).map(|(tag, _)| tag).collect()
}

#[test]
fn the_overview_asks_for_nothing_runs_nothing_and_has_no_style_of_its_own() {
    for plan in shapes() {
        let html = page(&make(&plan));
        for tag in tags(&html) {
            let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
            assert!(
                !["script", "style", "link", "img", "iframe", "object", "embed", "base", "image", "use"]
                    .contains(&name),
                "{tag}"
            );
            for attribute in [" src=", " srcset=", " action=", " onerror=", " onload=", " style="] {
                assert!(!tag.contains(attribute), "{tag}");
            }
            assert!(!tag.contains(" href=") || tag.contains(" href=\"#"), "{tag}");
            assert!(!tag.contains("http://") && !tag.contains("https://") && !tag.contains("url("), "{tag}");
        }
        assert!(!html.contains("@import") && !html.contains("url("));
    }
}

#[test]
fn what_answers_and_headers_say_stays_text() {
    let html = page(&make(&Plan::small()));
    assert!(!html.contains(HOSTILE) && !html.contains("<script"));
    let open = tags(&html).iter().filter(|tag| **tag == "details" || tag.starts_with("details ")).count();
    assert_eq!(open, html.matches("</details>").count());
}

#[test]
fn the_overview_shows_run_table_and_errors_in_words() {
    let html = page(&make(&Plan::small()));
    for words in [
        "smollm2-135m",
        synthetic::JUDGE,
        "STALE sample",
        "greedy",
        "4096 tokens",
        "How well it judges is not known",
        "17 of 18 questions were answered",
        "1 without verdict",
        "mean of the 6 cells",
    ] {
        assert!(html.contains(words), "the overview lacks `{words}`");
    }
    // T1 SR of six cases: 0, 2 and 4 are T1, of which 2 is judged wrong
    assert!(html.contains("<strong>66.7%</strong> <small>2 of 3</small><small>20.8–93.9%</small>"));
}

#[test]
fn one_chart_holds_all_cases_on_a_linear_and_on_a_logarithmic_axis() {
    let html = page(&make(&Plan::small()));
    let chart = |class: &str| {
        let (_, rest) = html.split_once(&format!("<div class=\"{class}\">")).unwrap();
        rest.split("</figure>").next().unwrap().to_owned()
    };
    for (class, name) in [("by-linear", "overall-linear"), ("by-log", "overall-log")] {
        let chart = chart(class);
        assert!(chart.contains(&format!("id=\"{name}\"")) && chart.contains("noise baseline"), "{chart}");
        for role in ["old", "new"] {
            assert!(chart.contains(&format!("query to {role}")), "{class} lacks {role}");
        }
    }
    assert!(
        chart("by-log").contains("Logarithmic value axis") && !chart("by-linear").contains("Logarithmic")
    );
}

#[test]
fn a_judge_that_cannot_judge_gives_no_percentages_and_splits_no_figure() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::small());
    let path = dir.path().join("verdicts.jsonl");
    let rows = std::fs::read_to_string(&path).unwrap().replace(synthetic::JUDGE, "local:smollm2-135m");
    std::fs::write(&path, rows).unwrap();
    let run = AnalysedRun::open_condition(dir.path(), "").unwrap();
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    assert_eq!(lens.judge, None);
    assert!(lens.groups().iter().all(|group| group.correctness == Correctness::All));
    let figures = figures::draw_all(&lens, &Origin::of(&run, None));
    assert!(figures.iter().all(|figure| !figure.svg.contains("correct (n")));
    let about = figures.iter().find(|figure| figure.caption.contains("the verdicts are no result"));
    assert!(about.is_some());
    let html = synthetic::page(&study(dir.path()), figures);
    assert!(html.contains("No result.") && html.contains("about 135 million parameters"));
    assert!(!html.contains("mean of the 6 cells") && !html.contains("20.8–93.9%"));
}

#[test]
fn a_run_without_attention_still_has_a_page() {
    let made = make(&Plan::small());
    let mut study = study(made.dir.path());
    study.conditions[0].lens = None;
    let html = synthetic::page(&study, Vec::new());
    assert!(html.contains("No attention was recorded") && html.contains("17 of 18 questions were answered"));
    assert!(!html.contains("<svg"));
}
