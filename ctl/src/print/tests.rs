//! Printers against ipvsadm's output: lines as it prints them for these values.

use std::net::IpAddr;
use std::num::NonZeroU32;

use ipvs_netlink::{
    Af, ConnEntry, Daemon, DaemonState, Dest, DestEntry, FwdMethod, Info, Netmask, SVC_F_ONEPACKET,
    SVC_F_PERSISTENT, SVC_F_SCHED1, SVC_F_SCHED2, Service, ServiceEntry, ServiceKey, Stats, Timeouts, Tunnel,
};

use super::*;
use crate::names::{NoNames, Services};

/// Names of one host and the usual ports.
struct LongNames;

impl Names for LongNames {
    fn addr(&self, _: &str, _: Option<Af>) -> Option<IpAddr> {
        None
    }
    fn port(&self, _: &str, _: u8) -> Option<u16> {
        None
    }
    fn name_of_addr(&self, addr: IpAddr) -> Option<String> {
        Some(format!("averyveryveryverylong{}name.example.com", if addr.is_ipv4() { "host" } else { "six" }))
    }
    fn name_of_port(&self, port: u16, protocol: u8) -> Option<String> {
        Services::parse("http 80/tcp").name(port, protocol).map(str::to_owned)
    }
}

fn text(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn addr_key(protocol: u8, addr: &str, port: u16) -> ServiceKey {
    ServiceKey::Addr { protocol, addr: addr.parse().unwrap(), port }
}

fn service(key: ServiceKey, scheduler: &str) -> ServiceEntry {
    let netmask = match key.af() {
        Af::V4 => Netmask::V4([255; 4].into()),
        Af::V6 => Netmask::V6(128),
    };
    let service = Service {
        key,
        scheduler: scheduler.to_owned(),
        flags: 2,
        flags_mask: !0,
        timeout: 0,
        netmask,
        pe_name: None,
    };
    ServiceEntry { service, stats: Stats::default() }
}

fn dest(addr: &str, port: u16, method: FwdMethod, weight: i32) -> DestEntry {
    let addr = addr.parse().unwrap();
    let dest = Dest { addr, port, method, weight, upper: 100, lower: 50, tunnel: Tunnel::default() };
    DestEntry { dest, active: 5, inactive: 7, persistent: 3, stats: Stats::default() }
}

fn format(view: View) -> Format {
    Format { view, numeric: true, exact: false, sort: true }
}

fn service_line(entry: &ServiceEntry, view: View) -> String {
    text(|w| print_service_into(w, entry, format(view), &NoNames))
}

fn dest_line(entry: &DestEntry, view: View) -> String {
    text(|w| print_dest_into(w, &addr_key(TCP, "10.0.0.1", 80), entry, format(view), &NoNames))
}

#[test]
fn services_plain() {
    let line = |s: &ServiceEntry| service_line(s, View::Plain);
    assert_eq!(line(&service(addr_key(TCP, "10.0.0.1", 80), "wrr")), "TCP  10.0.0.1:80 wrr\n");
    assert_eq!(line(&service(addr_key(SCTP, "2001:db8::1", 2905), "rr")), "SCTP [2001:db8::1]:2905 rr\n");
    let mut s = service(addr_key(UDP, "10.0.0.2", 53), "sh");
    s.service.flags |= SVC_F_PERSISTENT | SVC_F_ONEPACKET | SVC_F_SCHED1 | SVC_F_SCHED2;
    s.service.timeout = 300;
    s.service.netmask = Netmask::V4([255, 255, 255, 0].into());
    let expected = "UDP  10.0.0.2:53 sh (sh-fallback,sh-port) persistent 300 mask 255.255.255.0 ops\n";
    assert_eq!(line(&s), expected);
    assert_eq!(service_line(&s, View::Thresholds), expected);
    s.service.pe_name = Some("sip".to_owned());
    assert!(line(&s).ends_with("mask 255.255.255.0 pe sip ops\n"));
    s.service.flags &= !SVC_F_PERSISTENT;
    assert!(line(&s).ends_with("sh (sh-fallback,sh-port) ops\n"));
    let mark = |mark, af| ServiceKey::Fwmark { mark: NonZeroU32::new(mark).unwrap(), af };
    let mut s = service(mark(7, Af::V4), "mh");
    s.service.flags |= SVC_F_SCHED1;
    assert_eq!(line(&s), "FWM  7 mh (mh-fallback)\n");
    assert_eq!(line(&service(mark(8, Af::V6), "lc")), "FWM  8 IPv6 lc\n");
    assert_eq!(line(&service(mark(u32::MAX, Af::V4), "lc")), "FWM  -1 lc\n");
}

#[test]
fn servers() {
    let tunnel = |kind, flags| {
        let mut d = dest("10.1.0.1", 80, FwdMethod::Tunnel, 1);
        d.dest.tunnel = Tunnel { kind, port: 6080, flags };
        d
    };
    let masq = dest("192.168.1.20", 8080, FwdMethod::Masq, 1);
    for (entry, view, line) in [
        (&masq, View::Plain, "  -> 192.168.1.20:8080            Masq    1      5          7         \n"),
        (
            &dest("192.168.2.1", 53, FwdMethod::Droute, i32::MAX),
            View::Plain,
            "  -> 192.168.2.1:53               Route   2147483647 5          7         \n",
        ),
        (
            &dest("2001:db8:1::1", 80, FwdMethod::Local, 1),
            View::Plain,
            "  -> [2001:db8:1::1]:80           Local   1      5          7         \n",
        ),
        (
            &masq,
            View::Thresholds,
            "  -> 192.168.1.20:8080            100        50         5          7         \n",
        ),
        (
            &masq,
            View::PersistentConn,
            "  -> 192.168.1.20:8080            1         3           5          7         \n",
        ),
        (
            &masq,
            View::TunInfo,
            "  -> 192.168.1.20:8080            Masq    n/a           1      5          7         \n",
        ),
        (
            &tunnel(0, 0),
            View::TunInfo,
            "  -> 10.1.0.1:80                  Tunnel  ipip          1      5          7         \n",
        ),
        (
            &tunnel(1, 0),
            View::TunInfo,
            "  -> 10.1.0.1:80                  Tunnel  gue:6080:-c   1      5          7         \n",
        ),
        (
            &tunnel(1, 2),
            View::TunInfo,
            "  -> 10.1.0.1:80                  Tunnel  gue:6080:r+c  1      5          7         \n",
        ),
        (
            &tunnel(2, 1),
            View::TunInfo,
            "  -> 10.1.0.1:80                  Tunnel  gre:+c        1      5          7         \n",
        ),
    ] {
        assert_eq!(dest_line(entry, view), line, "{view:?}");
    }
}

#[test]
fn numbers() {
    let mut s = service(addr_key(TCP, "10.0.0.1", 80), "rr");
    s.stats = Stats {
        conns: 123_456_789,
        in_pkts: 99_999_999,
        out_pkts: 100_000_000,
        in_bytes: 1_234_567_890_123,
        out_bytes: 999_999_999_999_999,
        cps: 10,
        in_pps: 200,
        out_pps: 0,
        in_bps: 99_999_999_999,
        out_bps: 4_000_000_000,
    };
    assert_eq!(
        service_line(&s, View::Stats),
        "TCP  10.0.0.1:80                   123456K 99999999  100000K    1234G     999T\n"
    );
    assert_eq!(
        service_line(&s, View::Rate),
        "TCP  10.0.0.1:80                        10      200        0   99999M    4000M\n"
    );
    let exact = Format { exact: true, ..format(View::Stats) };
    assert_eq!(
        text(|w| print_service_into(w, &s, exact, &NoNames)),
        "TCP  10.0.0.1:80                  123456789 99999999 100000000 1234567890123 999999999999999\n"
    );
    let mut d = dest("192.168.1.20", 8080, FwdMethod::Masq, 1);
    d.stats.conns = 1_234_567;
    assert_eq!(
        dest_line(&d, View::Stats),
        "  -> 192.168.1.20:8080             1234567        0        0        0        0\n"
    );
    d.stats.conns = u64::MAX;
    assert!(dest_line(&d, View::Stats).starts_with("  -> 192.168.1.20:8080            18446744T"));
}

#[test]
fn names_are_cut_for_ipv4_only() {
    let named = |view| Format { numeric: false, ..format(view) };
    let v4 = service(addr_key(TCP, "10.0.0.1", 80), "rr");
    let v6 = service(addr_key(TCP, "2001:db8::1", 80), "rr");
    assert_eq!(
        text(|w| print_service_into(w, &v4, named(View::Plain), &LongNames)),
        "TCP  averyveryveryverylonghostnam rr\n"
    );
    assert_eq!(
        text(|w| print_service_into(w, &v6, named(View::Plain), &LongNames)),
        "TCP  [averyveryveryverylongsixname.example.com]:http rr\n"
    );
    assert_eq!(
        text(|w| print_dest_into(
            w,
            &v4.service.key,
            &dest("10.1.0.1", 80, FwdMethod::Masq, 1),
            named(View::Plain),
            &LongNames
        )),
        "  -> averyveryveryverylonghostnam Masq    1      5          7         \n"
    );
    assert_eq!(
        text(|w| print_service_rule_into(w, &v4.service, false, &LongNames)),
        "-A -t averyveryveryverylonghostname.example.com:http -s rr\n"
    );
}

#[test]
fn rules_are_those_of_the_codec() {
    let mut s = service(addr_key(UDP, "10.0.0.1", 53), "sh");
    s.service.flags |= SVC_F_PERSISTENT | SVC_F_ONEPACKET | SVC_F_SCHED2;
    s.service.timeout = 77;
    s.service.netmask = Netmask::V4([255, 255, 0, 0].into());
    s.service.pe_name = Some("sip".to_owned());
    let printed = text(|w| print_service_rule_into(w, &s.service, true, &NoNames));
    assert_eq!(printed, "-A -u 10.0.0.1:53 -s sh -p 77 -M 255.255.0.0 --pe sip -o -b sh-port\n");
    assert_eq!(printed.trim_end(), ipvs_netlink::save_line(&s.service));
    let mark = ServiceKey::Fwmark { mark: NonZeroU32::MIN, af: Af::V6 };
    for (method, kind, flags) in [
        (FwdMethod::Masq, 0, 0),
        (FwdMethod::Droute, 0, 0),
        (FwdMethod::Tunnel, 0, 0),
        (FwdMethod::Tunnel, 1, 2),
        (FwdMethod::Tunnel, 2, 1),
    ] {
        let mut d = dest("2001:db8::7", 80, method, 9).dest;
        d.tunnel = Tunnel { kind, port: 6080, flags };
        let printed = text(|w| print_dest_rule_into(w, &mark, &d, true, &NoNames));
        assert_eq!(printed.trim_end(), ipvs_netlink::save_line_dest(&mark, &d));
        assert!(printed.starts_with("-a -f 1 -6 -r [2001:db8::7]:80 -"), "{printed}");
    }
}

#[test]
fn conns() {
    assert_eq!(
        text(|w| print_conn_titles_into(w, false)),
        "IPVS connection entries\npro expire state       source             virtual            destination\n"
    );
    assert!(
        text(|w| print_conn_titles_into(w, true)).ends_with("destination        pe name          pe_data\n")
    );
    let conn = |protocol, ends: [(&str, u16); 3], state: &str, expires| {
        let [client, virt, dest] = ends.map(|(addr, port)| (addr.parse().unwrap(), port));
        let c = ConnEntry { protocol, client, virt, dest, state: state.to_owned(), expires, flags: 0 };
        text(|w| print_conn_into(w, &c, true, &NoNames))
    };
    let ends = [("192.168.1.5", 54321), ("10.0.0.1", 80), ("192.168.1.20", 8080)];
    assert_eq!(
        conn(TCP, ends, "ESTABLISHED", 899),
        "TCP 14:59  ESTABLISHED 192.168.1.5:54321  10.0.0.1:80        192.168.1.20:8080\n"
    );
    let ends = [("192.168.1.5", 0), ("0.0.0.7", 0), ("192.168.2.1", 0)];
    assert_eq!(
        conn(0, ends, "NONE", 45),
        "IP  00:45  NONE        192.168.1.5:0      0.0.0.7:0          192.168.2.1:0\n"
    );
    let ends = [("2001:db8::5", 54321), ("2001:db8::80", 80), ("2001:db8::a0a0", 8080)];
    assert_eq!(
        conn(TCP, ends, "SYN_RECV", 44_640 * 60),
        "TCP 44640:00 SYN_RECV    [2001:db8::5]:54321 [2001:db8::80]:80  [2001:db8::a0a0]:8080\n"
    );
}

#[test]
fn small_lines() {
    let info = Info { version: 0x01_02_01, conn_tab_size: 4096 };
    assert_eq!(text(|w| print_version_into(w, &info)), "IP Virtual Server version 1.2.1 (size=4096)\n");
    let t = Timeouts { tcp: 900, tcp_fin: 120, udp: 300 };
    assert_eq!(text(|w| print_timeouts_into(w, &t)), "Timeout (tcp tcpfin udp): 900 120 300\n");
    let mut d = Daemon {
        state: DaemonState::Backup,
        interface: "eth1".to_owned(),
        sync_id: 0,
        maxlen: 0,
        group: None,
        port: 0,
        ttl: 0,
    };
    assert_eq!(text(|w| print_daemon_into(w, &d)), "backup sync daemon (mcast=eth1, syncid=0)\n");
    d = Daemon { maxlen: 1452, group: "ff05::99".parse().ok(), port: 8848, ttl: 1, ..d };
    assert_eq!(
        text(|w| print_daemon_into(w, &d)),
        "backup sync daemon (mcast=eth1, syncid=0, maxlen=1452, group=ff05::99, port=8848, ttl=1)\n"
    );
}
