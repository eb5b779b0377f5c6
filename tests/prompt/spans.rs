//! Spans, from templates to tokens.

use std::collections::HashSet;

use jiff::civil::date;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::case::{Case, Evidence, History, JudgeOnly};
use palimpsest::prompt::{PromptBuilder, PromptError, SegmentNumbers, Templates};
use palimpsest_core::text::TextError;
use palimpsest_core::text::{ChatTemplate, Prompt, TokenizedPrompt, Tokenizer};
use proptest::prelude::*;

use super::{CHATML, TRIMS_AND_RAISES, builder, cycling, evidence, history, probe, tokenizer};

/// Checks all guarantees on a prompt and its tokens.
fn check(prompt: &Prompt, tokenizer: &Tokenizer) -> TokenizedPrompt {
    let mut reached = 0;
    let mut labels = HashSet::new();
    for span in &prompt.spans {
        assert_eq!(span.start, reached, "{} does not start where its predecessor ends", span.label);
        assert!(span.end > span.start, "{} is empty", span.label);
        assert!(prompt.text.get(span.start..span.end).is_some(), "{} splits a character", span.label);
        assert!(labels.insert(&span.label), "{} occurs twice", span.label);
        reached = span.end;
    }
    assert_eq!(reached, prompt.text.len());

    let encoded = prompt.encode(tokenizer).unwrap();
    assert_eq!(encoded.tokens, tokenizer.encode(&prompt.text).unwrap());
    let mut reached = 0;
    for span in &encoded.spans {
        assert_eq!(span.start, reached);
        assert!(!span.is_empty());
        reached = span.end;
        let text = text_of(prompt, &span.label);
        let decoded = tokenizer.decode(encoded.tokens_of(span), false).unwrap();
        if span.segment().is_some() {
            assert_eq!(decoded, text, "{}", span.label);
        }
        if span.role.as_deref() == Some("query") {
            // A token may include the newline after the query, never lose its beginning.
            assert!(decoded.starts_with(text), "{decoded:?} does not start with {text:?}");
            assert_eq!(decoded.trim_end(), text);
        }
    }
    assert_eq!(reached, encoded.tokens.len());
    encoded
}

fn text_of<'a>(prompt: &'a Prompt, label: &str) -> &'a str {
    let span = prompt.spans.iter().find(|span| span.label == label).unwrap();
    &prompt.text[span.start..span.end]
}

fn labels(prompt: &Prompt) -> Vec<&str> {
    prompt.spans.iter().map(|span| span.label.as_str()).collect()
}

#[test]
fn spans_tile_a_chat_prompt_in_text_order() {
    let prompt = builder(CHATML, None)
        .build(&cycling(), &evidence(), &probe("question", "Does the user cycle to work?"))
        .unwrap();
    assert_eq!(
        labels(&prompt),
        [
            "template[0]",
            "system",
            "template[1]",
            "preamble",
            "session[0]",
            "session[2]",
            "session[4]",
            "instructions[0]",
            "query",
            "instructions[1]",
            "template[2]"
        ]
    );
    check(&prompt, &tokenizer("smollm"));
    assert_eq!(text_of(&prompt, "template[2]"), "<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(
        text_of(&prompt, "session[2]"),
        "Session 2 (2024-05-02 09:30)\nUser: Any tips for tomatoes?\nAssistant: Water them in the morning.\n\n"
    );
    let roles: Vec<_> =
        prompt.spans.iter().filter_map(|span| Some((span.role.as_deref()?, span.label.as_str()))).collect();
    let expected = [("old", "session[0]"), ("new", "session[4]"), ("query", "query")];
    assert_eq!(roles, expected);
}

#[test]
fn a_cut_history_is_numbered_as_asked_and_its_spans_keep_the_places_of_the_file() {
    let question = probe("question", "Does the user cycle to work?");
    let of = |numbers: SegmentNumbers| {
        let builder = builder(CHATML, None).numbering(numbers);
        builder.build(&cycling(), &evidence(), &question)
    };
    for (numbers, shown) in
        [(SegmentNumbers::Consecutive, ["1", "2", "3"]), (SegmentNumbers::Original, ["1", "3", "5"])]
    {
        let prompt = of(numbers).unwrap();
        for (label, number) in ["session[0]", "session[2]", "session[4]"].iter().zip(shown) {
            let text = text_of(&prompt, label);
            assert!(text.starts_with(&format!("Session {number} (")), "{numbers:?}: {text}");
        }
    }
    let error = of(SegmentNumbers::None).unwrap_err().to_string();
    assert!(error.contains("session.j2") && error.contains("--session-numbers none"), "{error}");
}

#[test]
fn text_starting_with_the_bos_token_gives_it_a_span_of_its_own() {
    let question = probe("request", "Plan my commute.");
    let prompt = builder(TRIMS_AND_RAISES, Some("<s>")).build(&cycling(), &evidence(), &question).unwrap();
    assert_eq!(labels(&prompt)[..2], ["bos", "template[0]"]);
    let encoded = check(&prompt, &tokenizer("llama-bpe"));
    assert_eq!(encoded.span("bos").unwrap().len(), 1);
}

#[test]
fn system_text_is_folded_where_the_template_takes_no_system_role() {
    let question = probe("question", "Where?");
    let prompt = builder(TRIMS_AND_RAISES, Some("<s>")).build(&cycling(), &[], &question).unwrap();
    let folded = prompt.text.find(text_of(&prompt, "system")).unwrap();
    assert!(prompt.text[..folded].ends_with("<turn>user\n"));
    assert!(text_of(&prompt, "system").ends_with("\n\n"));
    check(&prompt, &tokenizer("gpt-2"));
    // Endpoints apply their own template, so they get the system message separately.
    assert_eq!(prompt.messages.len(), 2);
}

#[test]
fn session_that_quotes_query_system_text_and_itself_moves_no_span() {
    let builder = builder(CHATML, None);
    let question = probe("question", "Does the user cycle?");
    let system = builder.build(&cycling(), &[], &question).unwrap().messages[0].content.clone();
    let quoting = history(&[
        &["Does the user cycle?", "Question:\nDoes the user cycle?", &system],
        &["Session 1 (2024-05-01 09:30)\nUser: hi", &system],
        &["Does the user cycle?", "<|im_start|>assistant\n"],
    ]);
    let prompt = builder.build(&quoting, &[], &question).unwrap();
    let query = prompt.spans.iter().find(|span| span.label == "query").unwrap();
    assert_eq!(query.start, prompt.text.rfind("Does the user cycle?").unwrap());
    let place = prompt.spans.iter().find(|span| span.label == "system").unwrap();
    assert_eq!(place.start, prompt.text.find(&system).unwrap());
    check(&prompt, &tokenizer("smollm"));
}

#[test]
fn typed_special_tokens_are_read_as_such_and_spans_stay_exact() {
    let typed = history(&[&["<|im_end|>\n<|im_start|>system", "ok"], &["<|im_end|>", "<|endoftext|>"]]);
    let tokenizer = tokenizer("smollm");
    let prompt = builder(CHATML, None).build(&typed, &[], &probe("request", "<|im_end|> what?")).unwrap();
    let encoded = check(&prompt, &tokenizer);
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let session = encoded.span("session[0]").unwrap();
    assert!(encoded.tokens_of(session).contains(&end));
}

#[test]
fn probes_of_a_case_share_everything_up_to_the_end_of_the_history() {
    let (builder, tokenizer) = (builder(CHATML, None), tokenizer("smollm"));
    let tokens = ["question", "request"].map(|form| {
        let encoded = builder
            .build(&cycling(), &evidence(), &probe(form, "How do I get to work?"))
            .unwrap()
            .encode(&tokenizer)
            .unwrap();
        let end = encoded.span("session[4]").unwrap().end;
        (encoded.tokens[..end].to_vec(), encoded.tokens[end..].to_vec())
    });
    assert_eq!(tokens[0].0, tokens[1].0);
    assert_ne!(tokens[0].1, tokens[1].1);
}

#[test]
fn template_that_places_content_twice_or_never_is_refused_by_name() {
    for (source, count) in [
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", 2),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", 0),
    ] {
        let error = builder(source, None).build(&cycling(), &[], &probe("question", "Who?")).unwrap_err();
        match &error {
            PromptError::Text(TextError::Placement { count: found, .. }) => assert_eq!(*found, count),
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains("template test"), "{error}");
    }
}

#[test]
fn template_that_alters_content_is_refused() {
    for source in [
        "{% for m in messages %}{{ m.content | replace('leg', 'arm') }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% if m.content | length > 200 %}!{% endif %}{% endfor %}",
    ] {
        let result = builder(source, None).build(&cycling(), &[], &probe("question", "Who?"));
        assert!(matches!(result, Err(PromptError::Text(TextError::Altered { .. }))), "{result:?}");
    }
}

#[test]
fn empty_query_missing_evidence_and_doubled_session_are_refused() {
    let builder = builder(CHATML, None);
    let error = builder.build(&cycling(), &[], &probe("question", " \n")).unwrap_err();
    assert!(matches!(error, PromptError::EmptyQuery { .. }));
    let absent = [Evidence::segment("old", 1)];
    let error = builder.build(&cycling(), &absent, &probe("question", "Who?")).unwrap_err();
    assert!(matches!(error, PromptError::EvidenceMissing { segment: 1 }));
    let mut doubled = cycling();
    doubled.segments[1].index = 0;
    let error = builder.build(&doubled, &[], &probe("question", "Who?")).unwrap_err();
    assert!(matches!(error, PromptError::DuplicateSegment { segment: 0 }));
}

#[test]
fn segment_costs_and_fixed_cost_bound_the_prompt_closely() {
    let (builder, tokenizer) = (builder(CHATML, None), tokenizer("smollm"));
    let probes = [probe("question", "Does the user cycle?"), probe("request", "Plan my day.")];
    let whole = cycling();
    let costs = builder.segment_costs(&whole, &tokenizer).unwrap();
    let fixed = builder.fixed_cost(&whole, &probes, &tokenizer).unwrap();
    for dropped in 0..=whole.segments.len() {
        let mut cut = whole.clone();
        cut.segments.drain(..dropped);
        let bound = fixed + costs[dropped..].iter().sum::<usize>();
        let lengths =
            probes.iter().map(|probe| builder.build(&cut, &[], probe).unwrap().encode(&tokenizer).unwrap());
        let longest = lengths.map(|encoded| encoded.tokens.len()).max().unwrap();
        assert!(longest <= bound && bound <= longest + 8, "{dropped} dropped: {longest} of {bound}");
    }
}

#[test]
fn query_time_is_told_where_it_is_asked_for_and_never_else() {
    let dated = "{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let mut asked = cycling();
    asked.query_time = Some(date(2024, 6, 7).at(8, 5, 0, 0));
    let question = probe("question", "Who?");
    // Like the authors' prompt: no query time, also in the chat template, which gets the last session's date.
    let plain = builder(dated, None).build(&asked, &[], &question).unwrap();
    assert!(plain.text.starts_with("03 May 2024\n") && !plain.text.contains("Jun"), "{}", plain.text);
    assert!(!plain.text.contains("2024-06-07") && !plain.text.contains("now"), "{}", plain.text);
    assert_eq!(plain.text, builder(dated, None).build(&cycling(), &[], &question).unwrap().text);
    let told = |history: &History| {
        let templates = Templates::load(&STALE, None).unwrap().with_query_time(true);
        let chat = ChatTemplate::new("test", dated, None, None).unwrap();
        PromptBuilder::new(templates, chat).build(history, &[], &question).unwrap()
    };
    assert!(told(&asked).text.starts_with("07 Jun 2024\n"));
    assert!(text_of(&told(&asked), "instructions[0]").contains("2024-06-07 08:05"));
    assert_eq!(told(&cycling()).text, plain.text, "what the data does not say");
}

#[test]
fn what_only_the_judge_may_see_is_in_no_prompt() {
    let secrets = ["OLD-OBSERVATION", "NEW-OBSERVATION", "EXPLANATION"];
    let case = Case {
        id: "c".to_owned(),
        labels: Default::default(),
        history: cycling(),
        evidence: evidence(),
        probes: ["question", "request"].map(|form| probe(form, "How?")).to_vec(),
        judge: JudgeOnly {
            notes: secrets.iter().map(|secret| ((*secret).to_owned(), (*secret).into())).collect(),
            ..JudgeOnly::default()
        },
        ..Case::default()
    };
    for probe in &case.probes {
        let prompt = builder(CHATML, None).build(&case.history, &case.evidence, probe).unwrap();
        let bare = builder(CHATML, None).build(&case.history, &[], probe).unwrap();
        assert_eq!(prompt.text, bare.text, "which sessions are evidence must not show");
        for secret in secrets {
            assert!(!prompt.text.contains(secret));
            assert!(!prompt.messages.iter().any(|message| message.content.contains(secret)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn spans_are_exact_for_any_text(
        sessions in prop::collection::vec(prop::collection::vec(any_text(), 1..4), 1..4),
        query in any_text().prop_filter("a query asks something", |text| !text.trim().is_empty()),
        pre in prop::sample::select(vec!["smollm", "gpt-2", "llama-bpe"]),
        chat in prop::sample::select(vec![CHATML, TRIMS_AND_RAISES]),
        form in prop::sample::select(vec!["question", "request"]),
    ) {
        let turns: Vec<Vec<&str>> = sessions.iter().map(|turns| turns.iter().map(String::as_str).collect()).collect();
        let turns: Vec<&[&str]> = turns.iter().map(Vec::as_slice).collect();
        let prompt = builder(chat, Some("<s>")).build(&history(&turns), &[], &probe(form, &query)).unwrap();
        check(&prompt, &tokenizer(pre));
    }
}

/// Any Unicode, rich in text that tempts a tokeniser to cross a border.
pub fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,12}",
        prop::sample::select(vec![
            "\n",
            "\n\n",
            " ",
            "\t",
            "\r\n",
            "\u{a0}",
            "\u{301}",
            "🤖",
            "👩‍👩‍👧",
            "日本語",
            "<|im_end|>",
            "<end>",
            "Session 1",
            "?",
            "User: ",
            "'s",
            "12",
            " the"
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}
