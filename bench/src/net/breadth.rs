//! `pps.*`: packets a second of the three data paths and of nftables, by flows, size, method and family. No bars: these are there
//! to look at, one run each, all in the generator's soft interrupt.

use serde_json::json;

use super::forwarder::{Forwarder, Traffic};
use super::lab::{Lab, Method, is_there};
use super::newconn::ConntrackRoom;
use super::saturate::saturate;
use crate::report::{Bar, Row};
use crate::{Datapath, Failure, Plan};

const FLOWS: u32 = 30_000;
/// Room in the kernel's connection tracking.
const ROOM: u32 = 11 << 20;

/// Everything that is varied, from what is usual; what takes longest comes last.
fn traffics() -> Vec<Traffic> {
    let usual = Traffic::of(FLOWS);
    let mut all = vec![usual, Traffic::of(1)];
    all.extend([512, 1514].map(|bytes| Traffic { bytes, ..usual }));
    all.extend([Method::Dr, Method::Ipip].map(|method| Traffic { method, ..usual }));
    all.push(Traffic { v6: true, bytes: 64, ..usual });
    all.extend([1_000_000, 10_000_000].map(Traffic::of));
    all
}

/// A number of flows as it is said.
fn short(n: u32) -> String {
    match n {
        1_000_000.. => format!("{}m", n / 1_000_000),
        1000.. => format!("{}k", n / 1000),
        _ => n.to_string(),
    }
}

fn id(name: &str, t: &Traffic) -> String {
    let family = if t.v6 { "v6" } else { "v4" };
    format!("pps.{name}.{}.{family}.{}b.{}", t.method.name(), t.bytes, short(t.flows))
}

pub(crate) fn breadth(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let _room = ConntrackRoom::make(ROOM)?;
    let mut forwarders = vec![("afpacket".to_owned(), Forwarder::Lvsd(Datapath::Afpacket))];
    for datapath in [Datapath::Tc, Datapath::Xdp] {
        if is_there(datapath)? {
            forwarders.push((datapath.to_string(), Forwarder::Lvsd(datapath)));
        }
    }
    forwarders.push(("nft".to_owned(), Forwarder::Nft));
    let mut rows = Vec::new();
    for traffic in traffics() {
        for (name, forwarder) in &forwarders {
            // nftables' translation is what there is to compare
            let id = id(name, &traffic);
            if *forwarder == Forwarder::Nft && traffic.method != Method::Nat || !plan.wants(&id) {
                continue;
            }
            if plan.is_late() {
                println!("{id:<30} left out: the measurements before it took too long");
                continue;
            }
            let row = point(plan, *forwarder, &traffic).map_or_else(
                |e| Row::failed(id.as_str(), "packets/s", Bar::Nothing, &e.to_string()),
                |(pps, raw)| Row::new(id.as_str(), pps, "packets/s", Bar::Nothing, raw),
            );
            rows.push(row);
        }
    }
    Ok(rows)
}

fn point(plan: &Plan, forwarder: Forwarder, traffic: &Traffic) -> Result<(f64, serde_json::Value), Failure> {
    let run = saturate(&Lab::for_frames()?, forwarder, traffic, plan.pick(1, 2))?;
    let pps = run["pps"].as_f64().ok_or("a run without a rate")?;
    let raw = json!({
        "formula": "packets a second at the sink's interface (veth), at saturation",
        "places": "all in the generator's soft interrupt; one worker for what goes by rings",
        "traffic": traffic.json(), "run": run,
    });
    Ok((pps.round(), raw))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let all: HashSet<String> = traffics().iter().map(|t| id("tc", t)).collect();
        assert_eq!(all.len(), traffics().len());
        assert!(all.contains("pps.tc.nat.v4.60b.30k") && all.contains("pps.tc.nat.v6.64b.30k"));
        assert!(all.contains("pps.tc.nat.v4.60b.10m") && all.contains("pps.tc.nat.v4.60b.1"));
    }
}
