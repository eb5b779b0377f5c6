//! The state schema: 10 domains, 33 slots, and which slots hold one state at a time (STALE, table 8).

use std::fmt;
use std::sync::LazyLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// As shown in prompts: one domain per line; `*` marks single-state slots. Slot names are unique.
pub const LISTING: &str = "\
identity_and_background: core_identity_or_role, skill_or_language_background, stable_social_context, current_status_or_affiliation
stable_preferences: enduring_preference, habitual_choice_pattern, value_or_priority_tendency
location_and_living: current_base_location*, living_arrangement_or_settlement*, location_linked_condition
weather_and_environment: current_weather_pattern*, environmental_condition, weather_linked_adjustment
health_and_mobility: current_health_state*, functional_limitation, health_linked_adjustment
work_and_schedule: current_workload, schedule_pressure_or_bandwidth*, work_transition_or_change, standing_commitment_or_availability
finance_and_resources: financial_constraint, resource_availability, resource_linked_adjustment, resource_access_or_recoverability
family_and_caregiving: caregiving_responsibility, household_obligation, family_linked_constraint
routine_and_transport: current_commute_mode*, transport_access_condition, routine_shift
current_focus_and_goals: current_primary_focus, short_horizon_goal, goal_linked_constraint";

static SLOTS: LazyLock<Vec<Slot>> = LazyLock::new(|| {
    let lines = LISTING.lines().filter_map(|line| line.split_once(": "));
    let of_domain = |(domain, slots): (&'static str, &'static str)| {
        slots.split(", ").map(move |slot| {
            let name = slot.trim_end_matches('*');
            Slot { domain, name, single: name != slot }
        })
    };
    lines.flat_map(of_domain).collect()
});

/// Written `domain.slot`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Slot {
    domain: &'static str,
    name: &'static str,
    single: bool,
}

impl Slot {
    /// The slot a reply names. Corrects swapped names and a wrong domain; `None` if unknown.
    pub fn named(domain: &str, slot: &str) -> Option<Slot> {
        by_name(&last(slot)).or_else(|| by_name(&last(domain)))
    }

    /// The slot of a (domain, slot) pair as the public code reads it: as given, swapped, or the first of two slots of one domain. Unlike
    /// [`Self::named`], does not correct a wrong domain.
    pub fn of_pair(domain: &str, slot: &str) -> Option<Slot> {
        let (first, second) = (last(domain), last(slot));
        let pair = |known: &Slot, domain: &str, name: &str| known.domain == domain && known.name == name;
        Slot::all().find(|s| pair(s, &first, &second) || pair(s, &second, &first)).or_else(|| {
            let (first, second) = (by_name(&first)?, by_name(&second)?);
            (first.domain == second.domain).then_some(first)
        })
    }

    pub fn parse(text: &str) -> Option<Slot> {
        by_name(&last(text))
    }

    pub fn all() -> impl Iterator<Item = Slot> {
        SLOTS.iter().cloned()
    }

    pub fn domain(&self) -> &'static str {
        self.domain
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn is_single(&self) -> bool {
        self.single
    }
}

fn by_name(name: &str) -> Option<Slot> {
    Slot::all().find(|known| known.name == name)
}

/// Last component: prompts show slots as `domain.slot`.
fn last(text: &str) -> String {
    text.rsplit('.').next().unwrap_or_default().trim().to_lowercase()
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.domain, self.name)
    }
}

impl From<Slot> for String {
    fn from(slot: Slot) -> String {
        slot.to_string()
    }
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let slot = Slot::parse(&text).filter(|slot| slot.to_string() == text);
        slot.ok_or_else(|| D::Error::custom(format!("`{text}` is no slot of the schema")))
    }
}

pub fn domains() -> impl Iterator<Item = &'static str> {
    LISTING.lines().filter_map(|line| Some(line.split_once(": ")?.0))
}
