//! Counters in the text format of Prometheus, for the textfile collector of its node exporter or
//! any other way.

use std::fmt::Write as _;

use nvshmem_transport_libfabric::job::counters::fields::{Field, PEER, RAIL};

use super::Pe;
use super::page::{Counters, Lane};

/// All counters of all PEs.
pub(super) fn text(pes: &[Pe]) -> String {
    let mut text = String::new();
    let rails = |lane: &Lane| -> Vec<(String, Counters)> {
        let rails = lane.rails.iter().enumerate();
        rails
            .map(|(at, rail)| {
                let labels = format!(",rail=\"{at}\",device=\"{}\"", escaped(&rail.name));
                (labels, rail.counters.clone())
            })
            .collect()
    };
    let peers = |lane: &Lane| -> Vec<(String, Counters)> {
        let peers = lane.peers.iter();
        peers.map(|peer| (format!(",peer=\"{}\"", peer.pe), peer.counters.clone())).collect()
    };
    family(&mut text, pes, "rail", RAIL, &rails);
    family(&mut text, pes, "peer", PEER, &peers);
    text
}

/// The metrics of all rails, or of all peers: each with its help, its type and its samples
/// together, as the format wants.
fn family<T>(
    text: &mut String,
    pes: &[Pe],
    what: &str,
    fields: &[Field<T>],
    rows: &dyn Fn(&Lane) -> Vec<(String, Counters)>,
) {
    for Field { name, doc, is_gauge, .. } in fields {
        let (kind, end) = if *is_gauge { ("gauge", "") } else { ("counter", "_total") };
        let metric = format!("nvshmem_libfabric_{what}_{name}{end}");
        let _ = write!(text, "# HELP {metric} {doc}\n# TYPE {metric} {kind}\n");
        for page in pes.iter().map(|pe| &pe.page) {
            for lane in &page.lanes {
                for (labels, counters) in rows(lane) {
                    let Some(value) = counters.get(*name) else { continue };
                    let (program, provider) = (escaped(&page.program), escaped(&page.provider));
                    let _ = writeln!(
                        text,
                        "{metric}{{pe=\"{}\",pid=\"{}\",program=\"{program}\",provider=\"{provider}\",lane=\"{}\"{labels}}} {value}",
                        page.pe,
                        page.pid,
                        escaped(&lane.lane)
                    );
                }
            }
        }
    }
}

/// The value of a label. Pages have no ends of lines.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::State;
    use crate::top::page::tests::page;

    #[test]
    fn metrics_have_help_type_and_a_sample_for_each_rail_and_peer() {
        let text = text(&[Pe { state: State::Running, page: page(0, 1, 9) }]);
        let lines: Vec<&str> = text.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.starts_with("# HELP nvshmem_libfabric_rail_posted_total "));
        let lines = &lines[at.unwrap() + 1..];
        let pe = "pe=\"0\",pid=\"100\",program=\"a b\",provider=\"tcp\",lane=\"proxy\"";
        assert_eq!(lines[0], "# TYPE nvshmem_libfabric_rail_posted_total counter");
        assert_eq!(
            lines[1],
            format!(
                "nvshmem_libfabric_rail_posted_total{{{pe},rail=\"0\",device=\"lo \\\"0\\\"\"}} 9"
            )
        );
        assert!(lines[2].ends_with("device=\"lo1\"} 0"), "{}", lines[2]);
        let peer = format!("nvshmem_libfabric_peer_received_total{{{pe},peer=\"1\"}} 4");
        assert!(lines.contains(&peer.as_str()), "{text}");
        assert!(lines.contains(&"# TYPE nvshmem_libfabric_rail_bytes_per_second gauge"));
    }
}
