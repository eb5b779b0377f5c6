//! Documents of a request as spans, and blocked paths for its answer.

use palimpsest::chat::Sampling;
use palimpsest::observe::causes::{Controls, SpanCauseOptions, Way, measure};
use palimpsest_core::ablate::{History, Metric, Said, Target};
use palimpsest_core::attention::{Hole, Knockout, LayerHoles};
use palimpsest_core::engine::{Branch, Generate, Observe, Request, Reuse, Rows, Task, ThinkingOptions};
use palimpsest_core::span::Span;
use palimpsest_core::text::{ChatTemplate, ChatTurn, Document, Speaker};
use serde_json::{Value, json};

use super::attention::{close, flat, spans};
use super::{Served, fixture, open, serve};

const GREEDY: usize = 7;

/// Full softmax attention, windows beside it, and linear layers.
const MODELS: [&str; 3] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"];

fn labels(attention: &Value) -> Vec<String> {
    spans(attention).into_iter().map(|span| span.label).collect()
}

fn chat(served: &Served, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Which tree is left?"}], "temperature": 0,
        "max_completion_tokens": GREEDY, "palimpsest": {"rows": ["last", "answer"], "token_ids": true}
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    served.chat(body).ok()["choices"][0].clone()
}

#[test]
fn documents_stand_before_the_last_message_as_spans_by_their_titles() {
    let served = serve("llama-tiny");
    let documents = json!([
        {"title": "harbour", "text": "The fig tree stands by the well."},
        {"text": "The olive tree was felled."},
        {"title": "harbour", "text": "No ship came.", "doc_id": 7}
    ]);
    let asked = chat(&served, json!({"documents": documents}));
    let names = labels(&asked["palimpsest"]);
    let named =
        ["template[0]", "harbour", "document[1]", "harbour (2)", "messages[0]", "template[1]", "generated"];
    assert_eq!(names, named);
    // By hand: the prompt is otherwise unchanged, and every number is equal.
    let part = |text: &str, span: &str| json!({"type": "text", "text": text, "span": span});
    let by_hand = json!({"messages": [{"role": "user", "content": [
        part("# harbour\nThe fig tree stands by the well.\n\n", "harbour"),
        part("# Document 2\nThe olive tree was felled.\n\n", "document[1]"),
        part("# harbour\nNo ship came.\n\n", "harbour (2)"),
        part("Which tree is left?", "question")
    ]}]});
    let expected = chat(&served, by_hand);
    for field in ["prompt_token_ids", "token_ids", "mass"] {
        assert_eq!(asked["palimpsest"][field], expected["palimpsest"][field], "{field}");
    }
    // Character offsets are relative to the message's own text.
    let range = json!([{"label": "tree", "message": 0, "start": 6, "end": 10}]);
    let attention = json!({"rows": ["last"], "spans": range});
    let ranged = chat(&served, json!({"documents": documents, "palimpsest": attention}));
    let of = |label: &str| spans(&ranged["palimpsest"]).into_iter().find(|span| span.label == label).unwrap();
    assert!(of("messages[0]").start < of("tree").start && of("tree").end < of("messages[0]").end);
    // A score ranks the documents.
    let scored = chat(&served, json!({"documents": documents, "palimpsest": {"score": true}}));
    let ranked = scored["palimpsest"]["score"]["question"].as_array().unwrap();
    assert_eq!(
        ranked.iter().map(|one| one["label"].as_str().unwrap()).collect::<Vec<_>>(),
        ["harbour", "document[1]", "harbour (2)"]
    );
}

#[test]
fn a_template_that_shows_documents_is_given_them() {
    let source = "{% for document in documents %}<doc {{ document.title }}>{{ document.text }}</doc>{% endfor %}\
                  {% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}\
                  {% if add_generation_prompt %}[assistant]{% endif %}";
    let template = ChatTemplate::new("shows", source, None, None).unwrap();
    assert!(template.takes_documents().unwrap());
    let documents =
        ["the fig", "[user]ask"].map(|text| Document { title: "t".to_owned(), text: text.to_owned() });
    let turns = [ChatTurn::new(Speaker::User, "the fig")];
    let placed = template.place(&turns, &[], &documents).unwrap();
    let of = |range: std::ops::Range<usize>| &placed.text[range];
    assert_eq!(placed.text, "<doc t>the fig</doc><doc t>[user]ask</doc>[user]the fig[assistant]");
    let shown: Vec<&str> = placed.documents.iter().map(|place| of(place.bytes.clone())).collect();
    assert_eq!(shown, ["the fig", "[user]ask"]);
    assert_eq!(placed.documents[0].bytes.start, 7, "not where the message says the same");
    assert_eq!(placed.contents[0].bytes, 48..55);
    let plain = ChatTemplate::new("plain", "{% for m in messages %}{{ m.content }}{% endfor %}", None, None);
    assert!(!plain.unwrap().takes_documents().unwrap());
}

#[test]
fn a_blocked_path_has_the_answer_and_the_masses_of_the_same_request_to_the_model() {
    for name in MODELS {
        let served = serve(name);
        let documents = json!([
            {"title": "one", "text": "The fig tree stands by the well."},
            {"title": "two", "text": "The olive tree was felled in March."}
        ]);
        let open_path = chat(&served, json!({"documents": documents}));
        let linear = name == "qwen35-text-tiny";
        let texts = if linear {
            vec!["messages[0]->two@2..3"]
        } else {
            vec!["messages[0]->two", "only template[1]->messages[0]@0..1"]
        };
        let attention =
            json!({"rows": ["messages[0]", "last", "answer"], "knockouts": texts, "token_ids": true});
        let blocked = chat(&served, json!({"documents": documents, "palimpsest": attention}));

        let mut model = open(&fixture(name), 4096, ThinkingOptions::default());
        let attention = &blocked["palimpsest"];
        let keys: Vec<Span> = spans(attention).into_iter().filter(|span| span.label != "generated").collect();
        let tokens: Vec<u32> = serde_json::from_value(attention["prompt_token_ids"].clone()).unwrap();
        let kinds = model.engine().decoder().spec().layer_kinds();
        let knockouts: Vec<Knockout> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let holes = LayerHoles::new(&knockouts, &keys, tokens.len(), &kinds).unwrap();
        let rows = Rows::named(&["messages[0]", "last", "answer"], &keys, tokens.len()).unwrap();
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: GREEDY };
        let stop = model.stop_tokens().to_vec();
        let branch = Branch {
            tokens: tokens.clone(),
            knockouts: holes,
            observe: Observe { rows, keys: keys.clone(), ..Observe::default() },
            tasks: vec![Task::Generate(Box::new(Generate::new(sampling, stop)))],
            ..Branch::default()
        };
        let request = Request { reuse: Reuse::Prefix, branches: vec![branch], ..Request::default() };
        let expected = model.session().answer(request, &mut |_| true).unwrap();
        assert_eq!(attention["token_ids"], json!(expected.generated.tokens), "{name}");
        let (shape, found) = flat(&attention["mass"]);
        let mean = expected.masses.mass.mean_axis(ndarray::Axis(1)).unwrap();
        let (layers, rows, spans) = (shape[0], shape[1], shape[2]);
        assert_eq!([layers, rows], [mean.dim().0, mean.dim().1], "{name}");
        let mine: Vec<f32> = (found.chunks(spans))
            .flat_map(|row| {
                // Generated tokens come after the tiles.
                row.iter().take(keys.len()).copied().collect::<Vec<_>>()
            })
            .collect();
        close(name, &mine, &mean.iter().copied().collect::<Vec<_>>());
        let two = keys.iter().position(|key| key.label == "two").unwrap();
        let of_layer = if linear { 0 } else { 1 };
        assert_eq!(found[of_layer * rows * spans + two], 0.0, "{name}: the question sees nothing of it");
        assert_ne!(open_path["palimpsest"]["mass"], attention["mass"], "{name}");

        // A request without documents keeps its bits.
        let again = chat(&served, json!({"documents": documents}));
        assert_eq!(again["palimpsest"], open_path["palimpsest"], "{name}");
        assert_eq!(again["message"], open_path["message"], "{name}");
    }
}

/// Rows cached by a plain request have seen the keys to hide.
#[test]
fn a_blocked_path_is_the_same_whether_or_not_the_prompt_was_asked_before_without() {
    let documents = json!([
        {"title": "one", "text": "The fig tree stands by the well."},
        {"title": "two", "text": "The olive tree was felled in March."}
    ]);
    let blocked = |served: &Served| {
        let attention = json!({"rows": ["last"], "knockouts": ["messages[0]->two"], "token_ids": true});
        chat(served, json!({"documents": documents, "palimpsest": attention, "logprobs": true}))
    };
    let fresh = blocked(&serve("llama-tiny"));
    let served = serve("llama-tiny");
    let attention = json!({"rows": ["last"], "token_ids": true});
    let plain = chat(&served, json!({"documents": documents, "palimpsest": attention, "logprobs": true}));
    let after = blocked(&served);
    let log_ps = |choice: &Value| -> Vec<f64> {
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).collect()
    };
    for (fresh, after) in log_ps(&fresh).iter().zip(log_ps(&after)) {
        assert!((fresh - after).abs() < 1e-4, "{after}, not {fresh}");
    }
    let moved = log_ps(&fresh).iter().zip(log_ps(&plain)).any(|(fresh, plain)| (fresh - plain).abs() > 1e-3);
    assert!(moved, "what is hidden is read");
}

#[test]
fn effects_on_an_answer_are_those_of_causes_on_the_same_tokens() {
    for name in MODELS {
        let served = serve(name);
        let documents = json!([
            {"title": "one", "text": "The fig tree stands by the well."},
            {"title": "two", "text": "The olive tree was felled in March."},
            {"title": "three", "text": "No ship came."}
        ]);
        let plain = chat(&served, json!({"documents": documents}));
        let attention = json!({"rows": ["last", "answer"], "causes": true, "token_ids": true});
        let asked = chat(&served, json!({"documents": documents, "palimpsest": attention}));
        assert_eq!(asked["message"], plain["message"], "{name}");
        assert_eq!(asked["palimpsest"]["mass"], plain["palimpsest"]["mass"], "{name}");
        let attention = &asked["palimpsest"];
        let causes = &attention["causes"];
        assert_eq!(causes["spans"].as_array().unwrap().len(), 3, "{name}: {causes}");

        let tokens: Vec<u32> = serde_json::from_value(attention["prompt_token_ids"].clone()).unwrap();
        let answer: Vec<u32> = serde_json::from_value(attention["token_ids"].clone()).unwrap();
        let from = causes["from"].as_u64().unwrap() as usize;
        let of = |label: &str| spans(attention).into_iter().find(|span| span.label == label).unwrap();
        assert_eq!(from, of("messages[0]").start, "{name}");
        let mut model = open(&fixture(name), 4096, ThinkingOptions::default());
        let kinds = model.engine().decoder().spec().layer_kinds();
        let number = |json: &Value, key: &str| json[key].as_f64().unwrap();
        let mut hidden: Vec<(std::ops::Range<usize>, f64)> = Vec::new();
        for span in causes["spans"].as_array().unwrap() {
            hidden.push((of(span["label"].as_str().unwrap()).range(), number(span, "log_p_drop")));
        }
        for control in causes["controls"].as_array().unwrap() {
            let at = |key: &str| control[key].as_u64().unwrap() as usize;
            hidden.push((at("start")..at("end"), number(control, "log_p_drop")));
        }
        let history = History { tokens: tokens[..from].into(), rest: &tokens[from..] };
        let target = Target::Answer(Said { tokens: &answer, thought: 0 });
        let session = model.session();
        let read = Metric::read(session, &history, target, &mut |_| true).unwrap();
        assert!((read.value() - number(causes, "log_p")).abs() < 1e-5, "{name}");
        let hole = |range: &std::ops::Range<usize>| {
            let hole = Hole { rows: from..usize::MAX, keys: range.clone() };
            LayerHoles::at_softmax(&(0..kinds.len()), &kinds, vec![hole])
        };
        let holes: Vec<LayerHoles> = hidden.iter().map(|(range, _)| hole(range)).collect();
        let mut found = vec![0.0; holes.len()];
        read.effects(session, &history, &holes, &mut |_| true, &mut |nth, row| {
            found[nth] = row.effect().unwrap().log_p_drop;
            true
        })
        .unwrap();
        for ((range, told), expected) in hidden.iter().zip(&found) {
            assert!((told - expected).abs() < 1e-5, "{name}, {range:?}: {told} is not {expected}");
        }
        assert!(found.iter().any(|drop| drop.abs() > 1e-4), "{name}: {found:?}");
        assert_eq!(causes["softmax_only"] == true, name == "qwen35-text-tiny");
    }
}

#[test]
fn controls_are_those_of_causes_and_of_the_python_package() {
    let served = serve("llama-tiny");
    let texts = [
        "The fig tree stands by the well.",
        "No ship came.",
        "The olive tree was felled in March, and the hut beside it too.",
        "Rain.",
        "A lemon tree grows behind the school.",
        "The well is dry in summer.",
    ];
    let documents: Vec<Value> = (texts.iter().enumerate())
        .map(|(nth, text)| json!({"title": format!("doc {nth}"), "text": text}))
        .collect();
    let asked = json!({"rows": ["last", "answer"], "token_ids": true, "causes": {"controls": 24}});
    let asked = chat(&served, json!({"documents": documents, "palimpsest": asked}));
    let (attention, causes) = (&asked["palimpsest"], &asked["palimpsest"]["causes"]);
    let tokens: Vec<u32> = serde_json::from_value(attention["prompt_token_ids"].clone()).unwrap();
    let answer: Vec<u32> = serde_json::from_value(attention["token_ids"].clone()).unwrap();
    let keys: Vec<Span> =
        spans(attention).into_iter().filter(|span| span.label.starts_with("doc ")).collect();
    assert_eq!(keys.len(), texts.len());
    let mut model = open(&fixture("llama-tiny"), 4096, ThinkingOptions::default());
    let said = Said { tokens: &answer, thought: 0 };
    let options =
        SpanCauseOptions { way: Way::Block, windows: None, controls: Controls::Anywhere(24), seed: 0 };
    let measured = measure(&mut model, (&tokens, &keys, "nowhere"), said, options, &mut |_| true).unwrap();
    assert_eq!(json!(measured.from), causes["from"]);

    // Definition: of the controls that do not touch the span, the five nearest in length; their median.
    let drawn: Vec<(std::ops::Range<usize>, f64)> = (causes["controls"].as_array().unwrap().iter())
        .map(|one| {
            let at = |key: &str| one[key].as_u64().unwrap() as usize;
            (at("start")..at("end"), one["log_p_drop"].as_f64().unwrap())
        })
        .collect();
    assert_eq!(drawn.len(), 24);
    let lengths: Vec<usize> = keys.iter().map(Span::len).collect();
    for (stretch, _) in &drawn {
        assert!(lengths.iter().min() <= Some(&stretch.len()) && Some(&stretch.len()) <= lengths.iter().max());
    }
    for (told, one) in causes["spans"].as_array().unwrap().iter().zip(&measured.effects) {
        assert_eq!(told["label"], one.span);
        assert!((told["log_p_drop"].as_f64().unwrap() - one.drop).abs() < 1e-5, "{told}");
        let span = one.start..one.end;
        let far = |range: &std::ops::Range<usize>| (range.len() as f64 / span.len() as f64).ln().abs();
        let mut apart: Vec<_> =
            drawn.iter().filter(|(range, _)| range.end <= span.start || span.end <= range.start).collect();
        apart.sort_by(|a, b| far(&a.0).total_cmp(&far(&b.0)));
        let reach = far(&apart[4].0);
        let mut near: Vec<f64> =
            apart.iter().filter(|(range, _)| far(range) <= reach).map(|(_, drop)| *drop).collect();
        near.sort_by(f64::total_cmp);
        let middle = (near[(near.len() - 1) / 2] + near[near.len() / 2]) / 2.0;
        let control = told["control"].as_f64().unwrap();
        assert!((control - middle).abs() < 1e-9, "{told} is not {middle}");
        assert!((control - one.control.unwrap()).abs() < 1e-5, "{told} is not {:?}", one.control);
    }
}

#[test]
fn paths_that_cannot_be_blocked_are_refused_by_name() {
    let served = serve("llama-tiny");
    let refused = |knockouts: Value, field: &str, part: &str| {
        let reply = served.chat(json!({
            "messages": [{"role": "user", "content": "Which tree?"}], "palimpsest": {"rows": ["last"], "knockouts": knockouts}
        }));
        let error = reply.refused(400);
        assert_eq!(error["param"], field, "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    };
    refused(json!(["question"]), "palimpsest.knockouts[0]", "it has no `->`");
    refused(json!(["messages[0]->nowhere"]), "palimpsest.knockouts", "nowhere");
    refused(json!(["messages[0]->template[0]@7..9"]), "palimpsest.knockouts", "7..9");
    let empty = served.chat(json!({"messages": [{"role": "user", "content": "Which?"}], "documents": [{"title": "a", "text": " "}]}));
    assert_eq!(empty.refused(400)["param"], "documents[0].text");
    let none = served.chat(json!({
        "messages": [{"role": "user", "content": "Which?"}], "palimpsest": {"causes": true}
    }));
    assert_eq!(none.refused(400)["param"], "palimpsest.causes.spans");
    let late = json!({"spans": ["template[1]"], "from": "messages[0]"});
    let late = served.chat(json!({
        "messages": [{"role": "user", "content": "Which?"}], "palimpsest": {"causes": late}
    }));
    assert!(late.refused(400)["message"].as_str().unwrap().contains("from which on it would be hidden"));
}
