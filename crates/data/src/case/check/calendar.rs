//! Check for weekdays and months that contradict dates: a weekday with a date (`Monday, March 3, 2025`, `2025-03-03 (Monday)`; a missing
//! year is the one nearest to the text's time), or statements about the text's own day (`today is Monday`, `it's already March`).

use std::ops::Range;

use jiff::civil::{Date, DateTime, Weekday};

const WEEKDAYS: &str = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday";
const MONTHS: &str = "January February March April May June July August September October November December";

/// Minimum letters of an abbreviated, capitalised day or month.
const SHORTEST: usize = 3;
/// Words allowed after a day in `it is ...`, beside the end of the sentence.
const OF_DAY: [&str; 6] = ["today", "morning", "afternoon", "evening", "night", "already"];
/// Words allowed before a day or month in `it is ...`.
const BEFORE: [&str; 8] = ["a", "already", "now", "only", "still", "early", "mid", "late"];

/// Contradictions in `text`. `at`: its time, if known.
pub fn misfits(text: &str, at: Option<DateTime>) -> Vec<String> {
    let lower = text.to_lowercase();
    let mut names = WEEKDAYS.split(' ').chain(MONTHS.split(' '));
    if !names.any(|name| name.get(..SHORTEST).is_some_and(|short| lower.contains(&short.to_lowercase()))) {
        return Vec::new();
    }
    let places = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let start = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    let tokens = places.map(|word| start(word)..start(word) + word.len()).collect();
    let scan = Scan { text, tokens, at: at.map(DateTime::date) };
    let all = || 0..scan.tokens.len();
    all()
        .filter_map(|place| scan.dated(place))
        .chain(all().filter_map(|place| scan.of_today(place)))
        .collect()
}

#[derive(Clone, Copy)]
struct Written {
    year: Option<i16>,
    month: i8,
    day: i8,
    next: usize,
}

struct Scan<'a> {
    text: &'a str,
    tokens: Vec<Range<usize>>,
    at: Option<Date>,
}

impl Scan<'_> {
    fn word(&self, place: usize) -> &str {
        self.tokens.get(place).and_then(|token| self.text.get(token.clone())).unwrap_or_default()
    }

    fn is(&self, place: usize, word: &str) -> bool {
        self.word(place).eq_ignore_ascii_case(word)
    }

    fn gap(&self, place: usize) -> &str {
        let (Some(token), Some(next)) = (self.tokens.get(place), self.tokens.get(place + 1)) else {
            return ".";
        };
        self.text.get(token.end..next.start).unwrap_or(".")
    }

    /// Only spaces and commas between this token and the next.
    fn joined(&self, place: usize) -> bool {
        !self.gap(place).is_empty() && self.gap(place).chars().all(|c| c == ' ' || c == ',')
    }

    fn piece(&self, from: usize, to: usize) -> &str {
        let (Some(first), Some(last)) = (self.tokens.get(from), self.tokens.get(to.saturating_sub(1))) else {
            return "";
        };
        self.text.get(first.start..last.end).unwrap_or_default()
    }

    /// Index in `names`: full names in any case, or capitalised abbreviations.
    fn name_among(&self, place: usize, names: &str) -> Option<i8> {
        let word = self.word(place);
        let is =
            |name: &str| word.len() >= SHORTEST && name.starts_with(word) || name.eq_ignore_ascii_case(word);
        names.split(' ').position(is).and_then(|at| i8::try_from(at).ok())
    }

    fn weekday(&self, place: usize) -> Option<Weekday> {
        // Skip the possessive `Monday's`.
        let owns = self.is(place + 1, "s") && self.gap(place).starts_with(['\'', '’']);
        let day = self.name_among(place, WEEKDAYS).filter(|_| !owns)?;
        Weekday::from_monday_zero_offset(day).ok()
    }

    fn month(&self, place: usize) -> Option<i8> {
        self.name_among(place, MONTHS).map(|at| at + 1)
    }

    fn day(&self, place: usize) -> Option<i8> {
        let word = self.word(place);
        let digits = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        let plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|day| plain && (1..=31).contains(day))
    }

    fn year(&self, place: usize) -> Option<i16> {
        let year: i16 = self.word(place).parse().ok()?;
        (1000..=2999).contains(&year).then_some(year)
    }

    fn date(&self, place: usize) -> Option<Written> {
        let with_year = |month: i8, day: i8, next: usize| {
            let year = self.year(next).filter(|_| self.joined(next - 1));
            Written { year, month, day, next: next + usize::from(year.is_some()) }
        };
        if let (Some(year), "-", "-") = (self.year(place), self.gap(place), self.gap(place + 1)) {
            let month = self.word(place + 1).parse().ok()?;
            return Some(Written { year: Some(year), month, day: self.day(place + 2)?, next: place + 3 });
        }
        if let (Some(month), Some(day)) = (self.month(place), self.day(place + 1))
            && self.joined(place)
        {
            return Some(with_year(month, day, place + 2));
        }
        let day = self.day(place)?;
        let of = place + 1 + usize::from(self.is(place + 1, "of"));
        let month = self.month(of).filter(|_| (place..of).all(|at| self.joined(at)))?;
        Some(with_year(month, day, of + 1))
    }

    /// Resolves a missing year to the nearest one.
    fn meant(&self, written: Written) -> Option<Date> {
        let Written { year, month, day, .. } = written;
        if let Some(year) = year {
            return Date::new(year, month, day).ok();
        }
        let at = self.at?;
        let near = (-1..=1).filter_map(|by| Date::new(at.year().checked_add(by)?, month, day).ok());
        near.min_by_key(|date| (date.duration_since(at).as_hours().abs(), *date))
    }

    fn dated(&self, place: usize) -> Option<String> {
        let (weekday, written, from, to) = match self.weekday(place) {
            Some(weekday) => {
                let the = place + 1 + usize::from(self.is(place + 1, "the"));
                let written = self.date(the).filter(|_| (place..the).all(|at| self.joined(at)))?;
                (weekday, written, place, written.next)
            }
            None => {
                let written = self.date(place)?;
                let behind = self.gap(written.next.checked_sub(1)?);
                let iso = behind == " " && self.gap(place) == "-";
                let weekday = self.weekday(written.next).filter(|_| iso || behind.trim() == "(")?;
                (weekday, written, place, written.next + 1)
            }
        };
        let meant = self.meant(written)?;
        let said = self.piece(from, to);
        let shown = if written.year.is_some() { String::new() } else { format!(" {}", meant.year()) };
        (meant.weekday() != weekday).then(|| format!("\"{said}\"{shown} is a {}", meant.strftime("%A")))
    }

    fn of_today(&self, place: usize) -> Option<String> {
        let at = self.at?;
        let is = |from: usize| {
            let short = self.is(from, "s") && self.gap(from.checked_sub(1)?).starts_with(['\'', '’']);
            (short || self.is(from, "is")).then_some(from + 1)
        };
        let today = self.is(place, "today");
        let open = self.is(place, "it");
        let subject = match self.is(place, "happy") {
            true => place + 1,
            false if today || open => is(place + 1)?,
            false => return None,
        };
        let mut named = subject;
        while BEFORE.iter().any(|word| self.is(named, word)) && named < subject + 2 {
            named += 1;
        }
        if !(place..named)
            .all(|at| self.gap(at).chars().all(|c| c == ' ' || c == '\'' || c == '’' || c == '-'))
        {
            return None;
        }
        let misfit = |to: usize| format!("\"{}\" on {at}, a {}", self.piece(place, to), at.strftime("%A"));
        if let Some(weekday) = self.weekday(named) {
            let ends = !self.gap(named).chars().all(|c| c == ' ')
                || OF_DAY.iter().any(|word| self.is(named + 1, word));
            return ((!open || ends) && weekday != at.weekday()).then(|| misfit(named + 1));
        }
        if today && let Some(written) = self.date(named + usize::from(self.is(named, "the"))) {
            let same = (written.month, written.day) == (at.month(), at.day());
            return (!same || written.year.is_some_and(|year| year != at.year()))
                .then(|| misfit(written.next));
        }
        let month = self.month(named).filter(|_| open)?;
        let capital = self.word(named).starts_with(char::is_uppercase);
        let ends = !self.gap(named).chars().all(|c| c == ' ') || self.is(named + 1, "already");
        (capital && ends && month != at.month()).then(|| misfit(named + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        misfits(text, Some(jiff::civil::date(2025, 3, 5).at(10, 0, 0, 0)))
    }

    #[test]
    fn a_weekday_beside_a_date_that_is_another_is_found_in_every_form() {
        for text in [
            "See you on Tuesday, March 3, 2025.",
            "Tuesday 3 March 2025",
            "Tuesday the 3rd of March, 2025",
            "on Tue, Mar 3, 2025",
            "2025-03-03 (Tuesday)",
            "2025-03-03 Tuesday",
            "March 3, 2025 (Tuesday)",
            "by tuesday, march 3rd",
        ] {
            let found = said(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].ends_with("is a Monday"), "{text}: {found:?}");
        }
        // Missing year, nearest date: December 30 of the year before was a Monday.
        assert_eq!(said("Tuesday, December 30"), ["\"Tuesday, December 30\" 2024 is a Monday"]);
        assert_eq!(misfits("Tuesday, March 3", None), Vec::<String>::new(), "no year, and nothing to go by");
        assert_eq!(misfits("Tuesday, March 3, 2025", None).len(), 1);
    }

    #[test]
    fn what_a_text_says_of_its_own_day_is_held_against_its_time() {
        for text in [
            "Today is Monday.",
            "today's Monday",
            "It's Monday, and I am tired",
            "It’s a Monday morning here",
            "Happy Monday!",
            "Today is March 4th",
            "It's already April.",
        ] {
            assert_eq!(said(text).len(), 1, "{text}: {:?}", said(text));
        }
    }

    #[test]
    fn what_fits_or_says_nothing_of_that_day_is_left_alone() {
        for text in [
            "Monday, March 3, 2025",
            "Friday, March 7, Saturday, March 8",
            "Today is Wednesday, March 5.",
            "today is the 5th of March",
            "It's Wednesday morning",
            "It's Monday nights that I swim",
            "It is Tuesday for him when it is Monday here",
            "It's March.",
            "it may rain in may; we march 3 miles",
            "I saw him on Monday. March 4 was better.",
            "Monday's list: March 4, 2025",
            "the sun 3 March 2025",
            "Friday, February 30, 2025",
        ] {
            assert_eq!(said(text), Vec::<String>::new(), "{text}");
        }
    }
}
