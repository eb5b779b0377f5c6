//! The wordings, and the prompt in each setting.

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::{Context, Retriever};
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest_core::text::{ChatTemplate, Prompt};

use super::sample_case;

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

fn prompts(setting: &str) -> Vec<Prompt> {
    let templates = Templates::load(&SUBTLEMEMORY, None).unwrap();
    let builder = PromptBuilder::new(templates, ChatTemplate::new("test", CHATML, None, None).unwrap());
    let case = (SUBTLEMEMORY.arrange)(&sample_case(), setting, 0);
    builder.build_all(&case, &case.history).unwrap()
}

/// The text up to the end of the last session.
fn shared(prompt: &Prompt) -> &str {
    let last = prompt.spans.iter().rposition(|span| span.label.starts_with("session[")).unwrap();
    &prompt.text[..prompt.spans[last].end]
}

#[test]
fn strong_and_soft_prompts_differ_behind_the_history_alone() {
    let (strong, soft) = (prompts("full"), prompts("full-soft"));
    assert_eq!((strong.len(), soft.len()), (15, 15));
    for (strong, soft) in strong.iter().zip(&soft) {
        assert_eq!(shared(strong), shared(soft));
        assert_ne!(strong.text, soft.text);
        assert!(strong.text.contains("\"Needs clarification:\"") && !soft.text.contains("larification"));
    }
    let first = shared(&strong[0]);
    assert!(strong.iter().all(|prompt| shared(prompt) == first), "the questions share one history");
}

#[test]
fn nothing_that_only_the_judge_may_see_is_in_a_prompt() {
    let case = sample_case();
    for (prompt, probe) in prompts("oracle").iter().zip(&case.probes) {
        assert!(prompt.text.contains(&probe.query));
        let behind = &prompt.text[shared(prompt).len()..];
        for word in ["complementary", "nuanced", "contradictory", "incorrect", &probe.facets["instance"]] {
            assert!(!behind.contains(word), "{word}: {behind}");
        }
        let case_note = case.judge.of_probes[&probe.id]["case"].as_str().unwrap();
        assert!(!prompt.text.contains(case_note));
    }
}

#[test]
fn the_roles_of_a_question_are_those_of_its_own_spans() {
    let case = sample_case();
    for (prompt, probe) in prompts("full").iter().zip(&case.probes) {
        let mut roles: Vec<(String, String)> = prompt
            .spans
            .iter()
            .filter(|span| span.label.starts_with("session["))
            .filter_map(|span| Some((span.label.clone(), span.role.clone()?)))
            .collect();
        let mut expected: Vec<(String, String)> = probe
            .evidence
            .iter()
            .map(|e| (format!("session[{}]", e.place.segment), e.role.clone()))
            .collect();
        roles.sort();
        expected.sort();
        assert_eq!(roles, expected, "{}", probe.id);
    }
}

#[test]
fn the_settings_are_the_papers_three_and_the_full_history_each_in_both_wordings() {
    let settings = SUBTLEMEMORY.settings;
    let context = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap().context;
    for soft in ["", "-soft"] {
        assert_eq!(context(&format!("oracle{soft}")), Context::Evidence);
        // BM25 stores sessions: perfect retrieval of the targets is the oracle.
        assert_eq!(context(&format!("perfect{soft}")), context(&format!("oracle{soft}")));
        assert_eq!(context(&format!("default{soft}")), Context::Retrieved { by: Retriever::Bm25, most: 5 });
        assert_eq!(context(&format!("full{soft}")), Context::Whole);
    }
    assert_eq!(settings.len(), 8);
    assert_eq!(SUBTLEMEMORY.default_settings, ["oracle", "full"]);
    assert_eq!(SUBTLEMEMORY.default_settings_of_long, None);
}

/// SmolLM2's tokeniser needs about 1.6 tokens per word here; 3 leaves a margin.
#[test]
fn the_samples_whole_prompts_stay_far_below_6000_tokens() {
    let words = |prompt: &Prompt| prompt.text.split_whitespace().count();
    let longest = prompts("full").iter().map(words).max().unwrap();
    assert!((1000..2000).contains(&longest), "{longest} words");
}
