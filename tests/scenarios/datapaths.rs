//! Data paths that are chosen by name or by the daemon, whichever is under test otherwise: what is said of them, and what they do.

use crate::bulk::offer;
use crate::client::{curl, curl_sha256};
use crate::daemon::{ends, snapshot};
use crate::director::{Lvsd, lvsd_arguments_but_datapath};
use crate::lab::{Family, Lab, Mode};
use crate::probe;
use crate::refusals::one_clear_line;

/// The tier at XDP forwards in the driver only. Who asks for the driver gets it or one line that says what to use; who asks for the stack gets that
/// line at once. Nothing is changed.
#[test]
fn the_tier_at_xdp_is_refused_in_the_stack() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    lab.director.ip("link add link i0 name a0 type macvlan mode bridge\nlink set a0 up");
    let before = snapshot(&lab.director, &["o0", "a0"]);
    let (socket, state) = (lab.dir.join("lvsd.sock"), lab.dir.join("lvsd.state"));
    for (mode, says) in [
        ("native", "interface a0: attaching the XDP program: its driver has no native XDP"),
        ("generic", "--xdp-mode generic: --datapath xdp forwards where XDP runs in the driver only"),
    ] {
        let mut command = lab.director.command(probe::lvsd());
        lvsd_arguments_but_datapath(&mut command, &socket, &state, &["a0", "o0"], 1000);
        command.args(["--datapath", "xdp", "--xdp-mode", mode]);
        let text = one_clear_line(&ends(&mut command, mode), mode);
        assert!(text.contains(says) && text.contains("use --datapath tc"), "{mode}: {text}");
        assert_eq!(snapshot(&lab.director, &["o0", "a0"]), before, "{mode} left something changed");
        assert!(!socket.exists() && !state.exists(), "{mode}: files are left");
    }
}

/// One of the interfaces is a bridge, whose driver has no XDP: a warning says that the tier does not send by it, `lvsctl status` shows its mode, and
/// all is forwarded nevertheless.
#[test]
fn the_tier_at_xdp_beside_an_interface_without() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.lan.sh("ethtool -K dir gro on");
    lab.director
        .ip("addr flush dev o0\nlink add b0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set o0 master b0 up\nlink set b0 up");
    lab.configure_outer_on("b0");
    let big = offer(&lab, 5_000_000);
    let lvsd = Lvsd::start(&lab.director, &["b0", "i0"], &lab.dir, 20_000, &["--datapath", "xdp"]);
    let says = "interface b0: its driver has no native XDP (--datapath tc has the tier there); what leaves by it is forwarded by the rings, not by \
                the tier";
    let log = lvsd.log();
    let warned: Vec<&str> = log.lines().filter(|l| l.contains("WARN")).collect();
    assert!(warned.len() == 1 && warned[0].contains(says), "{log}");
    assert!(
        log.contains("ready: xdp over afxdp (b0 generic copy") && log.contains(", i0 native copy"),
        "{log}"
    );
    let status = lvsd.ctl_ok("status");
    let rows: Vec<Vec<&str>> = status.lines().map(|l| l.split_whitespace().collect()).collect();
    for (dev, mode) in [("b0", "generic"), ("i0", "native")] {
        assert!(
            rows.iter().any(|r| r.len() > 4 && r[0] == dev && r[2] == "afxdp" && r[3].starts_with(mode)),
            "{status}"
        );
    }
    lab.lvsd = Some(lvsd);
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    for _ in 0..3 {
        assert_eq!(curl_sha256(&lab.client, vip, "/files/big"), big.sha256);
    }
    assert_eq!(lab.d().counter("tier_out_pkts"), 0, "the tier sent by b0");
    assert_eq!(lab.d().counter("tier_failed"), 0);
}

/// Where frames that XDP redirects to an interface are lost (here the client has neither GRO nor an XDP program), a warning names it with the
/// remedy, and what leaves by it goes by the rings: nothing is lost. The other direction is the tier's all the same.
#[test]
fn an_interface_that_takes_no_redirected_frames() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.client.sh("ethtool -K c0 gro off");
    lab.lan.sh("ethtool -K dir gro on");
    let big = offer(&lab, 5_000_000);
    lab.start_lvsd_with(&["--datapath", "xdp"]);
    let log = lab.d().log();
    let warned: Vec<&str> = log.lines().filter(|l| l.contains("WARN")).collect();
    let says = "interface o0: frames that XDP redirects to it do not arrive (on a veth, the far end needs an XDP program or \
                'ethtool -K DEV gro on'); what leaves by it is forwarded by the rings, not by the tier";
    assert!(warned.len() == 1 && warned[0].contains(says), "{log}");
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    for _ in 0..3 {
        assert_eq!(curl_sha256(&lab.client, vip, "/files/big"), big.sha256);
    }
    assert_eq!(lab.d().counter("tier_out_pkts"), 0, "the tier sent by o0");
    assert!(lab.d().counter("tier_in_pkts") > 0, "the tier sent nothing by i0");
    assert_eq!(lab.d().counter("tier_failed"), 0);
    // as told, which is found when the daemon starts
    lab.lvsd.take().expect("the daemon was started").terminate();
    lab.client.sh("ethtool -K c0 gro on");
    lab.start_lvsd_with(&["--datapath", "xdp"]);
    let log = lab.d().log();
    let since = log.split_once("SIGTERM: stopping").expect("the first one's end").1;
    assert!(!since.contains("WARN"), "{log}");
    curl(&lab.client, vip, 3);
    assert_eq!(curl_sha256(&lab.client, vip, "/files/big"), big.sha256);
    assert!(lab.d().counter("tier_out_pkts") > 0, "the tier sent nothing by o0");
}

/// By itself the daemon takes the tier at tc where an interface has no zero-copy AF_XDP (a veth has XDP without, a bridge no XDP at all). The log
/// and `lvsctl status` say so and why, in the same words; and it forwards.
#[test]
fn auto_takes_the_tier_at_tc_and_says_why() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    let big = offer(&lab, 20_000_000);
    lab.director.ip("link add a0 type bridge\nlink set a0 up");
    for (devs, says) in [
        (
            &["o0", "i0"][..],
            "o0 (veth) has no zero-copy AF_XDP, and super-packets of bulk TCP stay whole at tc",
        ),
        (&["a0", "o0", "i0"], "a0 (bridge) has no XDP in its driver"),
    ] {
        let lvsd = Lvsd::start(&lab.director, devs, &lab.dir, 20_000, &["--datapath", "auto"]);
        let status = lvsd.ctl_ok("status");
        let line = status.lines().find_map(|l| l.strip_prefix("datapath tc (auto: "));
        let why = line.and_then(|l| l.split_once("), ")).unwrap_or_else(|| panic!("{status}")).0;
        // before 6.3
        let silent =
            format!("this kernel does not tell what {} can do for XDP", says.split_once(" has").unwrap().0);
        assert!(why == says || why == silent, "{status}");
        let ready = format!("ready: tc over afpacket (auto: {why}) on {}, ", devs.join(" "));
        assert!(lvsd.log().contains(&ready) && !lvsd.log().contains("WARN"), "{ready}: {}", lvsd.log());
        lab.lvsd = Some(lvsd);
        let vip = lab.vip_port(Family::V4, 80);
        lab.service("-t", vip, "rr", [1, 1, 1], 80);
        assert_eq!(curl_sha256(&lab.client, vip, "/files/big"), big.sha256);
        let by_tier = lab.d().counter("tier_out_bytes");
        assert!(by_tier >= big.bytes / 10 * 9, "the tier forwarded {by_tier} bytes of {}", big.bytes);
        lab.d().ctl_ok("-C");
        lab.lvsd.take().expect("the daemon was started").terminate();
    }
}
