//! Templates written to take memory, stack or time without bound.

use std::time::{Duration, Instant};

use minijinja::Value;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::super::{ChatTemplate, Message, MessageRole, TextError};

fn rendered(source: &str) -> Result<String, TextError> {
    let template = ChatTemplate::new("hostile", source, Some("<s>"), Some("</s>"))?;
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let messages = [message(MessageRole::User, "hello"), message(MessageRole::Assistant, "Hi {name}, é🤖")];
    template.render(&messages, true)
}

/// An expression of a long text `t`, as often as it takes to make more than the budget.
fn many(expression: &str) -> String {
    let each = format!("{{% set a = {expression} %}}");
    format!("{{% set t = 'x' * 4000000 %}}{}", each.repeat(150))
}

/// A loop whose body stands in line 3.
fn looped(before: &str, body: &str) -> String {
    format!("{before}\n{{% for i in range(90000) %}}\n{body}\n{{% endfor %}}")
}

#[test]
fn templates_without_bound_are_refused_by_the_line_that_breaks_it() {
    let ns = "{% set ns = namespace(x='ab', l=[], y='ab') %}";
    let cases = [
        // Memory.
        (3, looped(ns, "{% set ns.x = ns.x ~ ns.x %}")),
        (3, looped(ns, "{% set ns.x = ns.x + ns.x %}")),
        (3, looped(ns, "{% set ns.x = ns.x * 10 %}")),
        (3, looped(ns, "{% set ns.x = ns.x|replace('b', 'bbbbbbbb') %}")),
        (3, looped(ns, "{% set ns.x = ns.x.replace('', ns.x) %}")),
        (3, looped(ns, "{% set ns.x = [ns.x, ns.x, ns.x]|join(ns.x) %}")),
        (3, looped(ns, "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}")),
        (3, looped(ns, "{% set ns.l = ns.l + ns.l + [1] %}")),
        (3, looped(ns, "{% set ns.l = [ns.l, ns.l] %}")),
        (3, looped(ns, "{% set ns.l = {'a': ns.l, 'b': ns.l} %}")),
        (3, looped(ns, "{% set ns.x = ns.l ~ ns.x ~ ns.l ~ ns.x %}")),
        (3, looped(ns, "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}")),
        (3, looped(ns, "{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(100000) %}")),
        (1, "{{ 'a'|center(2 ** 40) }}".to_owned()),
        (1, "{{ 'a'.ljust(2 ** 40) }}".to_owned()),
        (1, "{{ 'a'.rjust(2 ** 30, 'abcdefgh') }}".to_owned()),
        (1, "{{ 'a'.zfill(2 ** 62) }}".to_owned()),
        (1, "{{ 'a' * 90000000 }}".to_owned()),
        (1, "{{ ([1] * 90000000)|list }}".to_owned()),
        (1, "{{ ('a' * 90000000 ~ 'a' * 90000000 ~ 'a' * 90000000)|length }}".to_owned()),
        (1, "{{ '%99999999999d'|format(1) }}".to_owned()),
        (1, "{{ '%*d'|format(99999999999, 1) }}".to_owned()),
        (1, "{{ '%.99999999999f'|format(1.5) }}".to_owned()),
        (1, "{{ '{:99999999999}'.format(1) }}".to_owned()),
        (1, "{{ [1]|batch(2 ** 40, 'x') }}".to_owned()),
        (1, "{{ [1]|slice(2 ** 40) }}".to_owned()),
        (1, "{{ range(90000)|map('center', 100000)|list }}".to_owned()),
        (1, "{{ (['abc' * 1000] * 90000)|sum(start='') }}".to_owned()),
        (1, "{{ range(90000)|tojson(indent='x' * 1000000) }}".to_owned()),
        (1, "{{ (range(9000)|tojson(separators=['x' * 1000000, ':'])) }}".to_owned()),
        // Named by the line that prints.
        (
            1,
            looped(
                "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}",
                "{% set x = 1 %}{{ m(m(m(m(m(m('abcd' * 9000)))))) }}",
            ),
        ),
        // Made by a filter within `map`, or split into copies.
        (
            1,
            "{% set t = ' ' * 1000000 %}{% set l = [[1]] * 10000 %}{{ l|map('tojson', false, t)|list|length }}"
                .to_owned(),
        ),
        (1, many("[t]|map('upper')")),
        (1, many("t.split(',')")),
        (1, many("t.rpartition(',')")),
        (1, many("t.splitlines()")),
        (1, many("t|split(',')")),
        (1, many("t|lines")),
        (1, "{% set c = cycler('x' * 1000000) %}{{ [c] * 1000 }}".to_owned()),
        // Stack.
        (1, "{% set n = namespace() %}{% set n.c = cycler(n) %}{{ n }}".to_owned()),
        (1, "{% set n = namespace() %}{% set n.c = cycler(1, [{'a': (n,)}]) %}{{ n }}".to_owned()),
        (1, "{% set n = namespace() %}{% set n.c = joiner(n) %}{{ n }}".to_owned()),
        (1, "{% set n = namespace() %}{% set n.c = joiner([n]) %}{{ n }}".to_owned()),
        (3, looped("{% set ns = namespace(c=cycler(1)) %}", "{% set ns.c = cycler(ns.c) %}")),
        (3, looped(ns, "{% set ns.l = [ns.l] %}")),
        (3, looped(ns, "{% set ns.l = {'a': ns.l} %}")),
        (3, looped(ns, "{% set ns.l = (ns.l,) %}")),
        (3, looped(ns, "{% set ns.l = [ns.l]|batch(1)|list %}")),
        (3, looped(ns, "{% set ns.l = dict(a=ns.l) %}")),
        (1, "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned()),
        (1, "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns|tojson }}".to_owned()),
        (1, "{% set ns = namespace() %}{% set a, ns.x = [1, ns] %}{{ ns }}".to_owned()),
        (
            1,
            "{% set ns = namespace() %}{% set l = [{'a': ns}] %}{% set ns.x = l %}{{ ns == ns.x }}"
                .to_owned(),
        ),
        (1, "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}".to_owned()),
        (1, "{% block a %}{{ self.a() }}{% endblock %}".to_owned()),
        (1, format!("{{{{ {}1{} }}}}", "[".repeat(90_000), "]".repeat(90_000))),
        (1, format!("{{{{ {}1 }}}}", "not ".repeat(90_000))),
        (1, format!("{{{{ {}1 }}}}", "- ".repeat(90_000))),
        (1, format!("{{{{ 1{} }}}}", " ~ 1".repeat(90_000))),
        (1, format!("{{{{ x{} }}}}", ".x".repeat(90_000))),
        (1, format!("{{{{ x{} }}}}", "|trim".repeat(90_000))),
        (1, format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(50_000))),
        (1, format!("{}{}", "{% if 1 %}".repeat(40_000), "{% endif %}".repeat(40_000))),
        // Time.
        (1, looped("{% macro m() %}{% for i in range(90000) %}{% endfor %}{% endmacro %}", "{{ m() }}")),
        (
            1,
            "{% set x = 'a' * 3000000 %}{% for i in range(90000) %}{% for j in range(9) %}{% if 'b' in x ~ i %}\
             {% endif %}{% endfor %}{% endfor %}"
                .to_owned(),
        ),
        (1, "{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}".to_owned()),
        (1, "{{ ([{}] * 20000)|map(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|map(attribute=[1] * 20000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|sort(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|sort(attribute='a,' * 500) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|sort(**{'attribute': 'x' * 1000000}) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|unique(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|min(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|max(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|selectattr('x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|rejectattr('x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|groupby('x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|groupby(attribute='x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|sum('x' * 1000000) }}".to_owned()),
        (1, "{{ ([{}] * 20000)|join(',', 'x' * 1000000) }}".to_owned()),
        (1, "{{ [[{}] * 20000]|map('selectattr', 'x' * 1000000) }}".to_owned()),
        (1, "{{ (['b'] * 20000)|select('in', 'a' * 3000000) }}".to_owned()),
        (1, "{% for i in range(2 ** 40) %}{% endfor %}".to_owned()),
        // Other files.
        (1, "{% include 'hostile' %}".to_owned()),
    ];
    for (line, source) in cases {
        let (begun, shown) = (Instant::now(), source.chars().take(150).collect::<String>());
        let error = rendered(&source).expect_err(&shown).to_string();
        assert!(begun.elapsed() < Duration::from_secs(60), "{shown}");
        assert!(error.starts_with("template hostile"), "{error}: {shown}");
        assert!(error.contains(&format!("line {line}")), "{error}: {shown}");
        assert!(error.len() < 10_000, "{shown}");
    }
}

#[test]
fn a_chain_at_the_limit_of_tokens_fits_the_stack_of_a_thread() {
    for (open, chain) in
        [("1", " ~ 1"), ("x", ".x"), ("'x'", "|trim"), ("", "not "), ("", "- "), ("x", "[1]")]
    {
        let source =
            format!("{{{{ {open}{}{} }}}}", chain.repeat(900), if open.is_empty() { "1" } else { "" });
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn(move || drop(rendered(&source))).unwrap().join().unwrap();
    }
}

#[test]
fn what_honest_templates_build_is_left_as_it_is() {
    for (source, expected) in [
        ("{% set l = messages[0:1] + [1] %}{{ l|length }}{{ l[-1] }}", "21"),
        (
            "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l|join(' ') }}",
            "user assistant",
        ),
        (
            "{{ messages[::-1][0].role }}{{ ('a', 'b')|join }}{{ {'a': [1, 2]}|tojson }}",
            "assistantab{\"a\": [1, 2]}",
        ),
        ("{{ range(3)|list }}{{ [3, 1]|sort|join(', ') }}{{ 'ab' * 2 ~ 1 }}", "[0, 1, 2]1, 3abab1"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{% set t %}{{ m('a') }}b{% endset %}{{ t|upper }}", "<A>B"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{% else %}none{% endfor %}", "1"),
        ("{% filter upper|replace('A', 'b') %}a{{ 'c' }}{% endfilter %}", "bC"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        (
            "{% set c = cycler('a', ['b']) %}{{ c.next() }}{{ c.next()[0] }}{% set j = joiner(', ') %}{{ j() }}{{ j() }}",
            "ab, ",
        ),
        ("{% set j = joiner() %}{{ j() }}{{ j() }}", ", "),
        (
            "{{ {'a': 1, 'b': 1}|chain({'b': 2})|tojson }}{{ [1]|chain([2], 'c')|join }}",
            "{\"a\": 1, \"b\": 2}12c",
        ),
        (
            "{{ messages|map(attribute='role')|map('upper')|join(' ') }}{{ x|map('upper')|list }}",
            "USER ASSISTANT[]",
        ),
        (
            "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|first }}{{ ['a', 'b']|select('in', 'bc')|join }}",
            "hellob",
        ),
        (
            "{{ messages|sort(attribute='role,content')|map(attribute='role')|join(' ') }}{{ 'a b'|split(' ')|last }}",
            "assistant userb",
        ),
        ("{{ messages[1:] is sequence }}{{ '%s-%d'|format('a', 3) }}{{ '{}'.format(1) }}", "Truea-31"),
    ] {
        assert_eq!(rendered(source).unwrap(), expected, "{source}");
    }
}

#[test]
fn a_mapping_chained_with_itself_stays_as_small_as_it_is() {
    for (of, expected) in [("{'x': 1}", "1"), ("[]", "0"), ("''", "0")] {
        let doubled = "{% set a = a|chain(a) %}".repeat(30);
        let source = format!("{{% set a = {of} %}}{doubled}{{{{ a|length }}}}");
        assert_eq!(rendered(&source).unwrap(), expected, "{of}");
    }
}

#[test]
fn what_a_namespace_is_given_is_counted() {
    let _rendering = super::Rendering::start(0, 0);
    let left = || super::BUDGET.with_borrow(|budget| budget.as_ref().unwrap().left);
    let before = left();
    super::stored(Value::from(vec![1, 2, 3])).unwrap();
    assert_eq!(before - left(), 4 * super::ENTRY);
    super::BUDGET.with_borrow_mut(|budget| budget.as_mut().unwrap().until = Instant::now());
    std::thread::sleep(Duration::from_millis(2));
    let error = super::stored(Value::from(1)).unwrap_err().to_string();
    assert!(error.contains("it takes more than 5 s"), "{error}");
}

#[test]
fn a_chat_of_2000_messages_can_be_put_together_one_by_one() {
    let source = "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = ns.text ~ m.content %}{% endfor %}{{ ns.text|length }}";
    let template = ChatTemplate::new("honest", source, None, None).unwrap();
    let messages: Vec<Message> = (0..2000)
        .map(|i| {
            let role = if i % 2 == 0 { MessageRole::User } else { MessageRole::Assistant };
            Message { role, content: "x".repeat(282) }
        })
        .collect();
    assert_eq!(template.render(&messages, false).unwrap(), "564000");
}

/// Texts, lists and numbers.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("ns.x".to_owned()),
        Just("ns.l".to_owned()),
        Just("ns".to_owned()),
        Just("messages".to_owned()),
        Just("messages[0]['content']".to_owned()),
        Just("'ab{}%s'".to_owned()),
        Just("[]".to_owned()),
        Just("undefined_name".to_owned()),
        (0..70_u32).prop_map(|power| format!("2 ** {power}")),
        (-3..100_000_i64).prop_map(|number| number.to_string()),
    ];
    leaf.prop_recursive(4, 12, 3, |inner| {
        let operators =
            prop::sample::select(vec!["~", "+", "*", "-", "%", "//", "in", "==", "<", "and", "or"]);
        let filters = prop::sample::select(vec![
            "list",
            "join",
            "string",
            "length",
            "tojson",
            "upper",
            "title",
            "trim",
            "reverse",
            "sort",
            "unique",
            "items",
            "first",
            "last",
            "lines",
            "split",
            "pprint",
            "escape",
            "int",
            "float",
            "abs",
            "sum",
            "min",
            "max",
            "dictsort",
            "striptags",
            "wordcount",
            "filesizeformat",
            "capitalize",
            "bool",
        ]);
        let called = prop::sample::select(vec![
            "|replace(A, B)",
            "|join(A)",
            "|center(A)",
            "|indent(A)",
            "|batch(A, B)",
            "|slice(A, B)",
            "|format(A, B)",
            "|tojson(indent=A)",
            "|map('center', A)",
            "|map('list')",
            "|map('tojson')",
            "|select('in', A)",
            "|groupby(0)",
            "|zip(A)",
            "|chain(A)",
            "|round(A)",
            "|default(A)",
            "|attr(A)",
            ".replace(A, B)",
            ".join(A)",
            ".ljust(A, B)",
            ".rjust(A)",
            ".zfill(A)",
            ".center(A)",
            ".format(A, B)",
            ".strip(A)",
            ".split(A)",
            ".count(A)",
            ".index(A)",
            ".items()",
            ".get(A)",
            "[A]",
            "[A:B]",
            "[A:B:A]",
        ]);
        prop_oneof![
            (inner.clone(), operators, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (inner.clone(), filters).prop_map(|(a, filter)| format!("({a})|{filter}")),
            (inner.clone(), called, inner.clone(), inner.clone())
                .prop_map(|(of, call, a, b)| format!("({of}){}", call.replace('A', &a).replace('B', &b))),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{'k': {a}, 'l': {b}}}")),
            inner.clone().prop_map(|a| format!("range({a})")),
            inner.clone().prop_map(|a| format!("m({a})")),
            inner.clone().prop_map(|a| format!("dict(a={a})")),
            inner.prop_map(|a| format!("namespace(x={a})")),
        ]
    })
}

fn statements() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        expression().prop_map(|e| format!("{{{{ {e} }}}}")),
        expression().prop_map(|e| format!("{{% set ns.x = {e} %}}")),
        expression().prop_map(|e| format!("{{% set ns.l = {e} %}}")),
        expression().prop_map(|e| format!("{{% set a, ns.l = [1, {e}] %}}")),
        expression().prop_map(|e| format!("{{% do m({e}) %}}")),
        Just("text \u{e9}\n".to_owned()),
        "[{}%#a' |~]{0,12}",
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let body = prop::collection::vec(inner, 0..4).prop_map(|parts| parts.concat());
        prop_oneof![
            (expression(), body.clone())
                .prop_map(|(e, body)| format!("{{% for v in {e} %}}{body}{{% endfor %}}")),
            (1..99_999_u32, body.clone())
                .prop_map(|(count, body)| format!("{{% for v in range({count}) %}}{body}{{% endfor %}}")),
            (expression(), body.clone())
                .prop_map(|(e, body)| format!("{{% if {e} %}}{body}{{% else %}}x{{% endif %}}")),
            body.clone().prop_map(|body| format!("{{% set ns.x %}}{body}{{% endset %}}")),
            body.clone().prop_map(|body| format!("{{% filter upper %}}{body}{{% endfilter %}}")),
            body.prop_map(|body| format!("{{% macro m(x) %}}{{{{ x }}}}{body}{{% endmacro %}}")),
        ]
    })
}

/// The number of cases, 64 or `PALIMPSEST_FUZZ_CASES`; the same ones each time.
fn cases() -> ProptestConfig {
    let cases = std::env::var("PALIMPSEST_FUZZ_CASES").ok().and_then(|count| count.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(64),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(49),
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    /// A process that aborts fails the test too.
    #[test]
    fn fuzz_any_template_is_rendered_or_refused_in_time(parts in prop::collection::vec(statements(), 1..5)) {
        let source = format!("{{% set ns = namespace(x='ab', l=[]) %}}{{% macro m(x) %}}{{{{ x }}}}{{% endmacro %}}{}", parts.concat());
        let begun = Instant::now();
        if let Err(error) = rendered(&source) {
            prop_assert!(error.to_string().len() < 10_000);
        }
        prop_assert!(begun.elapsed() < Duration::from_secs(120), "{source}");
    }
}
