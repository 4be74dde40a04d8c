//! The daemon's own life: what it leaves behind, what it starts with, and how it refuses to start.
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::client::curl;
use crate::director::{ctl, has_tier, lvsd_arguments, parse_servers};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::refusals::one_clear_line;
use crate::wait::{secs, until, within};
use crate::{probe, spread};

/// Everything of a namespace that a daemon might change and should put back.
pub(crate) fn snapshot(ns: &Netns, devs: &[&str]) -> String {
    let mut lines: Vec<String> = [
        "ip -d link",
        "ip addr",
        "ip route show table all",
        "ip -6 route show table all",
        "ip rule",
        "ip -6 rule",
    ]
    .map(String::from)
    .to_vec();
    lines.push("tc qdisc show".into());
    for d in devs {
        lines.push(format!("tc filter show dev {d} ingress"));
        lines.push(format!("tc filter show dev {d} egress"));
        lines.push(format!("ethtool -k {d}"));
    }
    lines.push("sysctl -e -a -r ^net[.]ipv[46][.](conf|neigh|ip_forward)".into());
    let text: Vec<String> =
        lines.iter().map(|l| format!("$ {l}\n{}", String::from_utf8_lossy(&ns.try_sh(l).stdout))).collect();
    text.join("\n")
}

/// Ids of the BPF programs and maps that a process holds.
fn bpf_of(pid: u32) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let mut ids = (BTreeSet::new(), BTreeSet::new());
    for fd in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process runs").flatten() {
        for line in std::fs::read_to_string(fd.path()).unwrap_or_default().lines() {
            if let Some((key, value)) = line.split_once(':')
                && let Ok(id) = value.trim().parse()
            {
                match key {
                    "prog_id" => ids.0.insert(id),
                    "map_id" => ids.1.insert(id),
                    _ => false,
                };
            }
        }
    }
    ids
}

/// Ids of the programs that `tc` lists.
fn tc_programs(text: &str) -> BTreeSet<u32> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).filter(|w| w[0] == "id").filter_map(|w| w[1].parse().ok()).collect()
}

fn loaded() -> (BTreeSet<u32>, BTreeSet<u32>) {
    let programs = aya::programs::loaded_programs().flatten().map(|p| p.id()).collect();
    let maps = aya::maps::loaded_maps().flatten().map(|m| m.id()).collect();
    (programs, maps)
}

/// With a tier, what is in the kernel goes on until it is removed.
pub(crate) fn take_down(socket: &Path) {
    if has_tier() {
        let said = String::from_utf8(ctl(socket, "datapath off").stdout).expect("text");
        assert!(said.starts_with("removed the data plane pinned at "), "{said}");
    }
}

fn leaves_everything_as_found(mode: Mode) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let devs = lab.director_devs();
    let before = snapshot(&lab.director, devs);
    lab.start_lvsd();
    for family in Family::BOTH {
        let vip = lab.vip_port(family, 80);
        lab.service("-t", vip, "rr", [1, 1, 1], 80);
        spread::sequence(&curl(&lab.client, vip, 6), &spread::RR).expect("rr's sequence");
    }
    // The classifier is there while the daemon runs, or this test would see nothing.
    let (mut programs, maps) = bpf_of(lab.d().pid());
    programs.extend(tc_programs(&snapshot(&lab.director, devs)));
    assert!(!programs.is_empty(), "the daemon's programs were not found");
    let (all, _) = loaded();
    assert!(programs.is_subset(&all), "the daemon's programs are among the loaded ones");

    let lvsd = lab.lvsd.take().expect("the daemon was started");
    let socket = lvsd.socket().to_path_buf();
    lvsd.terminate();
    take_down(&socket);
    assert_eq!(snapshot(&lab.director, devs), before, "SIGTERM left something changed");
    assert!(!socket.exists(), "the socket is left");
    let left = within(secs(5), || {
        let (p, m) = loaded();
        let gone = programs.is_disjoint(&p) && maps.is_disjoint(&m);
        gone.then_some(())
    });
    assert!(left.is_some(), "BPF programs {programs:?} or maps {maps:?} are left");

    // After a kill nothing can be cleaned; but the next start copes, and cleans in the end.
    lab.start_lvsd();
    lab.lvsd.take().expect("the daemon was started").kill();
    lab.start_lvsd();
    let vip = lab.vip_port(Family::V4, 80);
    if lab.d().ctl_ok("-S -n").is_empty() {
        lab.service("-t", vip, "rr", [1, 1, 1], 80);
    }
    assert_eq!(curl(&lab.client, vip, 3).len(), 3);
    lab.lvsd.take().expect("the daemon was started").terminate();
    take_down(&socket);
    assert_eq!(snapshot(&lab.director, devs), before, "a kill, a start and SIGTERM left something changed");
}

#[test]
fn sigterm_leaves_everything_as_found_nat() {
    leaves_everything_as_found(Mode::Nat);
}

#[test]
fn sigterm_leaves_everything_as_found_dr() {
    leaves_everything_as_found(Mode::Dr);
}

#[test]
fn services_survive_a_restart() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    for family in Family::BOTH {
        lab.service("-t", lab.vip_port(family, 80), "wrr", [4, 3, 2], 80);
        lab.service("-u", lab.vip_port(family, 53), "sh", [1, 0, 7], 53);
    }
    let vip = lab.vip_port(Family::V4, 80);
    lab.d().ctl_ok("--set 1000 100 10");
    let before = lab.d().ctl_ok("-S -n");
    assert_eq!(before.lines().count(), 4 * 4, "{before}");
    let servers = parse_servers(&lab.d().ctl_ok("-L -n")).expect("a listing").len();
    assert_eq!(servers, 12);

    let lvsd = lab.lvsd.take().expect("the daemon was started");
    let state = lvsd.state_file().to_path_buf();
    lvsd.terminate();
    let saved = std::fs::read_to_string(&state).expect("a state file");
    for line in before.lines() {
        assert!(
            saved.lines().any(|l| l.trim_end() == line.trim_end()),
            "not in the state file: {line}\n{saved}"
        );
    }

    lab.start_lvsd();
    assert_eq!(lab.d().ctl_ok("-S -n"), before, "what was restored");
    assert_eq!(lab.d().ctl_ok("-L --timeout").trim_end(), "Timeout (tcp tcpfin udp): 1000 100 10");
    assert_eq!(
        curl(&lab.client, vip, 9).iter().filter(|a| *a == "s1").count(),
        4,
        "wrr goes on with its weights"
    );

    // A kill loses at most what is younger than a second.
    let rip = SocketAddr::new(lab.rip(Family::V4, 1), 80);
    lab.d().ctl_ok(&format!("-e -t {vip} -r {rip} -m -w 9"));
    let after = lab.d().ctl_ok("-S -n");
    until("the change is on disk", secs(3), || {
        let saved = std::fs::read_to_string(&state).unwrap_or_default();
        saved.lines().any(|l| l.contains(&rip.to_string()) && l.trim_end().ends_with("-w 9")).then_some(())
    });
    lab.lvsd.take().expect("the daemon was started").kill();
    lab.start_lvsd();
    assert_eq!(lab.d().ctl_ok("-S -n"), after, "what was restored after a kill");
}

/// Runs a command that should end by itself, and soon.
pub(crate) fn ends(command: &mut Command, about: &str) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{about}: {e}"));
    let ended = within(secs(10), || child.try_wait().expect("a child to wait for"));
    if ended.is_none() {
        child.kill().expect("a child to kill");
    }
    let out = child.wait_with_output().expect("its output");
    assert!(ended.is_some(), "{about}: it runs on\n{}", String::from_utf8_lossy(&out.stderr));
    out
}

#[test]
fn an_unknown_interface() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    let before = snapshot(&lab.director, lab.director_devs());
    let (socket, state) = (lab.dir.join("lvsd.sock"), lab.dir.join("lvsd.state"));
    // The good one comes first, so that something would have to be put back.
    let mut command = lab.director.command(probe::lvsd());
    lvsd_arguments(&mut command, &socket, &state, &["o0", "no-such0"], 1000);
    let text = one_clear_line(&ends(&mut command, "an unknown interface"), "an unknown interface");
    assert!(text.contains("no-such0"), "the interface is not named: {text}");
    assert_eq!(snapshot(&lab.director, lab.director_devs()), before);
    assert!(!socket.exists() && !state.exists(), "files are left");
}

#[test]
fn no_privilege() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    let before = snapshot(&lab.director, lab.director_devs());
    // Where user nobody can read the program and write the files: only the privilege is missing.
    let dir = lab.dir.join("open");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("permissions");
    let program = dir.join("lvsd");
    std::fs::copy(probe::lvsd(), &program).expect("a copy of the daemon");
    let (socket, state) = (dir.join("lvsd.sock"), dir.join("lvsd.state"));
    let mut command = lab.director.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&program);
    lvsd_arguments(&mut command, &socket, &state, lab.director_devs(), 1000);
    let text = one_clear_line(&ends(&mut command, "no privilege"), "no privilege");
    let told = ["CAP_", "root", "ermi", "rivilege"].iter().any(|w| text.contains(w));
    assert!(told, "it does not speak of missing privilege: {text}");
    assert_eq!(snapshot(&lab.director, lab.director_devs()), before);
    assert!(!socket.exists() && !state.exists(), "files are left");
}

#[test]
fn a_second_daemon_on_the_socket() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    let before = snapshot(&lab.director, lab.director_devs());
    let socket = lab.d().socket().to_path_buf();
    let mut command = lab.director.command(probe::lvsd());
    lvsd_arguments(&mut command, &socket, &lab.dir.join("other.state"), lab.director_devs(), 1000);
    let text = one_clear_line(&ends(&mut command, "a second daemon"), "a second daemon");
    assert!(text.contains(&*socket.to_string_lossy()), "the socket is not named: {text}");
    assert_eq!(snapshot(&lab.director, lab.director_devs()), before);
    assert!(lab.lvsd.as_mut().expect("the daemon was started").runs());
    spread::sequence(&curl(&lab.client, vip, 30), &spread::RR).expect("the first daemon goes on");
}

#[test]
fn wrong_options() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    let before = snapshot(&lab.director, lab.director_devs());
    let (socket, state) = (lab.dir.join("lvsd.sock"), lab.dir.join("lvsd.state"));
    for (option, value) in [("--max-connections", "0"), ("--max-connections", "many"), ("--datapath", "wire")]
    {
        let mut command = lab.director.command(probe::lvsd());
        command.arg("--socket").arg(&socket).arg("--state-file").arg(&state).args(["--interface", "o0"]);
        if option != "--datapath" {
            command.args(["--datapath", "afpacket"]);
        }
        command.args([option, value]);
        let out = ends(&mut command, option);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && text.contains(option) && text.contains(value),
            "{option} {value}: {text}"
        );
    }
    // A state file with a line that makes no sense stops the start, rather than being overwritten.
    std::fs::write(&state, "-A -t 192.0.2.10:80 -s rr\n-a -t nonsense\n").expect("a state file");
    let mut command = lab.director.command(probe::lvsd());
    lvsd_arguments(&mut command, &socket, &state, lab.director_devs(), 1000);
    let text = one_clear_line(&ends(&mut command, "a bad state file"), "a bad state file");
    assert!(text.contains(&*state.to_string_lossy()), "the file is not named: {text}");
    assert_eq!(snapshot(&lab.director, lab.director_devs()), before);
}
