//! Set-up and back.

use super::Rig;
use crate::probe;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// For every mode: set up, in order, again without a change, and back to what was.
#[test]
fn there_and_back() {
    if !probe::ready() {
        return;
    }
    for words in ["--mode dr", "--mode dr --dev s0", "--mode ipip", "--mode gre --dev s0 --no-advmss"] {
        let rig = Rig::bare();
        let before = rig.state();
        let told = rig.setup(&format!("{words} --dry-run"));
        assert!(told.status.success(), "{told:?}");
        assert_eq!(rig.state(), before, "{words}: a dry run has changed something");
        assert!(!rig.dir.join("record").exists());

        let out = rig.setup(words);
        assert_eq!(
            (out.status.code(), text(&out.stdout), text(&out.stderr)),
            (Some(0), text(&told.stdout), String::new())
        );
        assert!(text(&out.stdout).lines().count() >= 4, "{out:?}");
        let checked = words.replace("--no-advmss", "");
        let found: Vec<String> = rig.check(&checked).into_iter().map(|f| f.id).collect();
        let expected: &[&str] = if words.contains("--no-advmss") { &["mtu"] } else { &[] };
        assert_eq!(found, expected, "{words}");

        let again = rig.setup(words);
        assert_eq!((again.status.code(), text(&again.stdout)), (Some(0), "nothing to do\n".into()));
        let back = rig.undo();
        assert!(
            back.status.success() && text(&back.stdout).lines().all(|l| l.starts_with("undone: ")),
            "{back:?}"
        );
        assert_eq!(rig.state(), before, "{words}: not as before");
        assert!(!rig.dir.join("record").exists());
        let nothing = format!("nothing to undo: there is no record {}\n", rig.dir.join("record").display());
        assert_eq!(text(&rig.undo().stdout), nothing);
    }
}

/// A record that is not there leaves no trace: no directory, no lock.
#[test]
fn undoing_nothing_makes_nothing() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::bare();
    let record = rig.dir.join("not/there/record");
    let out = rig.lvsctl(&format!("undo --record {}", record.display()));
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    assert!(!rig.dir.join("not").exists());
}

/// An interface that has another name since is the same interface, whoever has its old name.
#[test]
fn a_renamed_interface_is_put_back_too() {
    if !probe::ready() {
        return;
    }
    let rename = |rig: &Rig, from: &str, to: &str| {
        rig.server.ip(&format!("link set {from} down\nlink set {from} name {to}\nlink set {to} up"));
    };
    let arp = |rig: &Rig, dev: &str| {
        let of = |name: &str| rig.server.sh(&format!("sysctl -n net.ipv4.conf.{dev}.{name}"));
        (of("arp_ignore").trim().to_owned(), of("arp_announce").trim().to_owned())
    };
    let own = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    for words in ["--mode dr --dev s0", "--mode ipip --dev s0 --no-advmss"] {
        let rig = Rig::bare();
        let before = arp(&rig, "s0");
        assert!(rig.setup(words).status.success());
        assert_eq!(arp(&rig, "s0"), own("1", "2"), "{words}");
        rename(&rig, "s0", "wan0");
        rename(&rig, "t0", "s0");
        let other = arp(&rig, "s0");
        let back = rig.undo();
        assert_eq!((back.status.code(), text(&back.stderr)), (Some(0), String::new()), "{words}");
        assert!(text(&back.stdout).lines().all(|l| l.starts_with("undone: ")), "{back:?}");
        assert_eq!((arp(&rig, "wan0"), arp(&rig, "s0")), (before, other), "{words}");
        assert!(!rig.server.sh("ip link show dev wan0").contains("xdp"), "{words}");
        assert!(!rig.dir.join("record").exists());
    }
}

/// What is printed are the commands that do the same.
#[test]
fn the_printed_commands_do_the_same() {
    if !probe::ready() {
        return;
    }
    for words in ["--mode dr", "--mode ipip"] {
        let (by_us, by_hand) = (Rig::bare(), Rig::bare());
        let out = by_us.setup(words);
        assert!(out.status.success(), "{out:?}");
        by_hand.shell(&text(&out.stdout));
        assert_eq!(by_hand.check(words), []);
        let without_ids = |state: String| {
            let words = state.split_whitespace().filter(|w| !w.contains(':') || w.contains("2001:db8"));
            words
                .filter(|w| w.parse::<u32>().is_err() && !w.starts_with("lvst"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(without_ids(by_hand.state()), without_ids(by_us.state()));
    }
}

/// A step in the middle fails: what was done before is taken back, and one line says why.
#[test]
fn a_failure_takes_back_what_was_done() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::bare();
    rig.server.sysctl("net.ipv6.conf.lo.disable_ipv6", "1");
    let before = rig.state();
    for mode in ["dr", "ipip"] {
        let out = rig.setup(&format!("--mode {mode}"));
        let why = text(&out.stderr);
        assert!(
            !out.status.success() && why.contains("IPv6 is off on lo") && why.lines().count() == 1,
            "{why}"
        );
        assert_eq!(rig.state(), before);
        assert!(!rig.dir.join("record").exists());
    }
}

/// What somebody has changed since stays, and is named; the rest goes back.
#[test]
fn what_others_have_changed_stays() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("ipip");
    rig.shell(
        "sysctl -w net.ipv4.conf.all.arp_ignore=2; ip address del 192.0.2.10/32 dev lo; \
         ip route change default via 192.0.2.254 advmss 1234",
    );
    let out = rig.undo();
    let said = text(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    for part in [
        "left: net/ipv4/conf/all/arp_ignore: somebody has set it to 2",
        "192.0.2.10/32",
        "route change default via 192.0.2.254",
    ] {
        assert!(said.lines().any(|l| l.starts_with("left: ") && l.contains(part)), "{part}: {said}");
    }
    let state = rig.state();
    assert!(state.contains("arp_ignore = 2") && state.contains("advmss 1234"), "{state}");
    assert!(!state.contains("2001:db8:0:1::10/128") && !state.contains("lvsd_decap"), "{state}");
}

/// A second set-up adds to the record of the first, and one undo takes both back.
#[test]
fn records_add_up() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::bare();
    let before = rig.state();
    let record = rig.dir.join("record");
    for words in ["--vip 192.0.2.10 --mode dr", "--vip 192.0.2.10 192.0.2.20 --mode gre"] {
        let out = rig.lvsctl(&format!("setup {words} --record {}", record.display()));
        assert!(out.status.success(), "{out:?}");
    }
    let lines = std::fs::read_to_string(&record).expect("a record");
    assert_eq!(lines.lines().filter(|l| l.starts_with("address ")).count(), 2, "{lines}");
    assert!(rig.undo().status.success());
    assert_eq!(rig.state(), before);
}

/// Refusals: one clear line, and nothing changed.
#[test]
fn what_is_refused() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::bare();
    let refused = |words: &str, wanted: &str| {
        let before = rig.state();
        let out = rig.lvsctl(&format!("{words} --record {}", rig.dir.join("record").display()));
        let why = text(&out.stderr);
        assert!(!out.status.success() && why.contains(wanted) && why.lines().count() == 1, "{words}: {why}");
        assert_eq!(rig.state(), before, "{words}");
    };
    refused("setup --vip 127.0.0.1", "cannot be a virtual address");
    refused("setup --vip 224.0.0.1", "cannot be a virtual address");
    refused("setup --vip 192.0.2.10 --dev nosuch", "interface nosuch: there is none");
    rig.shell("ip address add 192.0.2.10/24 dev s0");
    refused("setup --vip 192.0.2.10", "ip address del 192.0.2.10/24 dev s0");
    rig.shell("ip address del 192.0.2.10/24 dev s0");
    std::fs::write(rig.dir.join("record"), "lvsd-realserver 1\nsysctl kernel/panic 0 1\n").expect("a record");
    refused("undo", "line 2");
    refused("setup --vip 192.0.2.10", "line 2");
    std::fs::write(rig.dir.join("record"), "something else\n").expect("a record");
    refused("undo", "line 1");
    std::fs::remove_file(rig.dir.join("record")).expect("the record");
    let object = crate::tunnel::other_program(&rig.dir);
    rig.server.ip(&format!("link set dev s0 xdpgeneric obj {} sec xdp", object.display()));
    refused("setup --vip 192.0.2.10 --mode ipip", "another XDP program");
    rig.server.ip("link set dev s0 xdpgeneric off\naddr flush dev s0");
    refused("setup --vip 192.0.2.10 --mode ipip --dev s0", "it has no address");
    // Neither a default route nor only one interface.
    rig.shell("ip address add 192.0.2.11/24 dev s0; ip route flush default; ip -6 route flush default");
    refused("setup --vip 192.0.2.10 --mode ipip", "name it by --dev");
}

/// With the kernel's own tunnel devices, where it has them; else one line says so, and nothing has changed.
#[test]
fn kernel_tunnels() {
    if !probe::ready() {
        return;
    }
    for mode in ["ipip", "gre"] {
        let rig = Rig::bare();
        // A strict filter drops what comes out of a tunnel, whatever the routes.
        for conf in ["default", "all"] {
            rig.server.sysctl(&format!("net.ipv4.conf.{conf}.rp_filter"), "1");
        }
        let before = rig.state();
        let out = rig.setup(&format!("--mode {mode} --kernel-tunnel"));
        if out.status.success() {
            assert_eq!(rig.check(&format!("--mode {mode}")), []);
            assert!(rig.undo().status.success());
        } else {
            let why = text(&out.stderr);
            assert!(why.contains("this kernel makes no") && why.lines().count() == 1, "{why}");
            assert!(!rig.dir.join("record").exists());
        }
        assert_eq!(rig.state(), before);
    }
}
