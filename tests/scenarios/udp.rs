//! UDP through the VIP.
use crate::client::{udp, udp_ask};
use crate::lab::{Family, Lab, Mode};
use crate::servers::UdpEcho;
use crate::{matrix, probe, spread};

/// UDP echo servers in every server, on `port`.
pub(crate) fn echoes(lab: &Lab, family: Family, port: u16) -> Vec<UdpEcho> {
    let on = |number| match lab.mode {
        Mode::Nat => lab.rip(family, number),
        Mode::Dr | Mode::Ipip | Mode::Gre => lab.vip(family),
    };
    lab.servers.iter().map(|s| UdpEcho::start(&s.ns, &s.name, on(s.number), port)).collect()
}

matrix!(echo);
fn echo(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(mode);
    let _echoes = echoes(&lab, family, 7);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 7);
    lab.service("-u", vip, "rr", [1, 1, 1], 7);

    let largest = if family == Family::V4 { 1472 } else { 1452 };
    let sockets: Vec<_> = (0..60).map(|_| udp(&lab.client, vip)).collect();
    // The sockets are connected: only an answer from the VIP's address and port is an answer.
    let names: Vec<String> = sockets.iter().map(|s| udp_ask(s, b"first").expect("an echo")).collect();
    spread::sequence(&names, &spread::RR).expect("rr's sequence");
    for size in [0, 1, 2, 511, 1400, largest - 3] {
        let payload: Vec<u8> = (0..size).map(|i| i as u8).collect();
        for (s, name) in sockets.iter().zip(&names) {
            let again = udp_ask(s, &payload).expect("an echo");
            assert_eq!(&again, name, "a flow stays with its server");
        }
    }

    // UDP counts as inactive, each flow once, with 300 s to live.
    crate::director::until_counts(lab.d(), &format!("-u {vip}"), 0, 60, crate::wait::secs(5));
    for s in &sockets {
        let port = s.local_addr().expect("an address").port();
        let source = std::net::SocketAddr::new(lab.cip(family), port);
        let entry = lab.d().connection_of(source).expect("an entry");
        assert_eq!((entry.protocol.as_str(), entry.state.as_str()), ("UDP", "UDP"));
        assert!((280..=300).contains(&entry.expire), "{entry:?}");
    }
}
