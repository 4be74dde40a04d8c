//! What an operator sees: what the log tells of drops and of virtual addresses, and `lvsctl status`.
use std::net::SocketAddr;

use crate::client::{connect, curl};
use crate::director::{Lvsd, datapath_arguments};
use crate::lab::{Family, Lab, Mode};
use crate::probe;
use crate::wait::{secs, until};

/// A line of the daemon's log with all these words.
fn logged(lvsd: &Lvsd, words: &[&str]) -> Option<String> {
    lvsd.log().lines().find(|l| words.iter().all(|w| l.contains(w))).map(str::to_owned)
}

#[track_caller]
fn until_logged(lvsd: &Lvsd, words: &[&str]) -> String {
    until(&format!("a line of the log with {words:?}"), secs(15), || logged(lvsd, words))
}

/// The servers are reached by an interface that is no port: the log names it. Forwarding in the kernel is off, which is no
/// concern of ours.
#[test]
fn an_interface_that_is_no_port_is_named() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.director.sysctl("net.ipv4.ip_forward", "0");
    lab.start_lvsd_on(&["o0"]);
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    assert!(logged(lab.d(), &["WARN"]).is_none(), "{}", lab.d().log());
    assert!(connect(&lab.client, vip, secs(2)).is_err(), "a connection without a way to the server");
    let line = until_logged(lab.d(), &["WARN", "drop_not_our_port: "]);
    assert!(
        line.contains("that is not a port: add --interface (the route leads out of i0: --interface i0)"),
        "{line}"
    );
    // More of the same is not told of again within a minute.
    for _ in 0..3 {
        assert!(connect(&lab.client, vip, secs(1)).is_err());
    }
    assert_eq!(lab.d().log().matches("drop_not_our_port").count(), 1, "{}", lab.d().log());
    assert!(lab.d().counter("drop_not_our_port") >= 4);

    // As told.
    lab.lvsd.take().expect("the daemon was started").terminate();
    lab.start_lvsd();
    curl(&lab.client, vip, 3);
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(Mode::Nat);
    lab.start_lvsd();
    let vip = lab.vip_port(Family::V4, 80);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    lab.d().ctl_ok(&format!("-a -t {vip} -r 10.0.0.99:80 -m"));
    assert!(connect(&lab.client, vip, secs(5)).is_err());
    let line = until_logged(lab.d(), &["WARN", "drop_next_hop_unresolved: "]);
    assert!(line.contains("(the next hop 10.0.0.99 on i0 does not answer)"), "{line}");
}

/// A service on an address that nobody has given to the director: one line, and a notice as long as it is so.
#[test]
fn a_virtual_address_of_nobody() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(Mode::Nat);
    lab.start_lvsd();
    for family in Family::BOTH {
        lab.d().ctl_ok(&format!("-A -t {} -s rr", lab.vip_port(family, 80)));
    }
    let notices = |lab: &Lab| {
        let text = lab.d().ctl_ok("status");
        text.lines().filter(|l| l.starts_with("notice: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(notices(&lab), [""; 0]);
    for (addr, length, service) in
        [("192.0.2.77", 32, "192.0.2.77:80"), ("2001:db8:0:1::77", 128, "[2001:db8:0:1::77]:80")]
    {
        let service: SocketAddr = service.parse().expect("an address");
        lab.d().ctl_ok(&format!("-A -t {service} -s rr"));
        let told = notices(&lab);
        let begins = format!("notice: virtual address {addr} (1 service): no interface of this host has it");
        assert!(told.len() == 1 && told[0].starts_with(&begins), "{told:?}");
        assert!(told[0].ends_with(&format!("'ip address add {addr}/{length} dev IF' adds it")), "{told:?}");
        let words = ["WARN", "virtual address", addr];
        until_logged(lab.d(), &words);
        let nodad = if service.is_ipv6() { "nodad" } else { "" };
        lab.director.ip(&format!("addr add {addr}/{length} dev o0 {nodad}"));
        until("the notice is gone", secs(10), || notices(&lab).is_empty().then_some(()));
        until_logged(lab.d(), &["INFO", "virtual address", addr, "on this host now"]);
        let warned = lab.d().log();
        let warned = warned.lines().filter(|l| words.iter().all(|w| l.contains(w))).count();
        assert_eq!(warned, 1, "{}", lab.d().log());
    }
}

/// The cells of the row of `lvsctl status` for a queue.
fn row(text: &str, port: &str, queue: &str) -> Vec<String> {
    let row = text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let mut row = row.filter(|r| r.len() > 2 && r[0] == port && r[1] == queue);
    row.next().unwrap_or_else(|| panic!("no row of {port} {queue} in\n{text}"))
}

#[test]
fn status_shows_the_daemon_and_its_queues() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    curl(&lab.client, vip, 20);
    let text = lab.d().ctl_ok("status");
    let lines: Vec<&str> = text.lines().collect();
    let first = format!("lvsd {}, process {}, up 00:0", env!("CARGO_PKG_VERSION"), lab.d().pid());
    assert!(lines[0].starts_with(&first), "{text}");
    let kind = &datapath_arguments()[1];
    assert!(lines[1].starts_with(&format!("datapath {kind} (as --datapath says), ")), "{text}");
    let (rings, modes): (_, &[&str]) = match kind.as_str() {
        "afxdp" | "xdp" => ("afxdp", &["native", "generic"]),
        _ => ("afpacket", &["tcx", "clsact"]),
    };
    let used = lab.d().connections().len();
    assert!(lines[2].starts_with(&format!("connections: IPv4 {used} of 20000, IPv6 0 of ")), "{text}");

    // Every frame of the client's is counted, in one row or another, as in the counters below.
    for port in ["o0", "i0"] {
        let workers = text.lines().filter(|l| l.starts_with(&format!("{port} "))).count();
        let mut received = 0;
        for queue in 0..workers {
            let row = row(&text, port, &queue.to_string());
            assert_eq!(row[2], rings, "{text}");
            assert!(modes.iter().any(|m| row[3].starts_with(m)), "{text}");
            received += row[4].parse::<u64>().expect("a number");
            let rx = row.iter().position(|cell| cell == "rx").expect("a receive ring");
            let (used, size) = row[rx + 1].trim_end_matches(',').split_once('/').expect("a level");
            let (used, size): (u64, u64) = (used.parse().expect("a number"), size.parse().expect("a number"));
            assert!(used <= size && size >= 64, "{text}");
        }
        let counted: u64 =
            (0..workers).map(|q| lab.d().counter(&format!("port_{port}_queue_{q}_rx_frames"))).sum();
        assert!(received >= 20 && received <= counted, "{received} of {counted}\n{text}");
    }
    // Rates are there while there is traffic, and gone some seconds later.
    let rate = |lab: &Lab| -> u64 {
        let text = lab.d().ctl_ok("status");
        let queues = text.lines().filter(|l| l.starts_with("o0 ")).count();
        (0..queues).map(|q| row(&text, "o0", &q.to_string())[6].parse::<u64>().expect("a rate")).sum()
    };
    until("a rate", secs(15), || {
        curl(&lab.client, vip, 10);
        (rate(&lab) > 0).then_some(())
    });
    until("no rate", secs(15), || (rate(&lab) == 0).then_some(()));

    let all = lab.d().ctl_ok("status");
    let nonzero = lab.d().ctl_ok("status --nonzero");
    assert!(all.lines().any(|l| l == "drop_table_full 0"), "{all}");
    assert!(!nonzero.lines().any(|l| l.ends_with(" 0") && l.split(' ').count() == 2), "{nonzero}");
    assert!(nonzero.lines().any(|l| l.starts_with("forward_nat_in ")), "{nonzero}");

    // An interface that is gone is said to be.
    lab.client.ip("link del c0");
    until("the row says so", secs(10), || {
        let text = lab.d().ctl_ok("status");
        (row(&text, "o0", "0")[3] == "absent").then_some(())
    });
    let schedulers = lab.d().ctl_ok("schedulers");
    assert!(schedulers.lines().any(|l| l.starts_with("maglev ")), "{schedulers}");
    assert!(lab.lvsd.as_mut().expect("the daemon was started").runs());
}
