use std::net::IpAddr;

use modes::Family;
use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REPLACE, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use proptest::prelude::*;

use super::parse::{event, odd_rule};
use super::wire::{TABLES, dump, encode, solicit, split};
use crate::route::{Event, IfAddr, Link, LinkKind, NeighState, Place, Route, RouteKind, Solicit, Via};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn le16(v: u16) -> Vec<u8> {
    v.to_ne_bytes().to_vec()
}

fn le32(v: u32) -> Vec<u8> {
    v.to_ne_bytes().to_vec()
}

/// An attribute, padded.
fn attr(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = [le16(value.len() as u16 + 4), le16(kind), value.to_vec()].concat();
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// A message as the kernel sends it.
fn message(kind: u16, flags: u16, body: &[Vec<u8>]) -> Vec<u8> {
    let body = body.concat();
    [le32(body.len() as u32 + 16), le16(kind), le16(flags), le32(0), le32(0), body].concat()
}

/// What becomes of a message.
fn read(bytes: &[u8]) -> Option<Event> {
    let piece = split(bytes).next()?.ok()?;
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(piece.bytes).ok()?.payload {
        NetlinkPayload::InnerMessage(m) => event(m, piece.flags),
        _ => None,
    }
}

const NEWLINK: u16 = 16;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const NEWROUTE: u16 = 24;
const DELROUTE: u16 = 25;
const NEWNEIGH: u16 = 28;
const DELNEIGH: u16 = 29;
const NEWRULE: u16 = 32;
const V4: u8 = 2;
const V6: u8 = 10;

fn ifinfo(index: u32, flags: u32) -> Vec<u8> {
    [vec![0, 0], le16(1), le32(index), le32(flags), le32(0)].concat()
}

#[test]
fn links() {
    let up_running = 0x1_0043;
    let name = attr(3, b"eth0\0");
    let mac = attr(1, &[2, 0, 0, 0, 0, 1]);
    let mtu = attr(4, &le32(1500));
    let want = Link {
        ifindex: 7,
        name: "eth0".into(),
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        up: true,
        running: true,
        kind: LinkKind::Other,
        parent: None,
    };
    let plain = message(NEWLINK, 0, &[ifinfo(7, up_running), name.clone(), mac.clone(), mtu.clone()]);
    assert_eq!(read(&plain), Some(Event::LinkNew(want.clone())));
    // A macvlan, here and with its parent in another namespace.
    let info = attr(18, &attr(1, b"macvlan\0"));
    let parent = attr(5, &le32(3));
    let elsewhere = attr(37, &le32(0));
    let parts = [ifinfo(7, 0), name.clone(), mac, mtu, parent, info, elsewhere];
    let down = Link { up: false, running: false, kind: LinkKind::Macvlan, ..want };
    assert_eq!(
        read(&message(NEWLINK, 0, &parts[..6])),
        Some(Event::LinkNew(Link { parent: Some(3), ..down.clone() }))
    );
    assert_eq!(read(&message(NEWLINK, 0, &parts)), Some(Event::LinkNew(down.clone())));
    let mut parts = parts;
    parts[5] = attr(18, &attr(1, b"vlan\0"));
    let vlan = Link { kind: LinkKind::Vlan, parent: Some(3), ..down };
    assert_eq!(read(&message(NEWLINK, 0, &parts[..6])), Some(Event::LinkNew(vlan)));
    // The bridge's view of a port, and messages about other things.
    let mut bridge = ifinfo(7, up_running);
    bridge[0] = 7;
    assert_eq!(read(&message(NEWLINK, 0, &[bridge.clone(), name.clone()])), None);
    assert_eq!(read(&message(17, 0, &[bridge, name])), None);
    assert_eq!(read(&message(NEWLINK, 0, &[ifinfo(7, up_running)])), None);
    assert_eq!(read(&message(17, 0, &[ifinfo(7, 0)])), Some(Event::LinkGone { ifindex: 7 }));
}

#[test]
fn addresses() {
    let header = |family, prefix, flags, scope| [vec![family, prefix, flags, scope], le32(7)].concat();
    // Point to point: the local address counts, not the peer's.
    let ptp = message(
        NEWADDR,
        0,
        &[header(V4, 32, 0x81, 0), attr(1, &[10, 0, 0, 2]), attr(2, &[10, 0, 0, 1]), attr(8, &le32(0x81))],
    );
    let want =
        IfAddr { ifindex: 7, addr: ip("10.0.0.1"), prefix: 32, scope: 0, secondary: true, unusable: false };
    assert_eq!(read(&ptp), Some(Event::AddrNew(want)));
    let fe80 = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let v6 = [header(V6, 64, 0xc0, 253), attr(1, &fe80)];
    let want =
        IfAddr { ifindex: 7, addr: ip("fe80::1"), prefix: 64, scope: 253, secondary: false, unusable: true };
    assert_eq!(read(&message(NEWADDR, 0, &v6)), Some(Event::AddrNew(want)), "tentative");
    let gone = Event::AddrGone { ifindex: 7, addr: ip("fe80::1"), prefix: 64 };
    assert_eq!(read(&message(DELADDR, 0, &v6)), Some(gone));
    assert_eq!(read(&message(NEWADDR, 0, &[header(V4, 32, 0, 0)])), None, "no address");
}

fn rtmsg(family: u8, len: u8, kind: u8, flags: u32) -> Vec<u8> {
    [vec![family, len, 0, 0, 254, 3, 0, kind], le32(flags)].concat()
}

#[test]
fn routes() {
    let base = Route {
        table: 254,
        family: Family::V4,
        dst: (ip("198.51.100.0"), 24),
        metric: 0,
        tos: 0,
        kind: RouteKind::Unicast,
        prefsrc: None,
        mtu: 0,
        via: vec![Via { ifindex: 7, gateway: Some(ip("10.0.0.254")), weight: 1 }],
    };
    let dst = attr(1, &[198, 51, 100, 0]);
    let oif = attr(4, &le32(7));
    let gw = attr(5, &[10, 0, 0, 254]);
    let parts = vec![rtmsg(V4, 24, 1, 0), dst.clone(), oif.clone(), gw.clone()];
    for (flags, place) in [
        (NLM_F_MULTIPART, Place::Last),
        (NLM_F_CREATE | NLM_F_REPLACE, Place::Replace),
        (NLM_F_CREATE | NLM_F_APPEND, Place::Last),
        (NLM_F_CREATE, Place::First),
        (0, Place::Last),
    ] {
        let want = Event::RouteNew { route: base.clone(), place };
        assert_eq!(read(&message(NEWROUTE, flags, &parts)), Some(want), "{flags:#x}");
    }
    assert_eq!(read(&message(DELROUTE, 0, &parts)), Some(Event::RouteGone(base.clone())));
    let gone = |parts: &[Vec<u8>]| match read(&message(DELROUTE, 0, parts)) {
        Some(Event::RouteGone(r)) => Some(r),
        None => None,
        other => panic!("{other:?}"),
    };
    // Table number beyond 255, metric, source and MTU.
    let more =
        [attr(15, &le32(1000)), attr(6, &le32(50)), attr(7, &[10, 0, 0, 1]), attr(8, &attr(2, &le32(1400)))];
    let want = Route { table: 1000, metric: 50, prefsrc: Some(ip("10.0.0.1")), mtu: 1400, ..base.clone() };
    assert_eq!(gone(&[parts.clone(), more.to_vec()].concat()), Some(want));
    // The default route names no destination.
    let default = Route { dst: (ip("0.0.0.0"), 0), ..base.clone() };
    assert_eq!(gone(&[rtmsg(V4, 0, 1, 0), oif.clone(), gw.clone()]), Some(default));
    // Several ways, one of them over IPv6.
    let fe80 = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let via6 = attr(18, &[le16(10), fe80.to_vec()].concat());
    let way = |hops: u8, index: u32, a: &[u8]| {
        [le16(8 + a.len() as u16), vec![0, hops], le32(index), a.to_vec()].concat()
    };
    let ways = attr(9, &[way(0, 7, &gw), way(3, 8, &via6)].concat());
    let want = vec![
        Via { ifindex: 7, gateway: Some(ip("10.0.0.254")), weight: 1 },
        Via { ifindex: 8, gateway: Some(ip("fe80::1")), weight: 4 },
    ];
    assert_eq!(gone(&[rtmsg(V4, 24, 1, 0), dst.clone(), ways]).unwrap().via, want);
    // What the director cannot follow leads nowhere rather than astray.
    let encap = [attr(21, &le16(1)), attr(22, &[])];
    let r = gone(&[parts.clone(), encap.to_vec()].concat()).unwrap();
    assert_eq!(r.via[0].ifindex, 0);
    let nexthop_object = gone(&[rtmsg(V4, 24, 1, 0), dst.clone(), attr(30, &le32(5))]).unwrap();
    assert_eq!(nexthop_object.via, [Via { ifindex: 0, gateway: None, weight: 1 }]);
    for (t, kind) in [
        (2, RouteKind::Local),
        (3, RouteKind::NotUnicast),
        (6, RouteKind::Blackhole),
        (7, RouteKind::Unreachable),
        (8, RouteKind::Prohibit),
        (9, RouteKind::Throw),
    ] {
        assert_eq!(gone(&[rtmsg(V4, 24, t, 0), dst.clone()]).unwrap().kind, kind);
    }
    // Cached clones, multicast routing, routes for certain sources only.
    assert_eq!(gone(&[rtmsg(V4, 24, 1, 0x200), dst.clone(), oif.clone()]), None);
    assert_eq!(gone(&[rtmsg(128, 24, 5, 0), dst, oif.clone()]), None);
    let mut from = rtmsg(V6, 0, 1, 0);
    from[2] = 64;
    assert_eq!(gone(&[from, oif]), None);
}

#[test]
fn neighbours() {
    let nd = |family, state: u16, flags: u8| {
        [vec![family, 0, 0, 0], le32(7), le16(state), vec![flags, 1]].concat()
    };
    let dst = attr(1, &[10, 0, 0, 11]);
    let mac = attr(2, &[2, 0, 0, 0, 0, 0x11]);
    let new = |state, mac: bool| Event::NeighNew {
        ifindex: 7,
        addr: ip("10.0.0.11"),
        mac: mac.then_some([2, 0, 0, 0, 0, 0x11]),
        state,
    };
    for (nud, state) in [
        (0, NeighState::None),
        (1, NeighState::Incomplete),
        (2, NeighState::Reachable),
        (4, NeighState::Stale),
        (8, NeighState::Delay),
        (0x10, NeighState::Probe),
        (0x20, NeighState::Failed),
        (0x40, NeighState::Permanent),
        (0x80, NeighState::Permanent),
        (0x300, NeighState::None),
    ] {
        let m = message(NEWNEIGH, 0, &[nd(V4, nud, 0), dst.clone(), mac.clone()]);
        assert_eq!(read(&m), Some(new(state, true)), "{nud:#x}");
    }
    assert_eq!(
        read(&message(NEWNEIGH, 0, &[nd(V4, 1, 0), dst.clone()])),
        Some(new(NeighState::Incomplete, false))
    );
    let gone = Event::NeighGone { ifindex: 7, addr: ip("10.0.0.11") };
    assert_eq!(read(&message(DELNEIGH, 0, &[nd(V4, 2, 0), dst.clone(), mac.clone()])), Some(gone));
    // A bridge's forwarding entry, a proxy entry, an address that is none.
    assert_eq!(read(&message(NEWNEIGH, 0, &[nd(7, 2, 0), mac.clone()])), None);
    assert_eq!(read(&message(NEWNEIGH, 0, &[nd(V4, 2, 8), dst])), None);
    assert_eq!(read(&message(NEWNEIGH, 0, &[nd(V4, 2, 0), attr(1, &[10, 0]), mac])), None);
}

#[test]
fn rules_other_than_the_kernels_own_are_told_apart() {
    let rule = |table: u8, action: u8, attrs: &[Vec<u8>]| {
        let header = [vec![V4, 0, 0, 0, table, 0, 0, action], le32(0)].concat();
        let bytes = message(NEWRULE, 0, &[vec![header], attrs.to_vec()].concat());
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).unwrap().payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRule(m)) => odd_rule(&m),
            other => panic!("{other:?}"),
        }
    };
    let prio = |p: u32| attr(6, &le32(p));
    let suppress = || attr(14, &le32(u32::MAX));
    assert_eq!(rule(255, 1, &[attr(15, &le32(255)), suppress()]), None);
    assert_eq!(rule(254, 1, &[attr(15, &le32(254)), suppress(), prio(32766)]), None);
    assert_eq!(rule(253, 1, &[attr(15, &le32(253)), suppress(), prio(32767)]), None);
    assert_eq!(rule(100, 1, &[attr(15, &le32(100)), prio(32765)]), Some(32765));
    assert_eq!(
        rule(254, 1, &[attr(15, &le32(254)), prio(32766), attr(10, &le32(5))]),
        Some(32766),
        "by mark"
    );
}

#[test]
fn solicitation_is_what_ip_neigh_use_sends() {
    let bytes = encode(0, NLM_F_CREATE, solicit(&Solicit { ifindex: 7, addr: ip("10.0.0.11") }));
    // ndmsg: family, 3 x 0, index, state NUD_NONE, flags NTF_USE, type 0; then NDA_DST alone.
    let want = message(
        NEWNEIGH,
        0x401,
        &[[vec![V4, 0, 0, 0], le32(7), le16(0), vec![1, 0]].concat(), attr(1, &[10, 0, 0, 11])],
    );
    assert_eq!(bytes, want);
    let v6 = encode(0, NLM_F_CREATE, solicit(&Solicit { ifindex: 7, addr: ip("fd00::11") }));
    assert_eq!((v6.len(), v6[16]), (48, V6));
    // Several in one datagram are found again.
    let both = [bytes.clone(), v6].concat();
    assert_eq!(split(&both).filter_map(Result::ok).map(|p| p.bytes.len()).collect::<Vec<_>>(), [36, 48]);
    for table in TABLES {
        let bytes = encode(5, NLM_F_DUMP, dump(table));
        let piece = split(&bytes).next().unwrap().unwrap();
        assert_eq!((piece.sequence, piece.flags, piece.bytes.len()), (5, 0x301, bytes.len()), "{table:?}");
    }
}

#[test]
fn datagram_cut_short_is_noticed() {
    let m = message(17, 0, &[ifinfo(7, 0)]);
    let cut = [m.clone(), m[..20].to_vec()].concat();
    let got: Vec<Result<usize, usize>> = split(&cut).map(|p| p.map(|p| p.bytes.len())).collect();
    assert_eq!(got, [Ok(32), Err(20)]);
    assert_eq!(split(&[]).count(), 0);
    assert_eq!(split(&[0; 16]).filter(Result::is_err).count(), 1, "a length of 0");
}

proptest! {
    #[test]
    fn odd_messages_do_no_harm(
        kind in 16u16..40,
        flags: u16,
        mut body in prop::collection::vec(any::<u8>(), 0..120),
        family in prop::sample::select(vec![0u8, V4, V6, 7, 128]),
    ) {
        if let Some(first) = body.first_mut() {
            *first = family;
        }
        read(&message(kind, flags, &[body]));
    }

    #[test]
    fn damaged_messages_do_no_harm(at in 0usize..200, to: u8, cut in 0usize..200) {
        let way = [le16(16), vec![0, 1], le32(7), attr(5, &[10, 0, 0, 1])].concat();
        let route = message(NEWROUTE, 0, &[rtmsg(V4, 24, 1, 0), attr(1, &[198, 51, 100, 0]), attr(9, &way),
            attr(8, &attr(2, &le32(1400)))]);
        let info = attr(18, &attr(1, b"macvlan\0"));
        let link = message(NEWLINK, 0, &[ifinfo(7, 1), attr(3, b"eth0\0"), attr(4, &le32(1500)), info]);
        for mut m in [route, link] {
            if let Some(b) = m.get_mut(at) {
                *b = to;
            }
            m.truncate(cut.max(1));
            for piece in split(&m).flatten() {
                let _ = NetlinkMessage::<RouteNetlinkMessage>::deserialize(piece.bytes)
                    .map(|m| if let NetlinkPayload::InnerMessage(m) = m.payload { event(m, piece.flags); });
            }
        }
    }
}
