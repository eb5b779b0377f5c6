//! Single heads, given answers and document ranking, against plain definitions over replies with all heads.

use palimpsest_core::engine::ThinkingOptions;
use serde_json::{Value, json};

use super::{Served, Setting, fixture, serve, serve_path};
use crate::parity::induction::induction;

/// Full softmax attention, linear layers, and windows with sinks.
const MODELS: [&str; 3] = ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];

const DOCUMENTS: [&str; 3] = ["doc-1", "doc-2", "doc-3"];

fn messages(question: &str) -> Value {
    json!([
        {"role": "system", "content": "Answer from the documents."},
        {"role": "user", "content": [
            {"type": "text", "text": "The fig tree stands by the well. ", "span": "doc-1"},
            {"type": "text", "text": "The olive tree was felled in March, they say. ", "span": "doc-2"},
            {"type": "text", "text": "The plum tree is young.\n", "span": "doc-3"},
            {"type": "text", "text": question, "span": "question"}
        ]}
    ])
}

fn ask(served: &Served, question: &str, extension: Value) -> Value {
    let body = json!({
        "messages": messages(question), "temperature": 0, "max_completion_tokens": 6, "logprobs": true,
        "palimpsest": extension
    });
    served.chat(body).ok()["choices"][0].clone()
}

fn numbers(json: &Value) -> Vec<f64> {
    match json {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn softmax_heads(served: &Served) -> Vec<(usize, usize)> {
    let told = served.get("/v1/models").ok()["data"][0]["palimpsest"]["attention"].clone();
    let heads = told["heads"].as_u64().unwrap() as usize;
    let layers: Vec<usize> = serde_json::from_value(told["layers"].clone()).unwrap();
    layers.into_iter().flat_map(|layer| (0..heads).map(move |head| (layer, head))).collect()
}

#[test]
fn a_generated_answer_that_is_given_back_has_the_same_masses_and_probabilities() {
    for name in MODELS {
        let served = serve(name);
        let rows = json!(["question", "last", "answer", "each"]);
        let said =
            ask(&served, "Which tree is left?", json!({"rows": rows, "heads": "all", "token_ids": true}));
        let tokens = said["palimpsest"]["token_ids"].clone();
        assert_eq!(tokens.as_array().unwrap().len(), 6, "{name}");
        let given = json!({"rows": rows, "heads": "all", "token_ids": true, "answer": tokens});
        let forced = ask(&served, "Which tree is left?", given.clone());
        assert_eq!(forced["palimpsest"], said["palimpsest"], "{name}");
        assert_eq!(forced["logprobs"], said["logprobs"], "{name}");
        assert_eq!(forced["message"], said["message"], "{name}");
        assert_eq!(forced["finish_reason"], "stop");

        // Streamed, and without logprobs.
        let mut body = json!({"messages": messages("Which tree is left?"), "palimpsest": given});
        let frames: Vec<Value> = served.stream("/v1/chat/completions", body.clone()).collect();
        let told: Vec<Value> = (frames.iter())
            .filter_map(|frame| frame["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(told), said["logprobs"]["content"], "{name}");
        let each: Vec<Value> = (frames.iter())
            .filter_map(|frame| frame["choices"][0]["palimpsest"]["each"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(each), said["palimpsest"]["each"], "{name}");

        // It has its own length and uses the prompt's context.
        body["max_completion_tokens"] = json!(3);
        let refused = served.chat(body);
        assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!("palimpsest.answer")));
    }
}

#[test]
fn a_text_is_an_answer_as_the_last_message_by_itself_and_behind_a_text() {
    let served = serve("llama-tiny");
    let question = "Which tree is left?";
    let told = |extension: Value| {
        let body = json!({"messages": messages(question), "palimpsest": extension});
        served.chat(body).ok()["choices"][0].clone()
    };
    let asked = json!({"rows": ["answer"], "token_ids": true, "answer": "The olive tree, and the fig."});
    let of_text = told(asked);
    assert_eq!(of_text["message"]["content"], "The olive tree, and the fig.");
    let mut list = messages(question);
    let last = json!({"role": "assistant", "content": "The olive tree, and the fig."});
    list.as_array_mut().unwrap().push(last);
    let body =
        json!({"messages": list, "palimpsest": {"rows": ["answer"], "token_ids": true, "answer": true}});
    let of_message = served.chat(body).ok();
    let of_message = &of_message["choices"][0];
    for key in ["palimpsest", "logprobs", "message"] {
        assert_eq!(of_message[key], of_text[key], "{key}");
    }
    // Another answer has another probability.
    let asked = json!({"rows": ["answer"], "answer": "The fig tree, and the fig."});
    assert_ne!(told(asked)["logprobs"], of_text["logprobs"]);

    // After a text: the probabilities are those that `echo` gives for the whole.
    let (prompt, answer) = ("The fig tree stands by the", " well, and the olive");
    let given = json!({"prompt": prompt, "palimpsest": {"answer": answer, "token_ids": true}});
    let given = served.complete(given).ok()["choices"][0].clone();
    let whole = json!({"prompt": format!("{prompt}{answer}"), "max_tokens": 0, "echo": true, "logprobs": 0});
    let whole = served.complete(whole).ok()["choices"][0].clone();
    assert_eq!(given["text"], answer);
    let (few, all) = (&given["logprobs"]["token_logprobs"], &whole["logprobs"]["token_logprobs"]);
    let (few, all) = (few.as_array().unwrap(), all.as_array().unwrap());
    assert!(few.len() > 3 && all.len() > few.len());
    for (a, b) in few.iter().rev().zip(all.iter().rev()) {
        assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5, "{a} is not {b}");
    }
}

#[test]
fn heads_that_are_named_have_the_masses_that_all_heads_have() {
    for name in MODELS {
        let served = serve(name);
        let all_heads = softmax_heads(&served);
        let named = [all_heads[all_heads.len() - 2], all_heads[0], all_heads[3]];
        let rows = json!(["question", "last", "answer", "each"]);
        let asked = |heads: Value| json!({"rows": rows, "heads": heads, "top_keys": 3});
        let all = ask(&served, "Which tree is left?", asked(json!("all")))["palimpsest"].clone();
        let some = ask(&served, "Which tree is left?", asked(json!(named)))["palimpsest"].clone();
        assert_eq!(some["heads"], json!(named), "{name}");
        assert!(some.get("layers").is_none() && some.get("delta_share").is_none());
        let place = |layer: usize| {
            all["layers"].as_array().unwrap().iter().position(|of| *of == json!(layer)).unwrap()
        };
        for (i, &(layer, head)) in named.iter().enumerate() {
            let l = place(layer);
            assert_eq!(some["mass"][i], all["mass"][l][head], "{name}");
            assert_eq!(some["share"][i], all["share"][l], "{name}");
            assert_eq!(some.get("sink").is_some(), all.get("sink").is_some());
            if some.get("sink").is_some() {
                assert_eq!(some["sink"][i], all["sink"][l][head], "{name}");
            }
            for (t, token) in some["each"].as_array().unwrap().iter().enumerate() {
                assert_eq!(token[i], all["each"][t][l][head], "{name}");
            }
            assert_eq!(some["top_keys"][i], all["top_keys"][l][head], "{name}");
        }
        assert_eq!(some["mass"].as_array().unwrap().len(), 3);

        // Also in a stream and a file.
        let body = json!({
            "messages": messages("Which tree is left?"), "temperature": 0, "max_completion_tokens": 6,
            "palimpsest": asked(json!(named))
        });
        let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
        let each = frames.iter().filter_map(|frame| frame["choices"][0]["palimpsest"]["each"].as_array());
        assert_eq!(json!(each.flatten().collect::<Vec<_>>()), some["each"], "{name}");
    }
}

/// Masses from a row of `"heads": "all"` to the documents, by label: one vector per head.
fn paid(attention: &Value, row: &str, heads: &[(usize, usize)]) -> Vec<Vec<f64>> {
    let at = |list: &str, wanted: &Value, key: Option<&str>| {
        let list = attention[list].as_array().unwrap();
        list.iter().position(|of| key.map_or(of, |key| &of[key]) == wanted).unwrap()
    };
    let row = at("rows", &json!(row), None);
    let columns = DOCUMENTS.map(|label| at("spans", &json!(label), Some("label")));
    let of_head = |&(layer, head): &(usize, usize)| {
        let masses = &attention["mass"][at("layers", &json!(layer), None)][head][row];
        columns.iter().map(|&k| masses[k].as_f64().unwrap()).collect()
    };
    heads.iter().map(of_head).collect()
}

/// Definition of docs/serve.md: scores, ranks and confidence, by document.
fn plainly(asked: &[Vec<f64>], neutral: &[Vec<f64>]) -> Vec<(f64, usize, f64)> {
    let beyond: Vec<Vec<f64>> = (asked.iter().zip(neutral))
        .map(|(a, b)| {
            let scale = a.iter().sum::<f64>() / b.iter().sum::<f64>();
            a.iter().zip(b).map(|(a, b)| a - scale * b).collect()
        })
        .collect();
    let mean = |d: usize| beyond.iter().map(|head| head[d]).sum::<f64>() / beyond.len() as f64;
    let scores: Vec<f64> = (0..DOCUMENTS.len()).map(mean).collect();
    let rank = |d: usize| 1 + scores.iter().filter(|score| **score > scores[d]).count();
    let by_rank = |wanted: usize| (0..scores.len()).find(|&d| rank(d) == wanted).unwrap();
    let sure = |d: usize| {
        let (a, b) = match rank(d) {
            3 => (by_rank(2), d),
            rank => (d, by_rank(rank + 1)),
        };
        let differences: Vec<f64> = beyond.iter().map(|head| head[a] - head[b]).collect();
        let sum = |of: fn(f64) -> f64| differences.iter().map(|&d| of(d)).sum::<f64>();
        sum(|d| d.max(0.0)) / sum(f64::abs)
    };
    (0..scores.len()).map(|d| (scores[d], rank(d), sure(d))).collect()
}

fn agrees(what: &str, told: &Value, expected: &[(f64, usize, f64)]) {
    let told = told.as_array().unwrap();
    assert_eq!(told.len(), expected.len(), "{what}");
    for ((entry, label), (score, rank, sure)) in told.iter().zip(DOCUMENTS).zip(expected) {
        assert_eq!(entry["label"], label, "{what}");
        assert!((entry["score"].as_f64().unwrap() - score).abs() < 1e-6, "{what}: {entry} is not {score}");
        assert!((entry["sure"].as_f64().unwrap() - sure).abs() < 1e-3, "{what}: {entry} is not {sure}");
        assert_eq!(entry["rank"], *rank, "{what}");
    }
}

/// Heads of full-attention layers: these models' windows are shorter than the documents.
fn seeing(served: &Served) -> Vec<(usize, usize)> {
    let told = served.get("/v1/models").ok()["data"][0]["palimpsest"]["attention"].clone();
    let layers: Vec<usize> = serde_json::from_value(told["layers"].clone()).unwrap();
    let windows: Vec<Option<usize>> = serde_json::from_value(told["windows"].clone()).unwrap();
    let full =
        |(layer, _): &(usize, usize)| windows[layers.iter().position(|of| of == layer).unwrap()].is_none();
    assert!(windows.iter().flatten().all(|window| *window < 60), "{windows:?}");
    softmax_heads(served).into_iter().filter(full).collect()
}

#[test]
fn a_score_is_what_its_definition_makes_of_two_requests() {
    for name in MODELS {
        let all = seeing(&serve(name));
        let known = vec![all[1], all[4], all[0]];
        let setting = Setting { retrieval: Some(known.clone()), ..Setting::default() };
        let served = serve_path(&fixture(name), setting);
        let rows = json!({"rows": ["question", "answer"], "heads": "all"});
        let asked = ask(&served, "Which tree is left?", rows.clone());
        let neutral = ask(&served, "N/A", rows);
        for (heads, score, told) in [
            (&known, json!(true), json!("retrieval")),
            (&all, json!({"heads": "all"}), json!("all")),
            (&all[1..3].to_vec(), json!({"heads": all[1..3]}), json!(all[1..3])),
        ] {
            let reply = ask(&served, "Which tree is left?", json!({"score": score}));
            // The answer is unchanged and contains the requested fields.
            assert_eq!(reply["message"], asked["message"], "{name}");
            assert_eq!(reply["palimpsest"]["rows"], json!(["question", "answer"]));
            let score = &reply["palimpsest"]["score"];
            assert_eq!(score["heads"], told, "{name}");
            let usual = paid(&neutral["palimpsest"], "question", heads);
            for row in ["question", "answer"] {
                let paid = paid(&asked["palimpsest"], row, heads);
                agrees(&format!("{name} {row}"), &score[row], &plainly(&paid, &usual));
            }
            // Again, from the cached neutral request.
            let again = ask(&served, "Which tree is left?", json!({"score": true, "heads": json!(heads)}));
            assert_eq!(again["palimpsest"]["score"]["answer"], score["answer"], "{name}");
        }
    }
}

#[test]
fn a_score_is_the_same_whoever_is_served_beside_it_and_however_it_is_sent() {
    let served = serve("gpt-oss-tiny");
    let extension = json!({"score": true});
    let alone = ask(&served, "Which tree is left?", extension.clone());
    let score = &alone["palimpsest"]["score"];
    assert_eq!(score["heads"], "all");
    let mut body = json!({
        "messages": messages("Which tree is left?"), "temperature": 0, "max_completion_tokens": 6,
        "palimpsest": extension
    });
    let frames: Vec<Value> = served.stream("/v1/chat/completions", body.clone()).collect();
    let told: Vec<&Value> =
        frames.iter().filter_map(|f| f["choices"][0]["palimpsest"].get("score")).collect();
    assert_eq!(told, [score]);
    body["n"] = json!(3);
    let many = served.chat(body).ok();
    for choice in many["choices"].as_array().unwrap() {
        let (told, alone) = (numbers_of(&choice["palimpsest"]["score"]), numbers_of(score));
        assert!(told.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5), "{told:?} is not {alone:?}");
    }
    // A given answer is ranked like a generated one.
    let tokens = ask(&served, "Which tree is left?", json!({"rows": ["last"], "token_ids": true}));
    let given = json!({"score": true, "answer": tokens["palimpsest"]["token_ids"]});
    assert_eq!(&ask(&served, "Which tree is left?", given)["palimpsest"]["score"], score);
    // The neutral request is read once: its prompt equals the first one's.
    let read = served.metric("palimpsest_cache_miss_tokens_total");
    ask(&served, "Which tree is left?", json!({"score": true}));
    let again = served.metric("palimpsest_cache_miss_tokens_total") - read;
    let prompt = tokens["palimpsest"]["prompt_token_ids"].as_array().unwrap().len() as f64;
    assert!(again < prompt, "{again} tokens were read of a prompt of {prompt}");
}

fn numbers_of(score: &Value) -> Vec<f64> {
    let entries = ["question", "answer"].map(|row| score[row].as_array().unwrap().clone()).concat();
    numbers(&json!(entries.iter().map(|entry| entry["score"].clone()).collect::<Vec<_>>()))
}

#[test]
fn documents_and_question_are_found_by_place_or_named() {
    let served = serve("llama-tiny");
    let labels = |extension: Value, messages: Value| -> Vec<String> {
        let body = json!({"messages": messages, "max_tokens": 2, "palimpsest": extension});
        let reply = served.chat(body).ok();
        let score = reply["choices"][0]["palimpsest"]["score"]["answer"].clone();
        score.as_array().unwrap().iter().map(|entry| entry["label"].as_str().unwrap().to_owned()).collect()
    };
    let plain = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The fig tree stands by the well."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": [
            {"type": "text", "text": "The olive tree was felled."}, {"type": "text", "text": " Which tree is left?"}
        ]}
    ]);
    assert_eq!(labels(json!({"score": true}), plain.clone()), ["messages[1]", "messages[3].content[0]"]);
    let asked = json!({"score": {"documents": ["messages[2]", "messages[0]"], "question": "messages[1]"}});
    assert_eq!(labels(asked, plain), ["messages[0]", "messages[2]"], "in the prompt's order");
    let asked = json!({"score": {"documents": ["doc-3", "well"]},
                       "spans": [{"label": "well", "message": 1, "part": 0, "start": 20, "end": 32}]});
    assert_eq!(labels(asked, messages("Which?")), ["well", "doc-3"], "a range, too");

    // After a text, documents and question are ranges.
    let text = "The fig tree stands by the well. The olive tree was felled. Which tree is left? It is the";
    let range = |label: &str, of: &str| {
        let start = text.find(of).unwrap();
        json!({"label": label, "start": start, "end": start + of.len()})
    };
    let spans = [
        range("fig", "The fig tree stands by the well."),
        range("olive", "The olive tree was felled."),
        range("question", "Which tree is left?"),
    ];
    let body = json!({"prompt": text, "max_tokens": 3, "temperature": 0, "palimpsest": {"score": true, "spans": spans}});
    let reply = served.complete(body).ok();
    let score = reply["choices"][0]["palimpsest"]["score"]["question"].clone();
    let labels: Vec<&Value> = score.as_array().unwrap().iter().map(|entry| &entry["label"]).collect();
    assert_eq!(labels, ["fig", "olive"]);
    assert!(numbers(&json!([score[0]["score"], score[1]["score"]])).iter().sum::<f64>().abs() < 1e-9);
}

#[test]
fn a_model_that_copies_names_its_source_with_near_certainty() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let vocab: serde_json::Map<String, Value> = (0..32).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w31"}
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{{ m['content'] }} {% endfor %}";
    let config = json!({"chat_template": template});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let setting = Setting { context: 64, thinking: ThinkingOptions::default(), ..Setting::default() };
    let served = serve_path(dir.path(), setting);
    // Five documents of three distinct tokens, and a question that ends with the beginning of the third.
    let documents = [[5, 6, 7], [8, 9, 10], [13, 14, 15], [21, 22, 23], [25, 26, 27]];
    let words = |tokens: &[usize]| tokens.iter().map(|t| format!("w{t}")).collect::<Vec<_>>().join(" ");
    let (mut text, mut spans) = ("w0".to_owned(), Vec::new());
    let mut push = |label: String, tokens: &[usize]| {
        let start = text.len() + 1;
        text = format!("{text} {}", words(tokens));
        spans.push(json!({"label": label, "start": start, "end": text.len()}));
    };
    for (i, tokens) in documents.iter().enumerate() {
        push(format!("doc-{i}"), tokens);
    }
    push("question".to_owned(), &[30, 31, 13]);
    let body = json!({
        "prompt": text, "max_tokens": 2, "temperature": 0,
        "palimpsest": {"score": true, "spans": spans, "token_ids": true}
    });
    let reply = served.complete(body).ok();
    let attention = &reply["choices"][0]["palimpsest"];
    assert_eq!(attention["token_ids"], json!([14, 15]));
    for row in ["question", "answer"] {
        let entries = attention["score"][row].as_array().unwrap();
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(entry["rank"] == 1, i == 2, "{row}: {entry}");
        }
        assert!(entries[2]["sure"].as_f64().unwrap() > 0.99, "{row}: {}", entries[2]);
        assert!(entries[2]["score"].as_f64().unwrap() > 0.05, "{row}: {}", entries[2]);
    }
}

#[test]
fn what_cannot_be_served_is_refused_by_its_field() {
    let served = serve("qwen35-text-tiny");
    let refused = |extension: Value, field: &str, says: &str| {
        let body = json!({"messages": messages("Which?"), "max_tokens": 2, "palimpsest": extension});
        let reply = served.chat(body);
        let error = &reply.json["error"];
        let message = error["message"].as_str().unwrap();
        assert_eq!((reply.status, &error["param"]), (400, &json!(field)), "{message}");
        assert!(message.contains(says), "{message}");
        assert!(!message.contains("--"), "flags are the operator's: {message}");
    };
    let heads = |heads: Value, field: &str, says: &str| {
        refused(json!({"rows": ["last"], "heads": heads}), field, says);
    };
    heads(json!([8, 9, 10]), "palimpsest.heads[0]", "a pair of whole numbers, [layer, head]");
    heads(json!([[2, 0], [9, 0]]), "palimpsest.heads[1]", "layers are 0 to 3");
    heads(json!([[2, 99]]), "palimpsest.heads[0]", "heads of layer 2 are 0 to 5");
    heads(json!([[1, 0]]), "palimpsest.heads[0]", "linear attention");
    heads(json!([[2, 0], [2, 0]]), "palimpsest.heads[1]", "again");
    heads(json!([]), "palimpsest.heads", "0 pairs");
    heads(json!("some"), "palimpsest.heads", "\"retrieval\"");
    heads(json!(3), "palimpsest.heads", "is 3");
    heads(json!("retrieval"), "palimpsest.heads", "does not know which heads");
    refused(json!({"rows": ["last"], "heads": [[2, 0]], "layers": [2]}), "palimpsest.layers", "leave it out");
    refused(json!({}), "palimpsest.rows", "missing");

    refused(json!({"score": 1}), "palimpsest.score", "true");
    refused(json!({"score": {"document": []}}), "palimpsest.score.document", "no field");
    refused(json!({"score": {"documents": []}}), "palimpsest.score.documents", "0 entries");
    refused(json!({"score": {"documents": [1]}}), "palimpsest.score.documents[0]", "is 1; give a string");
    refused(json!({"score": {"documents": ["doc-1", "doc-1"]}}), "palimpsest.score.documents[1]", "again");
    refused(json!({"score": {"documents": ["question"]}}), "palimpsest.score.documents", "question itself");
    refused(json!({"score": {"documents": ["doc-9"]}}), "palimpsest.score", "doc-9");
    refused(json!({"score": {"question": "ask"}}), "palimpsest.score.question", "ask");
    refused(json!({"score": {"heads": "mean"}}), "palimpsest.score.heads", "\"all\"");
    refused(json!({"score": {"heads": "retrieval"}}), "palimpsest.score.heads", "does not know which heads");

    refused(json!({"answer": 3}), "palimpsest.answer", "a string");
    refused(json!({"answer": ""}), "palimpsest.answer", "no tokens");
    refused(json!({"answer": [999_999]}), "palimpsest.answer[0]", "token ids");
    refused(json!({"answer": true}), "palimpsest.answer", "last message");
    let several = json!({"messages": messages("Which?"), "n": 2, "palimpsest": {"answer": "The fig."}});
    let several = served.chat(several);
    assert_eq!((several.status, &several.json["error"]["param"]), (400, &json!("n")));
    let alone = json!({"messages": super::user("Which?"), "palimpsest": {"score": true}});
    let alone = served.chat(alone);
    assert_eq!((alone.status, &alone.json["error"]["param"]), (400, &json!("palimpsest.score.documents")));
    let tokens = json!({"prompt": [1, 2, 3], "palimpsest": {"score": true}});
    let tokens = served.complete(tokens);
    assert_eq!((tokens.status, &tokens.json["error"]["param"]), (400, &json!("palimpsest.score")));
}

#[test]
fn a_body_that_is_no_json_is_told_with_the_place_where_it_ends_to_be() {
    let served = serve("llama-tiny");
    let body = br#"{"model": "llama-tiny", "palimpsest": {"rows": ["last"]}}, "layers": [8, 9, 10]}"#;
    let reply = served.post_bytes("/v1/chat/completions", body);
    let message = reply.json["error"]["message"].as_str().unwrap();
    assert!(reply.status == 400 && message.contains("trailing characters"), "{message}");
    assert!(message.contains(r#"["last"]}} >>>, "layers""#), "{message}");
}
