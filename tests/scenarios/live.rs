//! Interfaces that change under a running daemon: traffic goes on soon after, and it never ends the daemon.
//!
//! The promise is two seconds. A test allows [`SLACK`] times as much, because it shares its processors with others; each waits
//! for a request that succeeds, not for a length of time.
use std::net::SocketAddr;

use crate::bulk::offer;
use crate::client::{connect, curl, curl_sha256};
use crate::director::taps_see_what_is_ours;
use crate::lab::{Family, Lab, Mode};
use crate::probe;
use crate::wait::{secs, until};

const SLACK: u64 = 4;

/// A NAT lab with nginx, the daemon and a service for each family.
fn lab(queues: u32) -> Lab {
    let mut lab = Lab::with_queues(Mode::Nat, queues);
    lab.start_nginx();
    lab.start_lvsd();
    services(&lab);
    lab
}

fn services(lab: &Lab) {
    for family in Family::BOTH {
        lab.service("-t", lab.vip_port(family, 80), "rr", [1, 1, 1], 80);
        curl(&lab.client, lab.vip_port(family, 80), 3);
    }
}

/// Requests succeed within the promised time, and then every one does.
#[track_caller]
fn serves_again(lab: &mut Lab, family: Family, what: &str) {
    let vip = lab.vip_port(family, 80);
    until(&format!("{what}: traffic again"), secs(2 * SLACK), || {
        connect(&lab.client, vip, std::time::Duration::from_millis(200)).ok()
    });
    curl(&lab.client, vip, 6);
    runs(lab);
}

#[track_caller]
fn runs(lab: &mut Lab) {
    let lvsd = lab.lvsd.as_mut().expect("the daemon was started");
    assert!(lvsd.runs(), "it has ended:\n{}", lvsd.log());
}

#[test]
fn an_interface_goes_down_and_up() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(1);
    for dev in ["o0", "i0"] {
        for _ in 0..3 {
            lab.director.ip(&format!("link set {dev} down"));
            assert!(connect(&lab.client, lab.vip_port(Family::V4, 80), secs(1)).is_err(), "{dev} is down");
            lab.director.ip(&format!("link set {dev} up"));
            // The kernel forgets IPv6 addresses of an interface that goes down, and keeps IPv4's.
            serves_again(&mut lab, Family::V4, &format!("{dev} down and up"));
        }
    }
}

#[test]
fn an_interface_is_deleted_and_made_again() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(1);
    for _ in 0..3 {
        lab.replace_outer_cable();
        for family in Family::BOTH {
            serves_again(&mut lab, family, "a new o0");
        }
    }
    // Gone for longer: the daemon waits.
    lab.client.ip("link del c0");
    until("the port is seen to be gone", secs(5), || {
        (lab.d().counter("port_o0_attached") == 0).then_some(())
    });
    runs(&mut lab);
}

#[test]
fn an_interface_gets_another_mtu() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(1);
    let big = offer(&lab, 20_000_000);
    for mtu in [1400, 9000, 1500] {
        for (ns, devs) in [
            (&lab.lan, &["dir", "s1", "s2", "s3", "br0"][..]),
            (&lab.director, &["o0", "i0"]),
            (&lab.client, &["c0"]),
        ] {
            let lines: Vec<String> = devs.iter().map(|d| format!("link set {d} mtu {mtu}")).collect();
            ns.ip(&lines.join("\n"));
        }
        for s in &lab.servers {
            s.ns.ip(&format!("link set s0 mtu {mtu}"));
        }
        for family in Family::BOTH {
            serves_again(&mut lab, family, &format!("an MTU of {mtu}"));
            let sum = curl_sha256(&lab.client, lab.vip_port(family, 80), "/files/big");
            assert_eq!(sum, big.sha256, "with an MTU of {mtu}");
        }
    }
}

#[test]
fn the_number_of_queues_changes() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(4);
    let set = |lab: &Lab, queues: u32| {
        for (ns, dev) in [(&lab.director, "o0"), (&lab.client, "c0")] {
            ns.sh(&format!("ethtool -L {dev} rx {queues} tx {queues}"));
        }
    };
    let numbers: &[u32] = if taps_see_what_is_ours() {
        &[1, 4, 2, 3]
    } else {
        // The kernel takes no queue away that an AF_XDP socket is on.
        let out = lab.director.try_sh("ethtool -L o0 rx 1 tx 1");
        assert!(!out.status.success(), "the kernel took a queue away");
        serves_again(&mut lab, Family::V4, "after a refusal");
        let socket = lab.d().socket().to_path_buf();
        lab.lvsd = None;
        // nor one of a veth with an XDP program, which goes on without the daemon
        crate::daemon::take_down(&socket);
        set(&lab, 1);
        lab.start_lvsd();
        // what it has found in its state file, or not yet
        lab.d().ctl_ok("-C");
        services(&lab);
        &[2, 4]
    };
    for queues in numbers {
        set(&lab, *queues);
        if !taps_see_what_is_ours() {
            // until its program is attached anew some frames go to the stack, which refuses them
            until("a socket on each queue", secs(10), || {
                let text = lab.d().ctl_ok("status");
                let rows = text.lines().filter(|l| l.starts_with("o0 ") && !l.contains(" absent "));
                (rows.count() == *queues as usize).then_some(())
            });
        }
        for family in Family::BOTH {
            serves_again(&mut lab, family, &format!("{queues} queues"));
        }
    }
}

/// The virtual address is that of a virtual router: on a macvlan above the port, whose MAC the client learns.
#[test]
fn a_virtual_routers_mac_comes_and_goes() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(1);
    let vip: SocketAddr = "192.0.2.20:80".parse().expect("an address");
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    for mac in ["00:00:5e:00:01:14", "00:00:5e:00:01:15"] {
        lab.director.ip(&format!(
            "link add vr0 link o0 address {mac} type macvlan mode private\nlink set vr0 up\naddr add 192.0.2.20/32 dev vr0"
        ));
        // The client has the address on its link, so that it asks for it itself.
        lab.client.ip("route replace 192.0.2.20/32 dev c0");
        until("traffic to the virtual router", secs(2 * SLACK), || {
            connect(&lab.client, vip, std::time::Duration::from_millis(200)).ok()
        });
        curl(&lab.client, vip, 6);
        let known = lab.client.sh("ip neigh show dev c0");
        assert!(known.contains(mac), "the client does not send to {mac}:\n{known}");
        serves_again(&mut lab, Family::V4, "beside the virtual router");
        lab.director.ip("link del vr0");
        lab.client.ip("neigh flush dev c0");
        serves_again(&mut lab, Family::V4, "without the virtual router");
    }
}

/// The port is a bridge, which is taken away and made again.
#[test]
fn a_port_that_is_a_bridge() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_queues(Mode::Nat, 1);
    lab.start_nginx();
    lab.director.ip("addr flush dev o0");
    let make = |lab: &Lab| {
        lab.director.ip(
            "link add b0 address 02:00:00:00:00:b0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set o0 master b0 up\nlink set b0 up",
        );
        lab.configure_outer_on("b0");
    };
    make(&lab);
    lab.start_lvsd_on(&["b0", "i0"]);
    services(&lab);
    for _ in 0..2 {
        lab.director.ip("link del b0");
        make(&lab);
        for family in Family::BOTH {
            serves_again(&mut lab, family, "a new bridge");
        }
    }
}

/// A port is put into a bridge, whose address clients then use: frames to the bridge's MAC are the bridge's, and what comes by it
/// goes on through the director when the bridge is the port; with the port below it the daemon goes on as well.
#[test]
fn a_port_becomes_part_of_a_bridge_and_leaves_it() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab(1);
    for _ in 0..2 {
        // With o0's own MAC, as a bridge has by default that of a port.
        lab.director.ip(
            "link add b0 address 02:00:00:00:00:d0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             addr flush dev o0\nlink set o0 master b0\nlink set b0 up",
        );
        runs(&mut lab);
        lab.director.ip("link set o0 nomaster\nlink del b0");
        lab.configure_outer_on("o0");
        for family in Family::BOTH {
            serves_again(&mut lab, family, "out of the bridge");
        }
    }
}
