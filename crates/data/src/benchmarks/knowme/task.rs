//! The seven tasks (KnowMe-Bench, sections 4.1 to 4.3).

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    pub id: &'static str,
    pub prefix: &'static str,
    pub title: &'static str,
    pub form: &'static str,
    pub level: &'static str,
    /// Column in the paper's table 1.
    pub printed: &'static str,
}

const fn task(
    [id, prefix]: [&'static str; 2],
    title: &'static str,
    form: &'static str,
    [level, printed]: [&'static str; 2],
) -> Task {
    Task { id, prefix, title, form, level, printed }
}

pub(super) const TRAP: &str = "T2";
pub(super) const TIMES: &str = "T3";

const FACTS: &str = "Level I";
const LOGIC: &str = "Level II";
const INSIGHT: &str = "Level III";

/// T2 uses T1's prompt, which must not reveal that it expects an abstention. T3 is level I by section 4.1, level II by section 5.3.
/// Headings of table 1 contradict section 4 and the file names: by question counts, columns of 1(b) to 1(d) match other columns of 1(a)
/// from T3 on.
pub static TASKS: [Task; 7] = [
    task(["T1", "T1-"], "Information Extraction", "question", [FACTS, "T1 (Det.)"]),
    task(["T2", "T2-"], "Adversarial Abstention", "question", [FACTS, "T2 (Ent.)"]),
    task(["T3", "T3-"], "Temporal Reasoning", "question", [FACTS, "T4 (Rel.)"]),
    task(["T4", "T4-"], "Logical Event Ordering", "ordering", [LOGIC, "T7 (Sum.)"]),
    task(["T5", "T5-"], "Mnestic Trigger Analysis", "question", [LOGIC, "T3 (Time)"]),
    task(["T6", "T6-"], "Mind-Body Interaction", "insight", [INSIGHT, "T5 (Con.)"]),
    task(["T7", "T7-"], "Expert-Annotated Psychoanalysis", "insight", [INSIGHT, "T6 (Abs.)"]),
];

impl Task {
    /// By file name such as `Temporal Reasoning_answers.json`; the suffix is optional, case and separators are ignored.
    pub fn of_file(name: &str) -> Option<&'static Task> {
        let stem = name.rsplit('/').next()?.strip_suffix(".json")?.to_lowercase();
        let endings = ["_questions", "_question", "_answers", "_answer"];
        let bare = endings.iter().find_map(|ending| stem.strip_suffix(ending)).unwrap_or(&stem);
        TASKS.iter().find(|task| letters(task.title) == letters(bare))
    }

    pub fn named(id: &str) -> Option<&'static Task> {
        TASKS.iter().find(|task| task.id == id)
    }

    pub fn is_insight(&self) -> bool {
        self.level == INSIGHT
    }
}

fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::Task;

    #[test]
    fn files_of_all_three_datasets_name_their_task() {
        let of = |name: &str| Task::of_file(name).map(|task| task.id);
        assert_eq!(of("answer/Temporal Reasoning_answers.json"), Some("T3"));
        assert_eq!(of("a/question/Mind-Body Interaction_question.json"), Some("T6"));
        assert_eq!(of("mnestic_trigger_analysis_answer.json"), Some("T5"));
        assert_eq!(of("Expert-Annotated Psychoanalysis.json"), Some("T7"));
        assert_eq!(
            (of("question/Temporal_questions.json"), of("Temporal Reasoning_answers.csv")),
            (None, None)
        );
    }
}
