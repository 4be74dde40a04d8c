//! `bulk.*/nft`: one TCP stream through the daemon's rings beside nftables doing the same translation.

use serde_json::{Value, json};

use super::forwarder::{nft_dnat, remove_nft};
use super::lab::{Lab, Lvsd, SERVER, Serve, VIP};
use super::process::{Running, output};
use super::until;
use crate::report::{Bar, Row, median, spread};
use crate::{Datapath, Failure, Plan};

/// Port of iperf3.
pub(super) const PORT: u16 = 5201;

pub(crate) fn afpacket(plan: &Plan) -> Result<Vec<Row>, Failure> {
    bulk(plan, "bulk.rings/nft", Bar::AtLeast(0.5), Datapath::Afpacket)
}

pub(crate) fn afxdp(plan: &Plan) -> Result<Vec<Row>, Failure> {
    bulk(plan, "bulk.afxdp/nft", Bar::AtLeast(0.1), Datapath::Afxdp)
}

pub(crate) fn tc(plan: &Plan) -> Result<Vec<Row>, Failure> {
    bulk(plan, "bulk.tier/nft", Bar::AtLeast(0.9), Datapath::Tc)
}

fn bulk(plan: &Plan, id: &'static str, bar: Bar, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let lab = Lab::new()?;
    let _server = server(&lab)?;
    let seconds = plan.pick(2, 4);
    let (mut lvsd, mut nft, mut routed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.pick(2, 5) {
        lab.nothing_attached()?;
        let daemon = Lvsd::start(&lab, &Serve::by(datapath, ("-t", PORT)))?;
        lvsd.push(stream(&lab, VIP, seconds)?);
        daemon.process.terminate()?;
        nft.push(with_nft(&lab, seconds)?);
        routed.push(stream(&lab, SERVER, seconds)?);
    }
    let (l, n) = (median(&lvsd), median(&nft));
    let raw = json!({
        "datapath": datapath.to_string(),
        "formula": "median of lvsd's runs / median of nftables' runs",
        "lvsd_gbit_s": l,
        "nft_gbit_s": n,
        "routed_gbit_s": median(&routed),
        "lvsd": spread(&lvsd),
        "nft": spread(&nft),
        "routed": spread(&routed),
        "runs": {"lvsd": lvsd, "nft": nft, "routed": routed},
        "seconds_a_run": seconds,
        "offloads": lab.offloads()?,
        "what": "one iperf3 TCP stream, veth with default offloads; nftables without flowtable (this kernel may lack it), \
                 DNAT to the one server, no masquerading; routed: the same stream to the server's own address",
    });
    Ok(vec![Row::new(id, l / n, "ratio", bar, raw)])
}

/// Starts iperf3's server.
pub(super) fn server(lab: &Lab) -> Result<Running, Failure> {
    let mut server = Running::start(
        lab.server.command("iperf3").args(["-s", "-p", &PORT.to_string()]),
        "iperf3",
        &lab.directory,
    )?;
    until("iperf3's server", || {
        server.must_run()?;
        let listening = lab.server.run(&format!("ss -Hltn sport = :{PORT}"))?;
        Ok((!listening.trim().is_empty()).then_some(()))
    })?;
    Ok(server)
}

fn with_nft(lab: &Lab, seconds: u64) -> Result<f64, Failure> {
    nft_dnat(lab, "tcp", PORT, false)?;
    let result = stream(lab, VIP, seconds);
    remove_nft(lab)?;
    result
}

/// One stream from the client; gigabits a second at the receiver.
pub(super) fn stream(lab: &Lab, to: &str, seconds: u64) -> Result<f64, Failure> {
    let mut c = lab.client.command("iperf3");
    c.args(["-J", "-c", to, "-p", &PORT.to_string(), "-t", &seconds.to_string()]);
    let text = output(&mut c)?;
    let result: Value = serde_json::from_str(&text)?;
    let bits = &result["end"]["sum_received"]["bits_per_second"];
    Ok(bits.as_f64().ok_or("iperf3 gave no rate")? / 1e9)
}
