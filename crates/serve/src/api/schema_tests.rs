//! Schemas written to take the compiler's stack or time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use palimpsest_core::engine::json_schema::{exceeded, fault};
use palimpsest_core::engine::{ConstraintError, GrammarVocabulary, Starts};
use palimpsest_core::text::Tokenizer;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

use super::format::Format;

/// Refused for its limits, or compiled; a schema that ends the process fails every test.
fn compiled(schema: &Value, strict: bool) -> Result<(), String> {
    static VOCABULARY: OnceLock<Arc<GrammarVocabulary>> = OnceLock::new();
    let vocabulary = VOCABULARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-tiny");
        let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json")).unwrap();
        Arc::new(GrammarVocabulary::new(&tokenizer, tokenizer.vocab_size(), &[2]).unwrap())
    });
    if let Some(fault) = fault(schema, strict) {
        return Err(fault);
    }
    let rule = Format::Schema { schema: schema.clone(), strict }.rule().unwrap();
    // A compilation goes on after its time is up, and holds one of four places until it ends.
    let begun = Instant::now();
    loop {
        let made = vocabulary.compile(format!("start: format\n{rule}"), Starts::AtOnce, "format");
        match made {
            Err(ConstraintError::Busy) if begun.elapsed() < Duration::from_secs(120) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            made => return made.map(drop).map_err(|error| error.to_string()),
        }
    }
}

fn chain(count: usize, of: impl Fn(Value) -> Value) -> Value {
    let next = |i: usize| of(json!({"$ref": format!("#/$defs/{}", i + 1)}));
    let mut all: Map<String, Value> = (0..count).map(|i| (i.to_string(), next(i))).collect();
    all.insert(count.to_string(), json!({"type": "null"}));
    json!({"$ref": "#/$defs/0", "$defs": all})
}

fn nested(depth: usize, leaf: Value) -> Value {
    (0..depth).fold(leaf, |inner, _| json!({"type": "object", "properties": {"a": inner}}))
}

#[test]
fn multiples_of_large_numbers_are_refused_and_common_ones_compiled() {
    let of = |multiple: Value| json!({"type": "number", "multipleOf": multiple});
    for (small, is_fine) in [
        (json!(0.01), true),
        (json!(5), true),
        (json!(1000), true),
        (json!(123_456_789), false),
        (json!(0.123_456_7), false),
        (json!(1e-9), false),
    ] {
        let schema = of(small.clone());
        assert_eq!(exceeded(&schema, &BTreeSet::new()).is_none(), is_fine, "{small}");
        assert_eq!(compiled(&schema, true).is_ok(), is_fine, "{small}");
    }
    let apart = json!({"properties": {"a": of(json!(9973)), "b": of(json!(9967))}});
    assert_eq!(exceeded(&apart, &BTreeSet::new()), None);
    let combined = json!({"allOf": [of(json!(9973)), of(json!(9967))]});
    assert!(exceeded(&combined, &BTreeSet::new()).is_some());
    assert_eq!(exceeded(&json!({"allOf": [of(json!(0.5)), of(json!(25))]}), &BTreeSet::new()), None);
}

#[test]
fn schemas_beyond_a_limit_are_refused_before_they_are_compiled() {
    let patterns: Map<String, Value> = (0..65).map(|i| (format!("^{i}x"), json!({}))).collect();
    let cases = [
        (chain(20_000, |next| next), "levels deep"),
        (chain(400, |next| nested(25, next)), "levels deep"),
        (chain(1500, |next| json!({"allOf": [{"type": "object"}, next]})), "levels deep"),
        (json!({"allOf": vec![json!({"pattern": "a"}); 501]}), "`/allOf` 501 subschemas"),
        (json!({"properties": {"a/b": {"oneOf": vec![json!(true); 501]}}}), "`/properties/a~1b/oneOf` 501"),
        (json!({"patternProperties": patterns}), "`/patternProperties` 65 patterns"),
        (json!({"pattern": "a?".repeat(5000)}), "`/pattern` 10000 bytes"),
        (json!({"enum": vec![1; 100_001]}), "values"),
    ];
    for (schema, told) in cases {
        let error = compiled(&schema, false).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

/// Schemas within the limits fit the compiler's stack.
#[test]
fn schemas_at_the_limits_do_not_end_the_process() {
    for schema in [
        chain(990, |next| next),
        chain(35, |next| nested(25, next)),
        chain(400, |next| json!({"allOf": [{"type": "object"}, next]})),
        chain(25, |next| json!({"allOf": [nested(15, json!({"type": "object"})), nested(15, next)]})),
        chain(400, |next| json!({"anyOf": [next, {"type": "string"}]})),
        nested(60, json!({"type": "integer"})),
        json!({"pattern": "(a|b)*a(a|b){40}", "type": "string"}),
        json!({"const": "x".repeat(500_000)}),
        json!({"$ref": "#"}),
        json!({"properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}, {"type": "object"}]}),
    ] {
        for strict in [false, true] {
            let begun = Instant::now();
            // Either is right; a process that aborts is not.
            let _ = compiled(&schema, strict);
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }
}

/// Numbers about the ends of every type that they could be read as.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-20..20_i64).prop_map(Value::from),
        (0..100_u32, -3..=3_i128, any::<bool>()).prop_map(|(power, off, negative)| {
            let number = (1_i128 << power) + off;
            let number = if negative { -number } else { number };
            serde_json::from_str(&number.to_string()).unwrap()
        }),
        (-320..310_i32, 1..20_u32).prop_map(|(power, digits)| {
            serde_json::from_str(&format!("{digits}e{power}")).unwrap_or(Value::Null)
        }),
    ]
}

fn reference() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "#",
        "#/",
        "#/$defs/a",
        "#/$defs/b",
        "#/$defs/a%20b",
        "#/x/a%20b",
        "#/x/0",
        "#/x/01",
        "#/$defs/a/items",
        "#/properties/p",
        "#/definitions/a",
        "other.json",
        "#anchor",
        "#/$defs/a~1b",
        "#/allOf/0",
    ])
    .prop_map(str::to_owned)
}

fn schema() -> impl Strategy<Value = Value> {
    let numeric = prop::sample::select(vec![
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "const",
    ]);
    let word = prop::sample::select(vec![
        ("type", "integer"),
        ("type", "number"),
        ("type", "string"),
        ("type", "object"),
        ("type", "array"),
        ("type", "null"),
        ("type", "colour"),
        ("format", "date"),
        ("format", "uuid"),
        ("format", "none"),
        ("pattern", "^a+$"),
        ("pattern", "(a|b)*a(a|b){9}"),
        ("pattern", "("),
        ("pattern", "a{1,900}{1,900}"),
        ("pattern", "\\p{L}+"),
        ("const", "a\"b\u{0}"),
        ("$schema", "x"),
        ("$id", "#"),
    ]);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        prop::collection::vec((numeric, number()), 0..4).prop_map(|fields| fields
            .into_iter()
            .map(|(key, number)| (key.to_owned(), number))
            .collect::<Map<_, _>>()
            .into()),
        prop::collection::vec((numeric_of_integers(), number()), 1..4).prop_map(|fields| {
            let fields = fields.into_iter().map(|(key, number)| (key.to_owned(), number));
            fields.chain([("type".to_owned(), "integer".into())]).collect::<Map<_, _>>().into()
        }),
        prop::collection::vec(word, 0..3).prop_map(|fields| fields
            .into_iter()
            .map(|(key, word)| (key.to_owned(), word.into()))
            .collect::<Map<_, _>>()
            .into()),
        reference().prop_map(|to| json!({"$ref": to})),
        prop::collection::vec(number(), 0..4).prop_map(|list| json!({"enum": list})),
    ];
    leaf.prop_recursive(5, 24, 4, |inner| {
        let one = prop::sample::select(vec![
            "items",
            "additionalItems",
            "additionalProperties",
            "not",
            "if",
            "then",
            "contains",
            "propertyNames",
            "unevaluatedItems",
        ]);
        let many = prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems", "items"]);
        let named = prop::sample::select(vec![
            "properties",
            "patternProperties",
            "$defs",
            "definitions",
            "dependentSchemas",
            "x",
        ]);
        let name = prop::sample::select(vec!["a", "b", "a%20b", "p", "a/b", "^a", "0", ""]);
        let part = prop_oneof![
            (one, inner.clone()).prop_map(|(key, of)| (key, of)),
            (many, prop::collection::vec(inner.clone(), 0..4)).prop_map(|(key, list)| (key, list.into())),
            (named, prop::collection::vec((name, inner.clone()), 0..4)).prop_map(|(key, fields)| {
                let fields: Map<_, _> = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
                (key, fields.into())
            }),
            Just(("required", json!(["a", "p"]))),
            Just(("type", json!(["integer", "object", "array"]))),
        ];
        (inner, prop::collection::vec(part, 1..4)).prop_map(|(base, parts)| {
            let mut fields = base.as_object().cloned().unwrap_or_default();
            fields.extend(parts.into_iter().map(|(key, value)| (key.to_owned(), value)));
            fields.into()
        })
    })
}

fn numeric_of_integers() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
}

/// The number of cases, 150 or `PALIMPSEST_FUZZ_CASES`; the same ones each time.
fn cases() -> ProptestConfig {
    let cases = std::env::var("PALIMPSEST_FUZZ_CASES").ok().and_then(|count| count.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(150),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(49),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn fuzz_any_schema_is_compiled_or_refused(schema in schema(), strict in any::<bool>()) {
        if let Err(reason) = compiled(&schema, strict) {
            prop_assert!(!reason.contains("others are being prepared"), "{schema}");
            prop_assert!(reason.len() < 2000);
        }
    }
}
