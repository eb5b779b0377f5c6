//! Tables of one's own: every form of one content is the same history, and every fault is told by its row.

use std::path::Path;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::{Dataset, cases_in_memory};
use palimpsest::benchmarks::own::OWN;
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::case::{Case, Evidence};

const MESSAGES: &str = "\
session,time,role,text
a,2025-03-01 10:00,user,\"The market is on Thursday, I think.\"
a,2025-03-01 10:01,assistant,\"Noted: \"\"Thursday\"\".\"
b,2025-03-02 10:00,user,\"Two lines:
the second; with a semicolon.\"
b,2025-03-02 10:02,system,Café 猫
c,2025-05-01 09:00,user,From May on the market is on Sunday.
";
const QUESTIONS: &str = "\
question,answer,old,new
On which day is the market?,Sunday,The market is on Thursday,the market is on Sunday
What does the bakery sell?,,,
";

type Read = Vec<Result<Case, ReadError>>;

fn read(messages: impl AsRef<[u8]>, questions: impl AsRef<[u8]>) -> Read {
    let file = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
    cases_in_memory(
        &OWN,
        vec![file("my.csv", messages.as_ref()), file("my-questions.csv", questions.as_ref())],
    )
}

fn only(read: Read) -> Case {
    let [case] = <[_; 1]>::try_from(read.into_iter().map(Result::unwrap).collect::<Vec<_>>()).unwrap();
    case
}

/// All problems and the error that ends reading, in words.
fn told(read: Read) -> String {
    let errors = read.into_iter().filter_map(Result::err);
    errors.map(|error| format!("{:#}", anyhow::Error::from(error))).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_table_of_messages_and_one_of_questions_are_a_case() {
    let case = only(read(MESSAGES, QUESTIONS));
    assert_eq!((case.id.as_str(), case.history.segments.len()), ("my", 3));
    let said: Vec<(usize, &str, &str)> = (case.history.segments.iter())
        .flat_map(|s| s.turns.iter().map(|turn| (s.index, turn.role.as_str(), turn.content.as_str())))
        .collect();
    assert_eq!(said[1], (0, "assistant", "Noted: \"Thursday\"."));
    assert_eq!(said[2], (1, "user", "Two lines:\nthe second; with a semicolon."));
    assert_eq!(said[3], (1, "system", "Café 猫"));
    assert_eq!(case.history.segments[2].time.unwrap().to_string(), "2025-05-01T09:00:00");
    let [market, bakery] = case.probes.as_slice() else { panic!("two") };
    assert_eq!((market.id.as_str(), bakery.id.as_str()), ("q1", "q2"));
    assert_eq!(market.evidence, [Evidence::segment("old", 0), Evidence::segment("new", 2)]);
    assert_eq!((market.facets["kind"].as_str(), bakery.facets["kind"].as_str()), ("update", "no update"));
    assert!(bakery.evidence.is_empty() && case.evidence.is_empty() && case.flags.is_empty());
    assert_eq!(case.judge.of_probes["q1"]["expected"], "Sunday");
    assert_eq!(case.judge.of_probes["q1"]["old"], "The market is on Thursday");
    assert!(case.judge.of_probes["q2"].is_empty());
}

#[test]
fn every_form_of_the_same_tables_is_the_same_case() {
    let expected = only(read(MESSAGES, QUESTIONS));
    let rows = |text: &str| {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        reader
            .records()
            .map(|row| row.unwrap().iter().map(str::to_owned).collect())
            .collect::<Vec<Vec<String>>>()
    };
    let separated = |text: &str, by: u8| {
        let mut writer = csv::WriterBuilder::new().delimiter(by).from_writer(Vec::new());
        rows(text).iter().for_each(|row| writer.write_record(row).unwrap());
        String::from_utf8(writer.into_inner().unwrap()).unwrap()
    };
    let json_lines = |text: &str| {
        let rows = rows(text);
        let line = |row: &Vec<String>| {
            let fields = rows[0].iter().zip(row).map(|(name, cell)| (name.clone(), cell.as_str().into()));
            serde_json::Value::Object(fields.collect()).to_string() + "\n"
        };
        rows[1..].iter().map(line).collect::<String>()
    };
    let utf16 = |text: &str, to: fn(u16) -> [u8; 2]| {
        format!("\u{feff}{text}").encode_utf16().flat_map(to).collect::<Vec<u8>>()
    };
    let other_names =
        MESSAGES.replacen("session,time,role,text", "Conversation ID, Timestamp ,SPEAKER,Content", 1);
    let other_roles = MESSAGES.replace(",user,", ",Human,").replace(",assistant,", ",AI,");
    let other_times =
        MESSAGES.replace("2025-03-01 10:00", "2025-03-01T10:00:00Z").replace("2025-05-01", "2025/05/01");
    let with_empty = MESSAGES.replacen("\nb,", "\n,,,\n\nb,", 1);
    let forms: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("semicolons", separated(MESSAGES, b';').into(), separated(QUESTIONS, b';').into()),
        ("tabs", separated(MESSAGES, b'\t').into(), separated(QUESTIONS, b'\t').into()),
        ("excel", format!("sep=;\r\n{}", separated(MESSAGES, b';')).into(), QUESTIONS.into()),
        ("lines", json_lines(MESSAGES).into(), json_lines(QUESTIONS).into()),
        ("crlf", MESSAGES.replace('\n', "\r\n").into(), QUESTIONS.replace('\n', "\r\n").into()),
        ("cr", MESSAGES.replace('\n', "\r").into(), QUESTIONS.replace('\n', "\r").into()),
        ("mark", format!("\u{feff}{MESSAGES}").into(), format!("\u{feff}{QUESTIONS}").into()),
        ("utf16le", utf16(MESSAGES, u16::to_le_bytes), utf16(QUESTIONS, u16::to_le_bytes)),
        ("utf16be", utf16(&separated(MESSAGES, b'\t'), u16::to_be_bytes), QUESTIONS.into()),
        ("names", other_names.into(), QUESTIONS.replacen("question,answer", "Query,Expected", 1).into()),
        ("roles", other_roles.into(), QUESTIONS.into()),
        ("times", other_times.into(), QUESTIONS.into()),
        ("empty", with_empty.into(), QUESTIONS.replace("\nWhat", "\n\n,,,\nWhat").into()),
    ];
    for (form, messages, questions) in forms {
        let case = only(read(messages, questions));
        assert_eq!(case, expected, "{form}");
    }
    // Without a text that names them, judges see no statement.
    for (old, new) in [("a", "c"), ("session[0]", "session[2]")] {
        let named =
            QUESTIONS.replace("The market is on Thursday", old).replace("the market is on Sunday", new);
        let case = only(read(MESSAGES, named));
        assert_eq!(case.probes, expected.probes);
        assert!(!case.judge.of_probes["q1"].contains_key("old"));
    }
}

#[test]
fn several_histories_take_their_questions_by_name() {
    let messages = "user,session,role,text\nann,1,user,Hi there.\nbob,1,user,Hello.\nann,2,user,Bye now.\n";
    let questions = "user,id,question,old,new,type\nbob,x,What?,,,\nann,y,Who?,1,2,mine\n";
    let cases: Vec<Case> = read(messages, questions).into_iter().map(Result::unwrap).collect();
    let [ann, bob] = cases.as_slice() else { panic!("two") };
    assert_eq!((ann.id.as_str(), ann.history.segments.len(), ann.probes[0].id.as_str()), ("ann", 2, "y"));
    assert_eq!(ann.probes[0].evidence, [Evidence::segment("old", 0), Evidence::segment("new", 1)]);
    assert_eq!((bob.id.as_str(), bob.probes[0].id.as_str()), ("bob", "x"));
    assert_eq!(ann.probes[0].facets["kind"], "mine");
    let silent = read(messages, "user,question\nbob,What?\n");
    let bob = only(silent);
    assert!(bob.flags.iter().any(|flag| flag.check.name == "no-questions" && flag.case == "ann"));
}

#[test]
fn a_fault_is_told_by_file_row_text_and_remedy() {
    let messages = |from: &str, to: &str| (MESSAGES.replacen(from, to, 1), QUESTIONS.to_owned());
    let questions = |from: &str, to: &str| (MESSAGES.to_owned(), QUESTIONS.replacen(from, to, 1));
    for ((messages, questions), words) in [
        (
            messages("text\n", "words\n"),
            &["my.csv", "no column `text`", "\"words\"", "text (or content, message"][..],
        ),
        (messages("time,role", "text,role"), &["my.csv", "\"text\" and \"text\" are both the column `text`"]),
        (messages(",user,", ",boss,"), &["my.csv, row 2", "role: found \"boss\"", "user (human)"]),
        (
            messages("2025-03-01 10:01", "3/1/2025"),
            &["my.csv, row 3", "time: found \"3/1/2025\"", "YYYY-MM-DD"],
        ),
        (
            messages("From May on the market is on Sunday.", ""),
            &["my.csv, row 6", "text: found an empty cell"],
        ),
        (messages("\nc,", "\n,"), &["my.csv, row 6", "session: found an empty cell"]),
        (
            messages("Café 猫", "Café, 猫"),
            &["my.csv, row 5", "the row has 5 cells and the header 4", "\" 猫\""],
        ),
        (
            messages("semicolon.\"", "semicolon."),
            &["my.csv, row 4", "quotation mark before \"Two lines:\" is not closed"],
        ),
        (
            questions("The market is on Thursday", "the market is on thursday"),
            &[
                "my-questions.csv, row 2 (uid \"q1\")",
                "old: found \"the market is on thursday\", which is in no message",
                "row 2 has \"The market is on Thursday, I think.\"",
            ],
        ),
        (questions("The market is on Thursday", "zzz"), &["no message is like it"]),
        (
            questions("the market is on Sunday", "market"),
            &["new: found \"market\", which occurs 2 times (rows 2, 6)", "more of the text", "\"a\", \"b\""],
        ),
        (
            questions("the market is on Sunday", "on Thursday"),
            &["new: found session 0, the session of `old`", "as two"],
        ),
        (
            questions("The market is on Thursday,the market is on Sunday", "c,a"),
            &["new: found session 0, before the session of `old` (session 2)"],
        ),
        (
            questions("The market is on Thursday", "7"),
            &["old: found \"7\", the name of no session", "\"a\", \"b\", \"c\""],
        ),
        (questions("The market is on Thursday", "session[3]"), &["session[0] to session[2]"]),
        (questions("On which day is the market?", ""), &["row 2", "question: found an empty cell"]),
        (questions("question,", "wording,"), &["my-questions.csv", "no column `question`", "\"wording\""]),
    ] {
        let told = told(read(&messages, &questions));
        assert!(words.iter().all(|word| told.contains(word)), "{words:?}: {told}");
    }
    let twice = "id,question\nx,What?\nx,Who?\n";
    assert!(told(read(MESSAGES, twice)).contains("row 3 (uid \"x\"), id: found the id of row 2 again"));
    let unknown = "case,question\nmy,What?\nyours,Who?\n";
    let told_of = told(read(MESSAGES, unknown));
    assert!(told_of.contains("row 3") && told_of.contains("case: found \"yours\"; name the history: \"my\""));
    assert!(told(read("", QUESTIONS)).contains("my.csv"));
    assert!(told(read(MESSAGES, "question\n")).contains("there is no question"));
    assert!(
        told(read("session,role,text\n", QUESTIONS)).contains("my.csv: there is no message below the header")
    );
    assert!(
        told(read("{\"session\": [1], \"role\": \"user\", \"text\": \"x\"}", QUESTIONS))
            .contains("session: found an array")
    );
}

#[test]
fn a_file_that_is_no_table_is_told_with_what_to_give_instead() {
    let [latin, sheet, old_sheet] =
        [&b"session,role,text\na,user,Caf\xE9\n"[..], b"PK\x03\x04\x14\0", b"\xD0\xCF\x11\xE0"];
    let spreadsheet = "it is a spreadsheet or another packed file; save the sheet as CSV";
    for (messages, questions, words) in [
        (
            latin,
            QUESTIONS.as_bytes(),
            &["my.csv: it is not UTF-8 (byte 0xE9 at line 2, column 11); save it as UTF-8"][..],
        ),
        (
            MESSAGES.as_bytes(),
            b"question\nCaf\xE9?\n",
            &["my-questions.csv: it is not UTF-8 (byte 0xE9 at line 2"],
        ),
        (sheet, QUESTIONS.as_bytes(), &["my.csv: ", spreadsheet]),
        (old_sheet, QUESTIONS.as_bytes(), &["my.csv: ", spreadsheet]),
        (MESSAGES.as_bytes(), sheet, &["my-questions.csv: ", spreadsheet]),
        (b"", QUESTIONS.as_bytes(), &["my.csv: the file is empty; write a header"]),
        (b"\n \n", QUESTIONS.as_bytes(), &["my.csv, row 2: no column `session`; the header has nothing"]),
        (MESSAGES.as_bytes(), b"", &["my-questions.csv: the file is empty"]),
        (
            b"\n\nsession,role\na,user\n",
            QUESTIONS.as_bytes(),
            &["my.csv, row 3: no column `text`; the header has \"session\", \"role\""],
        ),
        (
            b"a,user,Hello.\n",
            QUESTIONS.as_bytes(),
            &["my.csv, row 1: no column `session`", "write a header if this row is data"],
        ),
        (
            b"[{\"session\": 1}]",
            QUESTIONS.as_bytes(),
            &["my.csv, row 1: found an array of 1; write one JSON object a line"],
        ),
        (
            b"{\"session\": 1,\n\"role\"",
            QUESTIONS.as_bytes(),
            &["my.csv, row 1: the line is no JSON (", "write one JSON object a line"],
        ),
    ] {
        let told = told(read(messages, questions));
        assert!(words.iter().all(|word| told.contains(word)), "{words:?}: {told}");
    }

    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::write(at("my.csv"), MESSAGES).unwrap();
    std::fs::write(at("asked.csv"), QUESTIONS).unwrap();
    std::fs::write(at("my.xlsx"), sheet).unwrap();
    std::fs::create_dir_all(at("one")).unwrap();
    std::fs::write(at("one/said.csv"), MESSAGES).unwrap();
    std::fs::create_dir_all(at("none")).unwrap();
    std::fs::write(at("none/notes.md"), "notes").unwrap();
    let told_of = |data: &str, questions: Option<&str>| {
        let questions = questions.map(at);
        let opened = Dataset::open_pair((&at(data), questions.as_deref()), SampleSpec::default(), |_| {});
        match opened {
            Ok(opened) => told(opened.cases().unwrap().collect()),
            Err(error) => error.to_string(),
        }
    };
    for (data, questions, words) in [
        ("my.xlsx", None, "my.xlsx: it is a spreadsheet"),
        ("my.csv", Some("my.xlsx"), "my.xlsx: it is a spreadsheet"),
        ("my.csv", Some("one"), "it is no file; give the table of questions"),
        (
            "asked.csv",
            None,
            "asked.csv: it is a table of questions; give the table of messages, and this one with --questions",
        ),
        ("one", None, "there is no table of questions: write said-questions.csv (or .tsv, .jsonl) beside it"),
        ("none", None, "a folder with your own tables of messages and questions"),
    ] {
        let told = told_of(data, questions);
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!told_of("one", None).contains("--questions"), "a folder takes none");
}

#[test]
fn a_column_that_is_wrong_in_many_rows_is_told_once() {
    let table = |role: &str, time: fn(usize) -> String| {
        let row = |nth: usize| format!("s{nth},{},{role},Text {nth}.\n", time(nth));
        "session,time,role,text\n".to_owned() + &(0..18).map(row).collect::<String>()
    };
    let asked = "question\nWhat?\n";
    let same = told(read(table("boss", |_| "2025-03-01".to_owned()), asked));
    assert_eq!(
        same,
        "my.csv, row 2 (uid \"my\"), role: found \"boss\" in 18 rows (2, 3, 4, ...); write user (human), assistant (ai, bot) or system"
    );
    let different = told(read(table("user", |nth| format!("3/{}/2025", nth + 1)), asked));
    assert!(
        different.contains(
            "time: found \"3/1/2025\" and others like it in 18 rows (2, 3, 4, ...); write a date and time"
        ),
        "{different}"
    );
    assert_eq!(different.lines().count(), 1, "{different}");
    // A few are told one by one.
    let three = told(read(MESSAGES.replace(",user,", ",boss,"), QUESTIONS));
    assert_eq!(three.matches("found \"boss\"; write").count(), 3, "{three}");
}

#[test]
fn a_broken_question_costs_itself_and_a_broken_message_its_history() {
    let mixed = QUESTIONS.replacen("the market is on Sunday", "nowhere", 1);
    let found = read(MESSAGES, mixed);
    let [Ok(case), Err(ReadError::Row(row))] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((case.probes.len(), case.probes[0].id.as_str()), (1, "q2"));
    assert_eq!((row.probes.len(), row.probes[0].id.as_str()), (1, "q1"));
    let found = read(MESSAGES.replacen(",user,", ",boss,", 1), QUESTIONS);
    let [Err(ReadError::Row(row))] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(row.probes.iter().map(|probe| probe.id.as_str()).collect::<Vec<_>>(), ["q1", "q2"]);
}

#[test]
fn oddities_are_findings() {
    let messages = "session,tme,time,role,text\na,,2025-03-02,user,One.\nb,,2025-03-01,user,Two.\na,,2025-03-01,user,Three.\nc,,,user,Four.\n";
    let case = only(read(messages, "question,note\nWhat?,x\n"));
    let found: Vec<String> = case.flags.iter().map(ToString::to_string).collect();
    for words in [
        "unused-column: my.csv: case `my`: tme",
        "unused-column: my-questions.csv: case `my`: note",
        "split-session: case `my` [0]: session \"a\" goes on in row 4",
        "time-order: case `my` [0]: row 4 is of 2025-03-01T00:00:00",
        "time-order: case `my` [1]: it is of 2025-03-01T00:00:00, below session 0",
        "time-order: case `my` [2]: it has no date",
    ] {
        assert!(found.iter().any(|line| line.starts_with(words)), "{words}: {found:#?}");
    }
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn the_second_table_is_found_beside_the_first_or_named() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
    let open = |questions: Option<&Path>| {
        let my = at("my.csv");
        let opened = Dataset::open_pair((&my, questions), SampleSpec::default(), |_| {})?;
        assert_eq!((opened.benchmark().name, opened.name()), ("own", "my.csv"));
        let digest = opened.digest().to_owned();
        Ok::<_, palimpsest::benchmarks::dataset::DatasetError>((opened.cases()?.collect::<Read>(), digest))
    };
    write("my.csv", MESSAGES);
    let told_of = told(open(None).unwrap().0);
    assert!(told_of.contains("write my-questions.csv") && told_of.contains("--questions"), "{told_of}");
    write("my-questions.csv", QUESTIONS);
    let (beside, digest) = open(None).unwrap();
    assert_eq!(only(beside).probes.len(), 2);
    write("other.tsv", "question\tanswer\nWhat?\tThat.\n");
    let (named, other) = open(Some(&at("other.tsv"))).unwrap();
    assert_eq!(only(named).probes[0].query, "What?");
    assert_ne!(digest, other, "questions are part of the data");
    let missing = open(Some(&at("none.csv"))).unwrap_err().to_string();
    assert!(missing.contains("--questions") && missing.contains("none.csv"), "{missing}");

    // A folder with both, under any names.
    let folder = at("both");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a-asked.csv"), QUESTIONS).unwrap();
    std::fs::write(folder.join("said.csv"), MESSAGES).unwrap();
    std::fs::write(folder.join("README.md"), "notes").unwrap();
    let opened = Dataset::open(&folder, SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(only(opened.cases().unwrap().collect()).id, "said");
    std::fs::write(folder.join("third.csv"), MESSAGES).unwrap();
    let opened = Dataset::open(&folder, SampleSpec::default(), |_| {}).unwrap();
    assert!(told(opened.cases().unwrap().collect()).contains("3 tables: a-asked.csv, said.csv, third.csv"));
    // Data that has its own questions takes none.
    for data in [Path::new("sample"), Path::new("tests/goldens/steps.txt")] {
        let refused = Dataset::open_pair((data, Some(&at("other.tsv"))), SampleSpec::default(), |_| {});
        assert!(refused.unwrap_err().to_string().contains("its own questions"), "{}", data.display());
    }
}
