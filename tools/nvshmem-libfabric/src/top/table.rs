//! The table of counters: for each PE its rails and the peers that it has most to do with.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::page::{Counters, Lane, Page};
use super::{Look, Pe, State};

/// Milliseconds without an answer of the proxy thread that are told.
const STILL: u64 = 3_000;

/// A column: its head, the counter, and when it and its rate are left out where there is no room:
/// what has the highest number first. A rate without a number is none.
#[derive(Clone, Copy)]
struct Column {
    head: &'static str,
    counter: &'static str,
    rank: u8,
    rate: Option<u8>,
}

const fn column(head: &'static str, counter: &'static str, rank: u8) -> Column {
    Column { head, counter, rank, rate: None }
}

impl Column {
    const fn per_second(self, rank: u8) -> Self {
        Self { rate: Some(rank), ..self }
    }

    /// Of those whose rank is below that.
    fn below(self, rank: u8) -> Option<Self> {
        let rate = self.rate.filter(|rate| *rate < rank);
        (self.rank < rank).then_some(Self { rate, ..self })
    }

    fn width(&self) -> usize {
        1 + self.head.len().max(VALUE) + self.rate.map_or(0, |_| 1 + VALUE)
    }
}

const RAIL: [Column; 8] = [
    column("bytes", "bytes", 0).per_second(0),
    column("bulk", "bulk_bytes", 4),
    column("segments", "posted", 1).per_second(2),
    column("in flight", "max_in_flight", 5),
    column("queued", "queued", 1),
    column("no room", "again", 3),
    column("failed", "failures", 0),
    column("again", "reissued", 0),
];

const PEER: [Column; 4] = [
    column("writes", "writes", 0).per_second(0),
    column("reads", "reads", 0).per_second(1),
    column("sent", "sent", 0).per_second(2),
    column("received", "received", 0).per_second(3),
];

/// Columns of a number, and most of what a row is of.
const VALUE: usize = 7;
const NAME: usize = 26;

/// The columns that a terminal of that width has room for, beside names.
fn fitting(columns: &[Column], width: usize, name: usize) -> Vec<Column> {
    let below = |rank| columns.iter().filter_map(|column| column.below(rank)).collect::<Vec<_>>();
    let fits =
        |columns: &Vec<Column>| name + columns.iter().map(Column::width).sum::<usize>() <= width;
    (1..=u8::MAX).rev().map(below).find(fits).unwrap_or_else(|| below(1))
}

/// The lines of the table, of as many columns as a terminal has. Rates are since `before`, where a
/// PE is in both.
pub(super) fn lines(look: &Look, before: Option<&Look>, peers: usize, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for pe in &look.pes {
        let same = |other: &&Pe| (other.page.pid, other.page.pe) == (pe.page.pid, pe.page.pe);
        let before = before.and_then(|look| look.pes.iter().find(same)).map(|pe| &pe.page);
        lines.push(head(pe));
        for lane in &pe.page.lanes {
            let before = before.and_then(|page| {
                let seconds = seconds(page, &pe.page)?;
                Some((page.lanes.iter().find(|other| other.lane == lane.lane)?, seconds))
            });
            of_lane(&mut lines, lane, before, peers, width);
        }
        lines.push(String::new());
    }
    lines
}

/// What lies between two pages. None where it is no time.
fn seconds(before: &Page, now: &Page) -> Option<f64> {
    let gone = now.taken_ms().checked_sub(before.taken_ms())?;
    (gone > 0).then_some(gone as f64 / 1e3)
}

fn head(pe: &Pe) -> String {
    let Pe { state, page } = pe;
    let Page { pe, pid, program, provider, .. } = page;
    let mut text = format!("PE {pe}: {program} ({pid}) over {provider}");
    if *state == State::Elsewhere {
        text.push_str(", in another container");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
    let still = now.saturating_sub(page.taken_ms());
    if still > STILL {
        let _ = write!(text, "; its proxy thread has not answered for {} s", still / 1000);
    }
    text
}

fn of_lane(
    lines: &mut Vec<String>,
    lane: &Lane,
    before: Option<(&Lane, f64)>,
    peers: usize,
    width: usize,
) {
    let title = format!("  {} lane", lane.lane);
    let rails = lane.rails.iter().enumerate();
    let rails: Vec<String> = rails.map(|(at, rail)| format!("  rail {at} {}", rail.name)).collect();
    let names = rails.iter().chain([&title]).map(|name| name.chars().count());
    // Names have what they need, up to a bound.
    let name = names.max().unwrap_or(0).min(NAME);
    let columns = fitting(&RAIL, width, name);
    lines.push(heads(&title, name, &columns));
    for (at, (rail, row_name)) in lane.rails.iter().zip(&rails).enumerate() {
        let same =
            before.and_then(|(lane, seconds)| Some((&lane.rails.get(at)?.counters, seconds)));
        lines.push(row(row_name, name, &columns, &rail.counters, same));
    }
    let traffic = |counters: &Counters| counters.values().sum::<u64>();
    let mut busiest: Vec<_> =
        lane.peers.iter().filter(|peer| traffic(&peer.counters) > 0).collect();
    if busiest.is_empty() {
        return;
    }
    busiest.sort_by_key(|peer| (std::cmp::Reverse(traffic(&peer.counters)), peer.pe));
    let columns = fitting(&PEER, width, name);
    lines.push(heads("  its peers", name, &columns));
    for peer in busiest.iter().take(peers) {
        let same = before.and_then(|(lane, seconds)| {
            let before = lane.peers.iter().find(|other| other.pe == peer.pe)?;
            Some((&before.counters, seconds))
        });
        lines.push(row(&format!("  PE {}", peer.pe), name, &columns, &peer.counters, same));
    }
    let others = busiest.len().saturating_sub(peers) as u64 + lane.peers_left_out;
    if others > 0 {
        lines.push(format!("  and {others} others"));
    }
}

fn heads(of: &str, name: usize, columns: &[Column]) -> String {
    let mut text = format!("{of:<name$}");
    for Column { head, rate, .. } in columns {
        let _ = write!(text, " {head:>VALUE$}");
        if rate.is_some() {
            let _ = write!(text, " {:>VALUE$}", "/s");
        }
    }
    text
}

fn row(
    of: &str,
    name: usize,
    columns: &[Column],
    now: &Counters,
    before: Option<(&Counters, f64)>,
) -> String {
    let of: String = of.chars().take(name).collect();
    let mut text = format!("{of:<name$}");
    for Column { head, counter, rate, .. } in columns {
        let value = now.get(*counter).copied().unwrap_or(0);
        let _ = write!(text, " {:>1$}", short(value as f64), head.len().max(VALUE));
        if rate.is_some() {
            let rate = before.map(|(before, seconds)| {
                let was = before.get(*counter).copied().unwrap_or(0);
                // Those of peers begin anew at 2^32.
                let more = value
                    .checked_sub(was)
                    .unwrap_or_else(|| (value + (1 << 32)).saturating_sub(was));
                more as f64 / seconds
            });
            let _ = write!(text, " {:>VALUE$}", rate.map_or_else(|| String::from("-"), short));
        }
    }
    text
}

/// A number in at most seven characters.
fn short(value: f64) -> String {
    let mut value = value;
    for suffix in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 || (suffix.is_empty() && value < 99_999.5) {
            return match suffix {
                "" => format!("{value:.0}"),
                _ => format!("{value:.1}{suffix}"),
            };
        }
        value /= 1e3;
    }
    format!("{value:.0}E")
}

/// Lines as a terminal of this size is to show them, in place of what it shows.
pub(super) fn screen(lines: &[String], width: usize, height: usize) -> String {
    let mut text = String::from("\x1b[H");
    // The last line would scroll.
    for line in lines.iter().take(height.saturating_sub(1)) {
        let line: String = line.chars().take(width).collect();
        let _ = write!(text, "{line}\x1b[K\r\n");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::page::tests::page;

    const WIDE: usize = 200;

    fn look(written_ms: u64, posted: u64) -> Look {
        let pes = (0..2).map(|pe| Pe { state: State::Running, page: page(pe, written_ms, posted) });
        Look { pes: pes.collect(), ..Look::default() }
    }

    #[test]
    fn every_pe_rail_and_peer_has_a_row_and_rates_are_per_second() {
        let lines = lines(&look(3000, 2_500_000), Some(&look(1000, 500_000)), 8, WIDE);
        let first =
            lines.iter().position(|line| line.starts_with("PE 0: a b (100) over tcp")).unwrap();
        assert!(lines[first].contains("has not answered for"), "1970: {}", lines[first]);
        let words = |at: usize| lines[first + at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(1),
            "proxy lane bytes /s bulk segments /s in flight queued no room failed again"
        );
        assert_eq!(words(2), "rail 0 lo \"0\" 2.5G 1.0G 0 2.5M 1.0M 0 1 0 0 0");
        assert_eq!(words(3), "rail 1 lo1 0 0 0 0 0 0 0 0 0 0");
        assert_eq!(words(4), "its peers writes /s reads /s sent /s received /s");
        assert_eq!(words(5), "PE 1 2.5M 1.0M 2 0 3 0 4 0");
        assert_eq!(words(6), "and 3 others");
        assert!(lines.iter().any(|line| line.starts_with("PE 1: a b (101)")));
    }

    #[test]
    fn without_a_time_before_there_is_no_rate() {
        for before in [None, Some(look(1000, 5))] {
            let lines = lines(&look(1000, 7), before.as_ref(), 0, WIDE);
            let rail = lines.iter().find(|line| line.contains("rail 0")).unwrap();
            assert_eq!(rail.matches('-').count(), 2, "{rail}");
            assert!(lines.contains(&String::from("  and 4 others")));
        }
    }

    #[test]
    fn counters_that_have_begun_anew_have_no_mad_rate() {
        let counters = |writes| Counters::from([(String::from("writes"), writes)]);
        let now = counters(10);
        let text = row("x", 1, &PEER[..1], &now, Some((&counters((1 << 32) - 10), 2.0)));
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["x", "10", "10"]);
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let heads = |columns: Vec<Column>| columns.iter().map(|c| c.head).collect::<Vec<_>>();
        let all = |columns: &[Column]| columns.iter().map(|c| c.head).collect::<Vec<_>>();
        assert_eq!(heads(fitting(&RAIL, WIDE, NAME)), all(&RAIL));
        for name in [18, NAME] {
            let rail = fitting(&RAIL, 80, name);
            assert!(rail[0].rate.is_some(), "bytes a second");
            let kept = heads(rail);
            for head in ["bytes", "segments", "queued", "failed", "again"] {
                assert!(kept.contains(&head), "{head}: {kept:?}");
            }
            assert_eq!(heads(fitting(&PEER, 80, name)), all(&PEER));
        }
        for line in lines(&look(3000, 2_500_000), Some(&look(1000, 500_000)), 8, 80) {
            assert!(line.starts_with("PE ") || line.chars().count() <= 80, "{line}");
        }
        assert_eq!(heads(fitting(&RAIL, 1, NAME)), ["bytes", "failed", "again"]);
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 99_999.0, 100_000.0, 999_499.0, 999_500.0, 1.5e9, 1e15, 1.8e19];
        let texts = numbers.map(short);
        assert_eq!(texts, ["0", "99999", "100.0k", "999.5k", "1.0M", "1.5G", "1.0P", "18E"]);
    }

    #[test]
    fn a_screen_has_no_more_than_fits() {
        let lines = vec![String::from("abcdef"); 9];
        let text = screen(&lines, 4, 3);
        assert_eq!(text, "\x1b[Habcd\x1b[K\r\nabcd\x1b[K\r\n\x1b[J");
    }
}
