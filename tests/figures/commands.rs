//! The commands `lens`, `figures` and `report`: paths, output and rejected input.

use super::*;

#[test]
fn the_commands_write_into_the_run_and_say_where() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::small());
    let said = |command: &str| done(palimpsest(&[command], dir.path())).out;
    let lens = said("lens");
    assert!(
        lens.contains("curves.csv") && lens.contains("T1 SR") && lens.contains("not measured: case-001 PR")
    );
    assert!(
        lens.contains("5 layers, 17 examples")
            && lens.contains("attention in %, mean over layers (noise baseline)")
    );
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
    let text = done(palimpsest(&["lens"], dir.path())).out;
    assert!(text.contains("8 layers (2 softmax, 6 linear), 17 examples measured"), "{text}");
    let (_, tables) = text.split_once("\nattention in %, mean over the 2 softmax layers (").unwrap();
    let (softmax, linear) =
        tables.split_once("\nshare of |weight| in %, mean over the 6 linear layers (").unwrap();
    let row = |table: &str| table.lines().find(|line| line.starts_with("T1 SR  ")).unwrap().to_owned();
    assert_ne!(row(softmax), row(linear));
}

#[test]
fn the_printed_tables_are_aligned_and_no_wider_than_a_page() {
    for plan in [Plan::small(), Plan::hybrid()] {
        let dir = tempfile::tempdir().unwrap();
        synthetic::write(dir.path(), &plan);
        let text = done(palimpsest(&["lens"], dir.path())).out;
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("wrote ")).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let heads = (0..lines.len()).filter(|&at| lines[at].starts_with("group "));
        let tables: Vec<&[&str]> = heads
            .map(|at| {
                let rows = lines[at..].iter().take_while(|line| !line.is_empty()).count();
                &lines[at..at + rows]
            })
            .collect();
        assert!(!tables.is_empty(), "{text}");
        for table in tables {
            // The last column is right-aligned under its header.
            assert!(table.len() > 1 && table.iter().all(|line| line.len() == table[0].len()), "{text}");
        }
        // Baselines are in their column, and every group has n.
        let row = lines.iter().find(|line| line.starts_with("T1 SR ")).unwrap();
        assert!(
            text.contains("(noise baseline)") && row.contains('(') && text.contains("n: cases with a"),
            "{row}"
        );
    }
}

#[test]
fn the_commands_refuse_a_folder_that_is_no_run_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["lens", "figures", "report"] {
        let Ended { code, err: text, .. } = palimpsest(&[command], dir.path());
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("is no run folder") && text.lines().count() == 1, "{text}");
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "{command} wrote into it");
    }
}
