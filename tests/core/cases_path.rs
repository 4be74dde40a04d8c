//! Field cases 24 and 25, the tunnels' part: what routers between director and server say of outer packets.

use std::net::IpAddr;

use ipvs_netlink::Backend;
use lvsd::engine::{Count, Reason};
use lvsd::route::{Event as Change, Place, Route, RouteKind, Via};

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0};

/// How a server is reached, and what the encapsulation adds to the outer IP header.
const HOWS: [(&str, u32); 3] = [("-i", 0), ("-i --tun-type gre", 4), ("-i --tun-type gre --tun-csum", 8)];

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn pick(v6: bool, four: &str, six: &str) -> IpAddr {
    ip(if v6 { six } else { four })
}

fn client(v6: bool) -> IpAddr {
    pick(v6, "10.2.0.1", "2001:db8:2::1")
}

fn vip(v6: bool) -> IpAddr {
    pick(v6, "10.0.0.1", "2001:db8::1")
}

fn director(v6: bool) -> IpAddr {
    pick(v6, "10.1.0.254", "2001:db8:1::254")
}

fn router(v6: bool) -> IpAddr {
    pick(v6, "10.1.0.9", "2001:db8:1::9")
}

/// A service with one server, and the outer packet of a client's with so many bytes of data.
fn rig(v6: bool, outer_v6: bool, how: &str) -> Rig {
    let mut rig = Rig::golden();
    let service = if v6 { "[2001:db8::1]:80" } else { "10.0.0.1:80" };
    let real = if outer_v6 { "[2001:db8:1::1]:80" } else { "10.1.0.1:80" };
    rig.cli(&format!("-A -t {service} -s rr"));
    rig.cli(&format!("-a -t {service} -r {real} {how}"));
    assert_eq!(to_server(rig.client(&segment(v6, SYN, 0))).len(), 1);
    rig
}

fn segment(v6: bool, flags: u8, data: usize) -> Vec<u8> {
    tcp(&Ip::new(client(v6), vip(v6)), 40000, 80, flags, &vec![7; data])
}

#[track_caller]
fn to_server(event: Event) -> Vec<Vec<u8>> {
    match event {
        Event::Out(f) if f.iter().all(|f| f.0 == S0) => f.into_iter().map(|f| f.1[14..].to_vec()).collect(),
        e => panic!("not to the server: {e:?}"),
    }
}

/// The error that the client gets: type, code, bytes 4..8, and the quoted packet.
#[track_caller]
fn to_client(event: Event, v6: bool) -> ((u8, u8), u32, Vec<u8>) {
    let Event::Out(frames) = event else { panic!("no answer: {event:?}") };
    assert_eq!((frames.len(), frames[0].0, &frames[0].1[..6]), (1, C0, &GW_MAC[..]));
    let frame = &frames[0].1;
    assert!(checksums_ok(frame));
    assert_eq!(dst_of(frame), client(v6));
    let at = if v6 { 54 } else { 34 };
    let source = if v6 { ip6(&frame[22..38]) } else { ip4(&frame[26..30]) };
    assert_eq!(source, vip(v6));
    let rest = u32::from_be_bytes(frame[at + 4..at + 8].try_into().unwrap());
    ((frame[at], frame[at + 1]), rest, frame[at + 8..].to_vec())
}

/// "Too big" about an outer packet, of which so many bytes are quoted.
fn too_big(outer_v6: bool, mtu: u32, outer: &[u8], quoted: usize) -> Vec<u8> {
    let error = if outer_v6 { (2, 0) } else { (3, 4) };
    icmp(&Ip::new(router(outer_v6), director(outer_v6)), error, mtu, &outer[..quoted.min(outer.len())])
}

/// The MTU of a path is told at once and rightly, to the one whose packet was too big; then it holds for ten minutes, and for what is
/// sent from the start.
#[test]
fn a_smaller_mtu_on_the_way_is_told_and_remembered() {
    for (v6, outer_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        for (how, shim) in HOWS {
            let said = format!("{how}, v6 {v6} in v6 {outer_v6}");
            let mut rig = rig(v6, outer_v6, how);
            let outer = to_server(rig.client(&segment(v6, ACK, 1360))).remove(0);
            let overhead = shim + if outer_v6 { 40 } else { 20 };
            let left = 1400 - overhead;
            let event = rig.server(9, &too_big(outer_v6, 1400, &outer, 120));
            let (kind, mtu, quoted) = to_client(event, v6);
            assert_eq!((kind, mtu), (if v6 { (2, 0) } else { (3, 4) }, left), "{said}");
            // The client's packet as the tunnel carried it.
            assert!(outer.windows(quoted.len()).any(|w| w == quoted), "{said}");
            assert_eq!(quoted.len(), 120 - overhead as usize);
            assert_eq!((rig.counted(Count::IcmpRelated), rig.counted(Count::IcmpSent)), (1, 1));

            rig.advance(590);
            let (kind, mtu, _) = to_client(rig.client(&segment(v6, ACK, 1360)), v6);
            assert_eq!((kind, mtu), (if v6 { (2, 0) } else { (3, 4) }, left), "{said}");
            assert_eq!(rig.dropped(Reason::TooBig), 1);
            let header = if v6 { 60 } else { 40 };
            let fits = to_server(rig.client(&segment(v6, ACK, left as usize - header)));
            assert_eq!((fits.len(), fits[0].len()), (1, 1400), "{said}");
            rig.advance(11);
            assert_eq!(to_server(rig.client(&segment(v6, ACK, 1360)))[0].len(), outer.len(), "{said}");
        }
    }
}

/// IPv6 is never told of less than 1,280 bytes: what does not fit goes in fragments of the outer packet.
#[test]
fn ipv6_keeps_its_1280_bytes() {
    for (outer_v6, how) in [(false, "-i"), (true, "-i"), (true, "-i --tun-type gre")] {
        let mut rig = rig(true, outer_v6, how);
        let outer = to_server(rig.client(&segment(true, ACK, 1300))).remove(0);
        let event = rig.server(9, &too_big(outer_v6, 1280, &outer, 200));
        assert_eq!(to_client(event, true).1, 1280);
        assert_eq!(to_server(rig.client(&segment(true, ACK, 1220))).len(), 2, "{how} v6 {outer_v6}");
    }
    // As IPVS does it, nothing is learned about a path over IPv6.
    let mut rig = rig(true, true, "-i");
    rig.director.sysctls.set("tunnel_ipv6_min_mtu", "0").unwrap();
    let outer = to_server(rig.client(&segment(true, ACK, 1300))).remove(0);
    assert_eq!(rig.server(9, &too_big(true, 1330, &outer, 200)), Event::Pass);
    assert_eq!(to_server(rig.client(&segment(true, ACK, 1300)))[0].len(), outer.len());
}

/// Packets without DF are cut for the path from then on.
#[test]
fn packets_without_df_are_cut_for_the_path() {
    let mut rig = rig(false, false, "-i");
    let outer = to_server(rig.client(&segment(false, ACK, 1360))).remove(0);
    to_client(rig.server(9, &too_big(false, 1400, &outer, 120)), false);
    let mut ip = Ip::new(client(false), vip(false));
    ip.df = false;
    let pieces = to_server(rig.client(&tcp(&ip, 40000, 80, ACK, &[7; 1400])));
    assert!(pieces.len() == 2 && pieces.iter().all(|p| p.len() <= 1400));
}

/// What routers say besides is told as IPVS tells it: for IPv4 in IPv4.
#[test]
fn other_errors_about_outer_packets() {
    for (v6, outer_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        for (how, _) in HOWS {
            let mut rig = rig(v6, outer_v6, how);
            let outer = to_server(rig.client(&segment(v6, ACK, 100))).remove(0);
            let errors = if outer_v6 { [(1, 0), (1, 4), (3, 0)] } else { [(3, 1), (3, 3), (11, 0)] };
            for error in errors {
                let ip = Ip::new(router(outer_v6), director(outer_v6));
                let event = rig.server(9, &icmp(&ip, error, 0, &outer));
                if v6 || outer_v6 {
                    assert_eq!(event, Event::Pass);
                } else {
                    let (kind, rest, quoted) = to_client(event, false);
                    assert_eq!((kind, rest), (error, 0));
                    assert!(outer.ends_with(&quoted));
                }
            }
        }
    }
}

/// Who quotes a packet that the director did not send, or an MTU that cannot be, is not believed.
#[test]
fn what_cannot_be_is_not_believed() {
    for (outer_v6, (how, shim)) in [false, true].into_iter().flat_map(|v6| HOWS.map(|h| (v6, h))) {
        let mut rig = rig(false, outer_v6, how);
        let outer = to_server(rig.client(&segment(false, ACK, 1360))).remove(0);
        let header = if outer_v6 { 40 } else { 20 };
        let inner = header + shim as usize;
        let with = |at: usize, v: u8| {
            let mut o = outer.clone();
            o[at] = v;
            o
        };
        let addresses = if outer_v6 { 8 } else { 12 };
        let len = if outer_v6 { 16 } else { 4 };
        let forged = [
            ("another source", with(addresses + len - 1, 7)),
            ("another server", with(addresses + 2 * len - 1, 7)),
            ("another protocol", with(if outer_v6 { 6 } else { 9 }, if shim > 0 { 4 } else { 47 })),
            ("an unknown client port", with(inner + 21, 7)),
            ("an unknown service", with(inner + 23, 7)),
            ("a broken inner header", with(inner, 0x35)),
        ];
        for (what, forged) in forged {
            assert_eq!(rig.server(9, &too_big(outer_v6, 1400, &forged, 500)), Event::Pass, "{what} {how}");
        }
        assert_eq!(
            rig.server(9, &too_big(outer_v6, 1500, &outer, 500)),
            Event::Pass,
            "no less than the link's"
        );
        for quoted in [header, header + 8, inner + 19, inner + 27] {
            assert_eq!(rig.server(9, &too_big(outer_v6, 1400, &outer, quoted)), Event::Pass, "{quoted}");
        }
        assert_eq!(rig.counted(Count::IcmpRelated), 0);
        assert_eq!(to_server(rig.client(&segment(false, ACK, 1360)))[0].len(), outer.len());
        // The least that is believed. Routers older than RFC 1191 say 0.
        let least = if outer_v6 { 1280 } else { 552 };
        for mtu in [0, 100] {
            let event = rig.server(9, &too_big(outer_v6, mtu, &outer, inner + 28));
            assert_eq!(to_client(event, false).1, least - inner as u32, "{how}");
        }
    }
}

/// Somebody among the clients who knows addresses and ports can't make the director send small packets: routers toward the server speak
/// from that side. A server to which several ways lead may be spoken of by each of them.
#[test]
fn an_mtu_is_believed_from_the_servers_side_only() {
    for (v6, outer_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = rig(v6, outer_v6, "-i");
        let outer = to_server(rig.client(&segment(v6, ACK, 1360))).remove(0);
        let error = too_big(outer_v6, 1400, &outer, 120);
        let from_clients = ethernet(C0_MAC, GW_MAC, &error);
        assert_eq!(rig.frame(C0, &from_clients), Event::Pass, "v6 {v6} in v6 {outer_v6}");
        assert_eq!(to_server(rig.client(&segment(v6, ACK, 1360)))[0].len(), outer.len());

        // Two ways to the server, one of them by the clients' side.
        let (server, gateways, prefix) = if outer_v6 {
            ("2001:db8:1::1", ["2001:db8:1::1", "2001:db8::253"], 128)
        } else {
            ("10.1.0.1", ["10.1.0.1", "10.0.0.253"], 32)
        };
        let via = |(ifindex, gateway): (u32, &str)| Via { ifindex, gateway: Some(ip(gateway)), weight: 1 };
        let route = Route {
            table: 254,
            family: ip(server).into(),
            dst: (ip(server), prefix),
            metric: 0,
            tos: 0,
            kind: RouteKind::Unicast,
            prefsrc: Some(director(outer_v6)),
            mtu: 0,
            via: [(3, gateways[0]), (2, gateways[1])].map(via).into(),
        };
        rig.apply(Change::RouteNew { route, place: Place::Last });
        to_client(rig.frame(C0, &from_clients), v6);
    }
}

/// An MTU that the quoted packet would have fitted is somebody's invention.
#[test]
fn what_was_not_too_big_teaches_nothing() {
    for outer_v6 in [false, true] {
        let mut rig = rig(false, outer_v6, "-i");
        let overhead = if outer_v6 { 40 } else { 20 };
        for (length, mtu) in [(1300, 1300), (1300, 1400), (500, 0), (100, 60)] {
            let outer = to_server(rig.client(&segment(false, ACK, length - overhead - 40))).remove(0);
            assert_eq!(outer.len(), length);
            assert_eq!(rig.server(9, &too_big(outer_v6, mtu, &outer, 120)), Event::Pass, "{length} {mtu}");
        }
        let outer = to_server(rig.client(&segment(false, ACK, 1301 - overhead - 40))).remove(0);
        to_client(rig.server(9, &too_big(outer_v6, 1300, &outer, 120)), false);
    }
}

fn notices(rig: &Rig) -> Vec<String> {
    rig.director.notices().into_iter().map(|n| n.text).filter(|t| t.starts_with("learned MTU")).collect()
}

/// What was learned is told to the operator, and goes with the server.
#[test]
fn a_learned_mtu_is_listed_and_goes_with_its_server() {
    let mut rig = rig(false, false, "-i");
    assert!(notices(&rig).is_empty());
    let outer = to_server(rig.client(&segment(false, ACK, 1360))).remove(0);
    to_client(rig.server(9, &too_big(false, 1400, &outer, 120)), false);
    rig.advance(100);
    let told = notices(&rig);
    assert!(
        told.len() == 1
            && told[0].starts_with("learned MTU 1400 toward tunnel server 10.1.0.1:80 of TCP 10.0.0.1:80, ")
            && (told[0].ends_with(" in 500 s") || told[0].ends_with(" in 501 s")),
        "{told:?}"
    );
    // The connection keeps the server's line in use meanwhile.
    rig.cli("-d -t 10.0.0.1:80 -r 10.1.0.1:80");
    assert!(notices(&rig).is_empty());
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i");
    assert!(notices(&rig).is_empty());
    assert_eq!(to_server(rig.client(&segment(false, ACK, 1360)))[0].len(), outer.len());
}

/// However many servers have one, the list is short.
#[test]
fn of_many_learned_mtus_some_are_listed() {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    for k in 1..=20 {
        rig.cli(&format!("-a -t 10.0.0.1:80 -r 10.1.0.{k}:80 -i"));
    }
    for step in 1..=20u16 {
        let port = 40000 + step;
        let ip = Ip::new(client(false), vip(false));
        to_server(rig.client(&tcp(&ip, port, 80, SYN, &[])));
        let outer = to_server(rig.client(&tcp(&ip, port, 80, ACK, &[7; 1360]))).remove(0);
        to_client(rig.server(9, &too_big(false, 1400 - u32::from(step), &outer, 120)), false);
        rig.advance(1);
    }
    let told = notices(&rig);
    assert_eq!((told.len(), told[16].as_str()), (17, "learned MTU of 4 more tunnel servers"));
    assert!(told[0].starts_with("learned MTU 1380 "), "{}", told[0]);
}
