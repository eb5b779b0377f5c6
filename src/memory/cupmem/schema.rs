//! The state schema: 10 domains, 33 slots, and which slots hold one state at a time (STALE, table 8).

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Number of states of a slot that hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cardinality {
    Single,
    Multi,
}

use Cardinality::{Multi, Single};

/// Slots with their cardinality.
type Slots = &'static [(&'static str, Cardinality)];

/// Domains with their slots.
pub static DOMAINS: [(&str, Slots); 10] = [
    (
        "identity_and_background",
        &[
            ("core_identity_or_role", Multi),
            ("skill_or_language_background", Multi),
            ("stable_social_context", Multi),
            ("current_status_or_affiliation", Multi),
        ],
    ),
    (
        "stable_preferences",
        &[
            ("enduring_preference", Multi),
            ("habitual_choice_pattern", Multi),
            ("value_or_priority_tendency", Multi),
        ],
    ),
    (
        "location_and_living",
        &[
            ("current_base_location", Single),
            ("living_arrangement_or_settlement", Single),
            ("location_linked_condition", Multi),
        ],
    ),
    (
        "weather_and_environment",
        &[
            ("current_weather_pattern", Single),
            ("environmental_condition", Multi),
            ("weather_linked_adjustment", Multi),
        ],
    ),
    (
        "health_and_mobility",
        &[
            ("current_health_state", Single),
            ("functional_limitation", Multi),
            ("health_linked_adjustment", Multi),
        ],
    ),
    (
        "work_and_schedule",
        &[
            ("current_workload", Multi),
            ("schedule_pressure_or_bandwidth", Single),
            ("work_transition_or_change", Multi),
            ("standing_commitment_or_availability", Multi),
        ],
    ),
    (
        "finance_and_resources",
        &[
            ("financial_constraint", Multi),
            ("resource_availability", Multi),
            ("resource_linked_adjustment", Multi),
            ("resource_access_or_recoverability", Multi),
        ],
    ),
    (
        "family_and_caregiving",
        &[
            ("caregiving_responsibility", Multi),
            ("household_obligation", Multi),
            ("family_linked_constraint", Multi),
        ],
    ),
    (
        "routine_and_transport",
        &[("current_commute_mode", Single), ("transport_access_condition", Multi), ("routine_shift", Multi)],
    ),
    (
        "current_focus_and_goals",
        &[("current_primary_focus", Multi), ("short_horizon_goal", Multi), ("goal_linked_constraint", Multi)],
    ),
];

/// A slot of the schema, written `domain.slot`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Slot {
    domain: &'static str,
    name: &'static str,
}

impl Slot {
    /// The slot that a reply names. Names in each other's place, and a slot under another slot's domain, are put right: slot names are
    /// unique. `None` where there is no such slot.
    pub fn named(domain: &str, slot: &str) -> Option<Slot> {
        let (domain, slot) = (last(domain), last(slot));
        Slot::all()
            .find(|known| known.name == slot)
            .or_else(|| Slot::all().find(|known| known.name == domain))
    }

    /// The slot of that name in that domain, as the public code reads a pair: as it stands, swapped, or as two slots of one domain, of which
    /// the first counts. Unlike [`Self::named`] it puts no slot under another domain right.
    pub fn of_pair(domain: &str, slot: &str) -> Option<Slot> {
        let (first, second) = (last(domain), last(slot));
        let pair = |known: &Slot, domain: &str, name: &str| known.domain == domain && known.name == name;
        Slot::all().find(|s| pair(s, &first, &second) || pair(s, &second, &first)).or_else(|| {
            let by_name = |name: &str| Slot::all().find(|known| known.name == name);
            let (first, second) = (by_name(&first)?, by_name(&second)?);
            (first.domain == second.domain).then_some(first)
        })
    }

    /// A slot from `domain.slot` or the slot's name alone.
    pub fn parse(text: &str) -> Option<Slot> {
        Slot::named("", text)
    }

    /// All of them, in the schema's order.
    pub fn all() -> impl Iterator<Item = Slot> {
        let of_domain = |(domain, slots): &'static (&'static str, Slots)| {
            slots.iter().map(move |(name, _)| Slot { domain, name })
        };
        DOMAINS.iter().flat_map(of_domain)
    }

    /// Its domain.
    pub fn domain(&self) -> &'static str {
        self.domain
    }

    /// Its name within the domain.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its cardinality.
    pub fn cardinality(&self) -> Cardinality {
        let slots = DOMAINS.iter().find(|(domain, _)| *domain == self.domain).map(|(_, slots)| *slots);
        let known = slots.unwrap_or_default().iter().find(|(name, _)| *name == self.name);
        known.map_or(Multi, |(_, cardinality)| *cardinality)
    }
}

/// The last part of a dotted name: prompts show slots as `domain.slot`.
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

/// The domain of that name.
pub fn domain(name: &str) -> Option<&'static str> {
    DOMAINS.iter().map(|(domain, _)| *domain).find(|domain| *domain == name.trim().to_lowercase())
}

/// The schema as prompts show it: a line a domain, single slots with a star.
pub fn listing() -> String {
    let line = |(domain, slots): &(&str, Slots)| {
        let star = |cardinality: &Cardinality| if *cardinality == Single { "*" } else { "" };
        let names: Vec<String> = slots.iter().map(|(name, c)| format!("{name}{}", star(c))).collect();
        format!("{domain}: {}", names.join(", "))
    };
    DOMAINS.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_schema_is_that_of_table_8() {
        let single: Vec<String> =
            Slot::all().filter(|s| s.cardinality() == Single).map(|s| s.name.to_owned()).collect();
        assert_eq!((DOMAINS.len(), Slot::all().count()), (10, 33));
        let expected = [
            "current_base_location",
            "living_arrangement_or_settlement",
            "current_weather_pattern",
            "current_health_state",
            "schedule_pressure_or_bandwidth",
            "current_commute_mode",
        ];
        assert_eq!(single, expected);
        let names: BTreeSet<&str> = Slot::all().map(|slot| slot.name).collect();
        assert_eq!(names.len(), 33, "slot names are unique, so a slot is known by its name");
    }

    #[test]
    fn a_slot_is_found_with_its_names_swapped_or_under_another_domain() {
        let home = Slot::named("location_and_living", "current_base_location").unwrap();
        assert_eq!(Slot::named("current_base_location", "location_and_living"), Some(home.clone()));
        assert_eq!(Slot::named("health_and_mobility", "Current_Base_Location"), Some(home.clone()));
        assert_eq!(Slot::parse("location_and_living.current_base_location"), Some(home.clone()));
        assert_eq!(Slot::named("location_and_living", "favourite_colour"), None);
        // The public code reads pairs the same way.
        for (domain, slot) in [
            ("location_and_living", "current_base_location"),
            ("current_base_location", "location_and_living"),
            ("current_base_location", "location_linked_condition"),
        ] {
            assert_eq!(Slot::of_pair(domain, slot), Some(home.clone()), "{domain} {slot}");
        }
        assert_eq!(Slot::of_pair("health_and_mobility", "current_base_location"), None);
        assert_eq!(Slot::of_pair("current_workload", "current_base_location"), None);
        assert_eq!(Slot::of_pair("", "current_base_location"), None);
        let written = serde_json::to_string(&home).unwrap();
        assert_eq!(written, r#""location_and_living.current_base_location""#);
        assert_eq!(serde_json::from_str::<Slot>(&written).unwrap(), home);
        assert!(serde_json::from_str::<Slot>(r#""a.b""#).is_err());
    }
}
