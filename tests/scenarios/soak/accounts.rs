//! What a director has and has lost, before and after.
use std::time::Duration;

use crate::director::Lvsd;
use crate::wait::{secs, until, within};

/// What the daemon's memory may have grown by between the middle of a run and its end, kB. In ten minutes that is some 200 bytes for
/// each connection after the middle, or one or two for each frame with AF_XDP; 0.2 to 1.7 MB is usual, as pages of the table are used
/// for the first time. Lost slots are found by filling the table.
const MARGIN: u64 = 4096;

/// The drops that such a run may have, and why.
const EXPLAINED: [(&str, &str); 3] = [
    (
        "drop_no_destination",
        "all servers of a service that changes were away, at weight 0 or at their threshold",
    ),
    ("drop_destination_gone", "a connection of a service that changes, whose server was taken away"),
    ("drop_too_big", "a client's full segment into a tunnel: it is told the MTU, and sends again"),
];

/// Counters of ports that are losses.
const LOSSES: [&str; 13] = [
    "rx_ring_full",
    "rx_super_packet",
    "rx_no_buffer",
    "rx_invalid",
    "rx_truncated",
    "tx_full",
    "tx_too_big",
    "tx_down",
    "tx_refused",
    "tx_invalid",
    "tx_no_port",
    "pass_dropped",
    "no_verdict",
];

/// What the daemon holds at a moment.
#[derive(Clone, Debug)]
pub(super) struct Account {
    /// Of each queue with AF_XDP: fill level and chunks in use.
    frames: Vec<String>,
    /// Memory in use, kB.
    rss: u64,
    descriptors: usize,
}

impl Account {
    pub(super) fn take(lvsd: &Lvsd) -> Account {
        // levels are noted once a second
        let frames = until("the rings' levels", secs(10), || {
            let rows = frames(lvsd);
            rows.iter().all(|r| !r.contains("fill 0/")).then_some(rows)
        });
        Account { frames, rss: rss(lvsd.pid()), descriptors: descriptors(lvsd.pid()) }
    }
}

/// `o0 0 fill 2048/2048 umem 4096/8192` of each row of `status`.
fn frames(lvsd: &Lvsd) -> Vec<String> {
    let text = lvsd.ctl_ok("status");
    let rows = text.lines().filter_map(|l| {
        let (row, rings) = l.split_once(" fill ")?;
        let row: Vec<&str> = row.split_whitespace().take(2).collect();
        let umem = rings.split(", ").find(|r| r.starts_with("umem "))?;
        Some(format!("{} fill {} {umem}", row.join(" "), rings.split(',').next()?))
    });
    rows.collect()
}

fn rss(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// Open descriptors; of a few looks the least, because the last `lvsctl`'s connection may not be closed yet.
fn descriptors(pid: u32) -> usize {
    let mut least = usize::MAX;
    within(Duration::from_millis(300), || {
        let now = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon runs").count();
        least = least.min(now);
        None::<()>
    });
    least
}

/// Entries in the table.
pub(super) fn entries(lvsd: &Lvsd) -> u64 {
    lvsd.counter("connections_ipv4") + lvsd.counter("connections_ipv6")
}

/// Compares the end with the beginning, memory with the middle.
pub(super) fn check(lvsd: &Lvsd, before: &Account, warm: &Account) {
    let held = || (frames(lvsd), descriptors(lvsd.pid()));
    let wanted = (before.frames.clone(), before.descriptors);
    let so = within(secs(15), || (held() == wanted).then_some(()));
    assert!(so.is_some(), "frames and descriptors {:?}, at the start {wanted:?}", held());
    let now = rss(lvsd.pid());
    println!("RSS {} kB before, {} warm, {now} after; {wanted:?}", before.rss, warm.rss);
    assert!(now <= warm.rss + MARGIN, "RSS {now} kB, after the warm-up {} kB", warm.rss);
    let listing = lvsd.ctl_ok("-L -n");
    let rows = crate::director::parse_servers(&listing).unwrap_or_else(|| panic!("no listing:\n{listing}"));
    assert!(rows.iter().all(|r| (r.active, r.inactive) == (0, 0)), "servers have connections:\n{listing}");
    check_drops(lvsd);
    check_log(&lvsd.log());
}

/// No loss without an explanation; and every frame that came to the core went on, back to the kernel, or was dropped for a
/// reason: nothing is lost in silence.
fn check_drops(lvsd: &Lvsd) {
    let status = lvsd.ctl_ok("status --nonzero");
    println!("{status}");
    let counters = status.lines().filter_map(|l| {
        let (name, value) = l.split_once(' ')?;
        Some((name, value.parse::<u64>().ok()?))
    });
    let (mut received, mut ended, mut unexplained) = (0, 0, Vec::new());
    for (name, value) in counters {
        let drop = name.starts_with("drop_");
        if name == "received" {
            received = value;
        } else if drop || name == "passed" || name.starts_with("forward_") {
            ended += value;
        }
        if drop || LOSSES.iter().any(|l| name.ends_with(&format!("_{l}"))) {
            match EXPLAINED.iter().find(|(explained, _)| *explained == name) {
                Some((_, why)) => println!("{name} {value}: {why}"),
                None => unexplained.push(format!("{name} {value}")),
            }
        }
    }
    assert!(unexplained.is_empty(), "unexplained: {unexplained:?}");
    assert_eq!(received, ended, "frames that came in, and what became of them");
}

fn check_log(log: &str) {
    let bad: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("WARN") || l.contains("ERROR"))
        .filter(|l| !EXPLAINED.iter().any(|(name, _)| l.contains(&format!("{name}: "))))
        .collect();
    assert!(bad.is_empty(), "lines of the log that nothing explains:\n{}", bad.join("\n"));
}
