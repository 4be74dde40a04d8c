//! Arbitrary messages.

use std::net::IpAddr;
use std::num::NonZeroU32;

use proptest::prelude::*;

use crate::*;

fn af() -> impl Strategy<Value = Af> {
    prop_oneof![Just(Af::V4), Just(Af::V6)]
}

pub(super) fn addr_of(af: Af) -> BoxedStrategy<IpAddr> {
    match af {
        Af::V4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        Af::V6 => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    }
}

pub(super) fn addr() -> impl Strategy<Value = IpAddr> {
    af().prop_flat_map(addr_of)
}

fn name(max: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec("[a-z0-9-]", 1..=max).prop_map(|v| v.concat())
}

pub(super) fn key() -> impl Strategy<Value = ServiceKey> {
    prop_oneof![
        (any::<u8>(), addr(), any::<u16>()).prop_map(|(protocol, addr, port)| ServiceKey::Addr {
            protocol,
            addr,
            port
        }),
        (any::<NonZeroU32>(), af()).prop_map(|(mark, af)| ServiceKey::Fwmark { mark, af }),
    ]
}

pub(super) fn service() -> impl Strategy<Value = Service> {
    (key(), name(15), any::<[u32; 4]>(), proptest::option::of(name(16))).prop_map(
        |(key, scheduler, [flags, flags_mask, timeout, mask], pe_name)| {
            let netmask = match key.af() {
                Af::V4 => Netmask::V4(mask.into()),
                Af::V6 => Netmask::V6(mask as u8),
            };
            Service { key, scheduler, flags, flags_mask, timeout, netmask, pe_name }
        },
    )
}

fn method() -> impl Strategy<Value = FwdMethod> {
    use FwdMethod::*;
    proptest::sample::select(vec![Masq, Local, Tunnel, Droute, Bypass])
}

pub(super) fn dest() -> impl Strategy<Value = Dest> {
    (addr(), any::<u16>(), method(), any::<i32>(), any::<[u32; 2]>(), any::<(u8, u16, u16)>()).prop_map(
        |(addr, port, method, weight, [upper, lower], (kind, tun_port, flags))| Dest {
            addr,
            port,
            method,
            weight,
            upper,
            lower,
            tunnel: Tunnel { kind, port: tun_port, flags },
        },
    )
}

pub(super) fn stats() -> impl Strategy<Value = Stats> {
    any::<[u64; 10]>().prop_map(
        |[conns, in_pkts, out_pkts, in_bytes, out_bytes, cps, in_pps, out_pps, in_bps, out_bps]| Stats {
            conns,
            in_pkts,
            out_pkts,
            in_bytes,
            out_bytes,
            cps,
            in_pps,
            out_pps,
            in_bps,
            out_bps,
        },
    )
}

fn state() -> impl Strategy<Value = DaemonState> {
    prop_oneof![Just(DaemonState::Master), Just(DaemonState::Backup)]
}

pub(super) fn daemon() -> impl Strategy<Value = Daemon> {
    let group = prop_oneof![
        Just(None),
        any::<[u8; 4]>().prop_map(|[a, b, c, d]| Some(IpAddr::from([0xe0 | a & 0xf, b, c, d]))),
        any::<[u8; 16]>().prop_map(|mut a| {
            a[0] = 0xff;
            Some(IpAddr::from(a))
        }),
    ];
    (state(), name(15), any::<u32>(), any::<(u16, u16, u8)>(), group).prop_map(
        |(state, interface, sync_id, (maxlen, port, ttl), group)| Daemon {
            state,
            interface,
            sync_id,
            maxlen,
            group,
            port,
            ttl,
        },
    )
}

fn timeouts() -> impl Strategy<Value = Timeouts> {
    any::<[u32; 3]>().prop_map(|[tcp, tcp_fin, udp]| Timeouts { tcp, tcp_fin, udp })
}

fn sysctl() -> impl Strategy<Value = Sysctl> {
    (name(63), name(255)).prop_map(|(name, value)| Sysctl { name, value })
}

pub(super) fn conn() -> impl Strategy<Value = ConnEntry> {
    let ends = af().prop_flat_map(|af| ((addr_of(af), any::<u16>()), (addr_of(af), any::<u16>())));
    (any::<u8>(), ends, (addr(), any::<u16>()), name(12), any::<[u32; 2]>()).prop_map(
        |(protocol, (client, virt), dest, state, [expires, flags])| ConnEntry {
            protocol,
            client,
            virt,
            dest,
            state,
            expires,
            flags,
        },
    )
}

fn overview() -> impl Strategy<Value = Overview> {
    (name(31), any::<[u32; 2]>(), any::<[u64; 5]>(), name(31), name(80)).prop_map(
        |(version, [pid, workers], [uptime, a, b, c, d], datapath, reason)| Overview {
            version,
            pid,
            uptime,
            datapath,
            reason,
            workers,
            conns_v4: (a, b),
            conns_v6: (c, d),
        },
    )
}

fn queue() -> impl Strategy<Value = QueueStatus> {
    let drop = (name(127), any::<u64>()).prop_map(|(name, value)| Counter { name, value });
    let ring = (name(31), any::<[u64; 2]>()).prop_map(|(name, [used, size])| RingLevel { name, used, size });
    let names = (name(15), name(31), name(127));
    let lists = (proptest::collection::vec(drop, 0..20), proptest::collection::vec(ring, 0..20));
    (names, any::<(u32, bool)>(), any::<[u64; 8]>(), lists).prop_map(
        |((interface, datapath, mode), (queue, attached), [a, b, c, d, e, f, g, h], (drops, rings))| {
            QueueStatus {
                interface,
                queue,
                attached,
                datapath,
                mode,
                traffic: Traffic {
                    rx_packets: a,
                    rx_bytes: b,
                    tx_packets: c,
                    tx_bytes: d,
                    rx_pps: e,
                    rx_bps: f,
                    tx_pps: g,
                    tx_bps: h,
                },
                drops,
                rings,
            }
        },
    )
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        name(15).prop_map(Request::GetFamily),
        service().prop_map(Request::NewService),
        service().prop_map(Request::SetService),
        key().prop_map(Request::DelService),
        key().prop_map(Request::GetService),
        (key(), dest()).prop_map(|(k, d)| Request::NewDest(k, d)),
        (key(), dest()).prop_map(|(k, d)| Request::SetDest(k, d)),
        (key(), addr(), any::<u16>()).prop_map(|(k, a, p)| Request::DelDest(k, a, p)),
        key().prop_map(Request::DumpDests),
        daemon().prop_map(Request::NewDaemon),
        state().prop_map(Request::DelDaemon),
        timeouts().prop_map(Request::SetConfig),
        proptest::option::of(key()).prop_map(Request::Zero),
        proptest::option::of(name(63)).prop_map(Request::GetSysctl),
        sysctl().prop_map(Request::SetSysctl),
        proptest::sample::select(vec![
            Request::DumpFamilies,
            Request::DumpServices,
            Request::DumpDaemons,
            Request::GetConfig,
            Request::GetInfo,
            Request::Flush,
            Request::DumpConns,
            Request::GetStatus,
            Request::GetOverview,
            Request::DumpQueues,
            Request::DumpSchedulers,
            Request::DumpNotices,
        ]),
    ]
}

pub(super) fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (name(15), any::<u16>(), any::<u32>()).prop_map(|(name, id, version)| Reply::Family(FamilyInfo {
            name,
            id,
            version
        })),
        (service(), stats()).prop_map(|(service, stats)| Reply::Service(ServiceEntry { service, stats })),
        (dest(), any::<[u32; 3]>(), stats()).prop_map(|(dest, [active, inactive, persistent], stats)| {
            Reply::Dest(DestEntry { dest, active, inactive, persistent, stats })
        }),
        daemon().prop_map(Reply::Daemon),
        timeouts().prop_map(Reply::Config),
        any::<[u32; 2]>().prop_map(|[version, conn_tab_size]| Reply::Info(Info { version, conn_tab_size })),
        conn().prop_map(Reply::Conn),
        (name(127), any::<u64>()).prop_map(|(name, value)| Reply::Counter(Counter { name, value })),
        sysctl().prop_map(Reply::Sysctl),
        overview().prop_map(Reply::Overview),
        queue().prop_map(Reply::Queue),
        (name(15), name(80))
            .prop_map(|(name, description)| Reply::Scheduler(SchedulerInfo { name, description })),
        name(80).prop_map(|text| Reply::Notice(Notice { text })),
    ]
}
