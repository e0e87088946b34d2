//! The report of a measurement: one page with plots, tables and the numbers, which needs no network
//! and nothing beside it.

use std::error::Error;
use std::fmt::Write as _;
use std::time::SystemTime;

use nvshmem_bench::{Compared, Row, Test};
use serde_json::json;

use super::plot::{Across, Curve, Plot, bytes, number};
use super::table::{Figure, headline};
use crate::report::machine::first;

/// All that was measured.
#[derive(Debug)]
pub(super) struct Measured {
    /// Where the PEs were, and on what memory.
    pub(super) on: String,
    /// What was opened, in the words of the log.
    pub(super) opened: String,
    /// What makes the figures less than they look like.
    pub(super) warnings: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// The same job with fewer rails, and with all.
    pub(super) by_rails: Vec<(u32, Vec<Row>)>,
    /// Beside raw libfabric, or why not.
    pub(super) beside: Result<Vec<Compared>, String>,
}

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:900px;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em}h2{font-size:1.25em;margin:2em 0 .3em}svg{max-width:100%;height:auto;display:block}\
table{border-collapse:collapse;margin:.5em 0;font-variant-numeric:tabular-nums}\
td,th{padding:.1em .9em;text-align:right;border-bottom:1px solid #ddd}th{font-weight:600}\
td:first-child,th:first-child{text-align:left}code{background:#f4f4f4;padding:.1em .3em}summary{cursor:pointer;color:#0072b2}";

impl Measured {
    /// The page.
    ///
    /// # Errors
    /// There is nothing to show.
    pub(super) fn page(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        let mut page =
            String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
        // Nothing is fetched, and nothing runs.
        page.push_str(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
        );
        let _ = writeln!(
            page,
            "<meta name=\"viewport\" content=\"width=device-width\"><title>NVSHMEM over libfabric: what was measured</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>NVSHMEM over libfabric: what was measured</h1>"
        );
        let _ = writeln!(
            page,
            "<p><strong>{}</strong></p>\n<p>{}, version {}; {}. Each figure is the median of its rounds; on one host they are what the software \
             costs, and not a network.</p>\n<p><code>{}</code></p>\n<p>{}</p>",
            escaped(&headline(&self.rows)),
            date(SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())),
            env!("CARGO_PKG_VERSION"),
            escaped(&self.on),
            escaped(&self.opened),
            escaped(&machine())
        );
        for warning in &self.warnings {
            let _ = writeln!(page, "<p><strong>Warning:</strong> {}.</p>", escaped(warning));
        }
        self.by_size(&mut page)?;
        self.by_rails(&mut page)?;
        self.beside_raw(&mut page)?;
        let _ = writeln!(
            page,
            "<script type=\"application/json\" id=\"figures\">{}</script>\n</body></html>",
            // Nothing in it ends the element.
            self.json().to_string().replace('<', "\\u003c")
        );
        Ok(page)
    }

    fn by_size(&self, page: &mut String) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (title, tests, y, about) in [
            (
                "Bandwidth by size",
                [Test::PutBandwidth, Test::GetBandwidth],
                "GB/s",
                "Windows of operations, each ended by a quiet.",
            ),
            (
                "Latency by size",
                [Test::PutLatency, Test::GetLatency],
                "microseconds",
                "One operation and a quiet at a time: until it is delivered.",
            ),
        ] {
            let curves = tests.map(|test| Curve {
                name: String::from(test.name()),
                points: points(&self.rows, test),
            });
            let plot =
                Plot { across: Across::Bytes, x: "bytes", y, factors: true, curves: &curves };
            section(page, title, about, &plot, &|x| bytes(x as u64))?;
        }
        Ok(())
    }

    fn by_rails(&self, page: &mut String) -> Result<(), Box<dyn Error + Send + Sync>> {
        let of = |test: Test| -> Vec<(f64, f64)> {
            let row = |rows: &[Row]| rows.iter().find(|row| row.test == test).map(|row| row.value);
            let all = self.by_rails.iter();
            all.filter_map(|(rails, rows)| Some((f64::from(*rails), row(rows)?))).collect()
        };
        let size = self.by_rails.iter().flat_map(|(_, rows)| rows).map(|row| row.size).max();
        let size = bytes(size.unwrap_or(0));
        for (title, y, about, tests) in [
            (
                "Bandwidth by rails",
                "GB/s",
                format!("Operations of {size}, with the first rails alone and with all."),
                &[Test::PutBandwidth, Test::GetBandwidth][..],
            ),
            (
                "Message rate by rails",
                "million/s",
                String::from("Puts of 8 bytes."),
                &[Test::PutRate],
            ),
        ] {
            let curves: Vec<Curve> = tests
                .iter()
                .map(|test| Curve { name: String::from(test.name()), points: of(*test) })
                .collect();
            let plot =
                Plot { across: Across::Count, x: "rails", y, factors: false, curves: &curves };
            section(page, title, &about, &plot, &|x| format!("{x:.0}"))?;
        }
        Ok(())
    }

    fn beside_raw(&self, page: &mut String) -> Result<(), Box<dyn Error + Send + Sync>> {
        let compared = match &self.beside {
            Ok(compared) => compared,
            Err(why) => {
                let _ = writeln!(page, "<h2>Beside raw libfabric</h2><p>{}</p>", escaped(why));
                return Ok(());
            }
        };
        let curve = |name: String, direction: &str, value: &dyn Fn(&Compared) -> f64| Curve {
            name,
            points: compared
                .iter()
                .filter(|row| row.direction == direction)
                .map(|row| (row.bytes as f64, value(row)))
                .collect(),
        };
        let mut rates = Vec::new();
        for direction in ["put", "get"] {
            let rate = |seconds: f64, bytes: u64| bytes as f64 / seconds / 1e9;
            rates.push(curve(format!("{direction}, this transport"), direction, &|row| {
                rate(row.plugin, row.bytes)
            }));
            rates.push(curve(format!("{direction}, raw libfabric"), direction, &|row| {
                rate(row.raw, row.bytes)
            }));
        }
        let plot =
            Plot { across: Across::Bytes, x: "bytes", y: "GB/s", factors: true, curves: &rates };
        let about = "One rail, the same windows on the same memory, in turns. Raw libfabric is the thinnest program that promises the same: each \
                     operation delivered.";
        section(page, "Beside raw libfabric", about, &plot, &|x| bytes(x as u64))?;
        let ratios = ["put", "get"]
            .map(|direction| curve(String::from(direction), direction, &|row| row.ratio));
        let plot = Plot {
            across: Across::Bytes,
            x: "bytes",
            y: "of raw libfabric's rate",
            factors: false,
            curves: &ratios,
        };
        let about = "The rate of this transport over that of raw libfabric: the median over all rounds. 1 is as fast.";
        section(page, "Rate over that of raw libfabric", about, &plot, &|x| bytes(x as u64))
    }

    fn json(&self) -> serde_json::Value {
        let figures = |rows: &[Row]| rows.iter().map(Figure::from).collect::<Vec<_>>();
        let rails = self.by_rails.iter();
        let rails = rails.map(|(rails, rows)| json!({ "rails": rails, "figures": figures(rows) }));
        let compared = self.beside.iter().flatten().map(|row| {
            json!({
                "direction": row.direction,
                "bytes": row.bytes,
                "raw_seconds": row.raw,
                "seconds": row.plugin,
                "ratio": row.ratio,
                "confidence": [row.confidence.0, row.confidence.1],
            })
        });
        json!({
            "on": self.on,
            "opened": self.opened,
            "warnings": self.warnings,
            "figures": figures(&self.rows),
            "by_rails": rails.collect::<Vec<_>>(),
            "beside_raw": compared.collect::<Vec<_>>(),
        })
    }
}

fn points(rows: &[Row], test: Test) -> Vec<(f64, f64)> {
    rows.iter().filter(|row| row.test == test).map(|row| (row.size as f64, row.value)).collect()
}

/// A plot with its title, and its numbers to unfold.
fn section(
    page: &mut String,
    title: &str,
    about: &str,
    plot: &Plot<'_>,
    place: &dyn Fn(f64) -> String,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let _ = writeln!(page, "<h2>{}</h2><p>{}</p>\n{}", escaped(title), escaped(about), plot.svg()?);
    let _ = write!(
        page,
        "<details><summary>numbers ({})</summary><table><tr><th>{}</th>",
        escaped(plot.y),
        escaped(plot.x)
    );
    for curve in plot.curves {
        let _ = write!(page, "<th>{}</th>", escaped(&curve.name));
    }
    page.push_str("</tr>\n");
    let mut places: Vec<f64> =
        plot.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    for x in places {
        let _ = write!(page, "<tr><td>{}</td>", place(x));
        for curve in plot.curves {
            let value = curve.points.iter().find(|point| point.0 == x);
            let _ = write!(
                page,
                "<td>{}</td>",
                value.map_or_else(String::new, |point| number(point.1))
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></details>\n");
    Ok(())
}

/// What may be told of the machine: no names.
fn machine() -> String {
    let named = first("/proc/cpuinfo", "model name");
    let processor = named.split_once(':').map_or("a processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = first("/proc/sys/kernel/osrelease", "");
    format!("{processor}, {cores} cores for this process, Linux {kernel}")
}

/// The day and the minute of a time in seconds since 1970.
fn date(since: u64) -> String {
    let (mut day, minute) = (since / 86_400, since % 86_400 / 60);
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", day + 1, minute / 60, minute % 60)
}

/// As text of a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(beside: Result<Vec<Compared>, String>) -> Measured {
        let row = |test, size| Row { test, size, value: size as f64 / 7.0, spread: (0.0, 1.0) };
        let rows: Vec<Row> = Test::ALL
            .into_iter()
            .flat_map(|test| [8, 64, 4096].map(|size| row(test, size)))
            .collect();
        let by_rails = vec![(1, rows.clone()), (2, rows.clone())];
        let warnings = vec![String::from("others & more took it")];
        let (on, opened) = (String::from("two PEs on two hosts"), String::from("a <b> & c"));
        Measured { on, opened, warnings, rows, by_rails, beside }
    }

    #[test]
    fn a_page_has_all_plots_and_fetches_nothing() {
        let compared = ["put", "get"].map(|direction| Compared {
            direction: String::from(direction),
            bytes: 64,
            raw: 1e-6,
            plugin: 2e-6,
            ratio: 0.5,
            confidence: (0.4, 0.6),
        });
        let page = measured(Ok(compared.to_vec())).page().unwrap();
        assert_eq!(page.matches("<svg").count(), 6);
        assert!(page.contains("a &lt;b&gt; &amp; c") && page.contains("put, raw libfabric"));
        let parts =
            ["<strong>put ", " UTC, version ", "two PEs on two hosts. ", "others &amp; more"];
        for part in parts {
            assert!(page.contains(part), "no {part} in {page}");
        }
        // 64 bytes in two microseconds and in one, of puts and of gets: GB/s.
        let rates = ["0.032", "0.064", "0.032", "0.064"].map(|rate| format!("<td>{rate}</td>"));
        assert!(page.contains(&format!("<tr><td>64 B</td>{}</tr>", rates.concat())), "{page}");
        // The one address is the name of the format, which is not fetched.
        let addresses = page.matches("http://").count() + page.matches("https://").count();
        assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count());
        assert!(!page.contains("src=") && !page.contains("<link") && !page.contains("@import"));
        let numbers =
            page.split("id=\"figures\">").nth(1).unwrap().split("</script>").next().unwrap();
        let numbers: serde_json::Value = serde_json::from_str(numbers).unwrap();
        assert_eq!(numbers["beside_raw"][1]["ratio"], 0.5);
        assert_eq!(numbers["by_rails"][1]["rails"], 2);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let dates = [0, 951_782_399, 951_782_400, 1_735_689_599, 1_795_996_740].map(date);
        let expected = [
            "1970-01-01 00:00 UTC",
            "2000-02-28 23:59 UTC",
            "2000-02-29 00:00 UTC",
            "2024-12-31 23:59 UTC",
            "2026-11-29 23:59 UTC",
        ];
        assert_eq!(dates, expected);
    }

    #[test]
    fn a_page_without_a_comparison_says_why() {
        let page = measured(Err(String::from("verbs is <not> compared"))).page().unwrap();
        assert!(
            page.matches("<svg").count() == 4 && page.contains("verbs is &lt;not&gt; compared")
        );
    }
}
