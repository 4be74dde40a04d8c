//! The data plane outlives the daemon: what is established goes on without it, and the next daemon takes all over.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::capture::{Capture, RST, TCP, decode};
use crate::client::{Echo, connect, udp, udp_ask};
use crate::director::{Lvsd, ctl, has_tier, has_xdp_tier};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::probe;
use crate::servers::{Service, TcpServer, UdpEcho};
use crate::wait::{secs, until, within};

const PORT: u16 = 7;
/// Time between two exchanges of a connection under kills.
const PACE: Duration = Duration::from_millis(5);

/// Echo servers of both kinds behind a daemon, with a service of TCP and one of UDP for each family.
struct Site {
    lab: Lab,
    _tcp: Vec<TcpServer>,
    _udp: Vec<UdpEcho>,
}

impl Site {
    fn new(mode: Mode) -> Option<Site> {
        Site::with(mode, &[])
    }

    /// With more arguments for the daemon.
    fn with(mode: Mode, more: &[&str]) -> Option<Site> {
        if !probe::ready() || !has_tier() {
            // there is nothing that could go on
            return None;
        }
        let mut lab = Lab::new(mode);
        let tcp = lab.servers.iter().map(|s| TcpServer::start(&s.ns, &s.name, PORT, Service::Echo)).collect();
        let udp =
            Family::BOTH.into_iter().flat_map(|family| crate::udp::echoes(&lab, family, PORT)).collect();
        Family::BOTH.into_iter().for_each(|family| lab.acquaint(family));
        lab.start_lvsd_with(more);
        for family in Family::BOTH {
            for proto in ["-t", "-u"] {
                lab.service(proto, lab.vip_port(family, PORT), "rr", [1, 1, 1], PORT);
            }
        }
        Some(Site { lab, _tcp: tcp, _udp: udp })
    }

    fn vip(&self, family: Family) -> SocketAddr {
        self.lab.vip_port(family, PORT)
    }

    /// The daemon, once its configuration is on disk.
    fn take(&mut self) -> Lvsd {
        until("the configuration is on disk", secs(5), || {
            let saved = std::fs::read_to_string(self.lab.d().state_file()).unwrap_or_default();
            let shown = self.lab.d().ctl_ok("-S -n");
            shown.lines().all(|l| saved.lines().any(|s| s.trim_end() == l.trim_end())).then_some(())
        });
        self.lab.lvsd.take().expect("the daemon was started")
    }

    /// Connections of both families, each established and forwarded by the tier in all directions that pass the director.
    fn open(&self, each: usize) -> Vec<Echo> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            for _ in 0..each {
                let mut c = Echo::open(&self.lab.client, self.vip(family)).expect("a connection");
                c.say(b"hello").expect("an echo");
                all.push(c);
            }
        }
        until("all connections are the tier's", secs(10), || {
            let before = ups(self.lab.d());
            all.iter_mut().for_each(|c| c.say(b"move").expect("an echo"));
            (ups(self.lab.d()) == before).then_some(())
        });
        all
    }

    /// The server of each connection, by the client's address.
    fn table(&self) -> BTreeMap<SocketAddr, SocketAddr> {
        self.lab.d().connections().into_iter().map(|c| (c.source, c.destination)).collect()
    }

    /// Resets that the client gets or sends, by its address.
    fn resets(&self) -> Capture<SocketAddr> {
        Capture::start(&self.lab.client, |f| {
            let p = decode(f).filter(|p| p.protocol == TCP && p.tcp_flags & RST != 0)?;
            let (from, to) = (SocketAddr::new(p.from, p.from_port), SocketAddr::new(p.to, p.to_port));
            Some(if p.from_port == PORT { to } else { from })
        })
    }
}

/// Packets that went up the rings.
fn ups(lvsd: &Lvsd) -> u64 {
    let text = lvsd.ctl_ok("status");
    let rx = |l: &&str| l.starts_with("port_") && l.contains("_rx_frames ");
    text.lines().filter(rx).filter_map(|l| l.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

#[track_caller]
fn all_go_on(all: &mut [Echo], what: &str) {
    for (n, c) in all.iter_mut().enumerate() {
        c.say(&vec![b'x'; 20_000]).unwrap_or_else(|e| panic!("{what}: connection {n} to {}: {e}", c.server));
    }
}

/// Without a daemon what is established flows on, also much of it; what would need thought gets no answer at all, and least of all a
/// wrong one. The next daemon knows all connections, and serves what waited.
fn goes_on(mode: Mode, end: impl FnOnce(Lvsd)) {
    let Some(mut site) = Site::new(mode) else { return };
    let mut all = site.open(4);
    let before = site.table();
    let vips = Family::BOTH.map(|family| site.vip(family));
    let dead: Vec<Echo> =
        vips.iter().map(|vip| Echo::open(&site.lab.client, *vip).expect("a connection")).collect();
    let resets = site.resets();
    end(site.take());

    all_go_on(&mut all, "without a daemon");
    for vip in vips {
        let refused =
            connect(&site.lab.client, vip, Duration::from_millis(300)).expect_err("nobody is there");
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut, "a SYN was answered: {refused}");
    }
    // a FIN is not answered either, and what follows it is delivered later
    drop(dead);
    resets.look(|seen| assert!(seen.is_empty(), "{} resets without a daemon", seen.len()));

    site.lab.start_lvsd();
    for (client, server) in &before {
        assert_eq!(site.table().get(client), Some(server), "the connection of {client} was not taken over");
    }
    all_go_on(&mut all, "with the next daemon");
    for family in Family::BOTH {
        let vip = site.vip(family);
        let selector = format!("-t {vip}");
        let servers = site.lab.d().servers(&selector);
        let active: u32 = servers.iter().map(|s| s.active).sum();
        assert!(active >= 4, "{selector}: {servers:?}");
        assert_eq!(Echo::open(&site.lab.client, vip).expect("a new connection").server.len(), 2);
    }
    // what was counted before is still counted
    let counted = site.lab.d().ctl_ok("-L -n --stats --exact");
    for family in Family::BOTH {
        let vip = site.vip(family).to_string();
        let row = counted.lines().find(|l| l.contains(&vip)).unwrap_or_else(|| panic!("{vip} in\n{counted}"));
        let conns: u64 = row.split_whitespace().nth(2).and_then(|n| n.parse().ok()).expect("a number");
        assert!(conns >= 6, "{row}");
    }
    until("the closed connections are seen to end", secs(20), || {
        let states: Vec<String> = site.lab.d().connections().into_iter().map(|c| c.state).collect();
        (states.iter().filter(|s| *s == "ESTABLISHED").count() == all.len()).then_some(())
    });
    // a server resets a FIN that came twice, which it does where the way of the first was slow; of an open connection there is nothing
    // to reset
    let open: Vec<SocketAddr> = all.iter().map(|c| c.socket().local_addr().expect("an address")).collect();
    resets.look(|seen| assert!(!seen.iter().any(|client| open.contains(client)), "{seen:?} were reset"));
    drop(all);
    until("a FIN has taken its connection back", secs(10), || {
        (site.lab.d().counter("tier_back") > 0).then_some(())
    });
}

#[test]
fn a_kill_ends_no_connection_nat() {
    goes_on(Mode::Nat, Lvsd::kill);
}

#[test]
fn a_kill_ends_no_connection_dr() {
    goes_on(Mode::Dr, Lvsd::kill);
}

#[test]
fn sigterm_ends_no_connection_nat() {
    goes_on(Mode::Nat, Lvsd::terminate);
}

#[test]
fn sigterm_ends_no_connection_dr() {
    goes_on(Mode::Dr, Lvsd::terminate);
}

/// UDP, persistence and timers are taken over too.
#[test]
fn udp_and_persistence_survive() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let vip = site.vip(Family::V4);
    site.lab.d().ctl_ok("--set 0 0 200");
    site.lab.d().ctl_ok(&format!("-E -u {vip} -s rr -p 300"));
    let socket = udp(&site.lab.client, vip);
    let name = udp_ask(&socket, b"one").expect("an answer");
    assert_eq!(udp_ask(&socket, b"two").expect("an answer"), name);
    let listed = site.table();
    assert_eq!(listed.len(), 2, "a flow and a template: {listed:?}");
    site.take().kill();
    site.lab.start_lvsd();
    assert_eq!(site.table(), listed);
    let flow = site.lab.d().connections().into_iter().find(|c| c.source.port() != 0).expect("the flow");
    assert!((150..=200).contains(&flow.expire), "{flow:?}");
    assert_eq!(udp_ask(&socket, b"three").expect("an answer"), name);
    for _ in 0..4 {
        let another = udp(&site.lab.client, vip);
        assert_eq!(udp_ask(&another, b"persistent").expect("an answer"), name);
    }
}

/// While no daemon was there its configuration has changed: no connection goes to a server that it was not made for, and one whose server
/// is gone is not served.
#[test]
fn a_changed_configuration_sends_nobody_astray() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let mut all = site.open(6);
    let before = site.table();
    let lvsd = site.take();
    let state = lvsd.state_file().to_path_buf();
    lvsd.terminate();
    let text = std::fs::read_to_string(&state).expect("a state file");
    let gone = SocketAddr::new(site.lab.rip(Family::V4, 2), PORT).to_string();
    let rest: Vec<&str> = text.lines().filter(|l| !l.contains(&gone)).collect();
    // servers in another order get other numbers
    let (mut servers, mut others): (Vec<&str>, Vec<&str>) =
        rest.into_iter().partition(|l| l.starts_with("-a"));
    servers.reverse();
    others.append(&mut servers);
    std::fs::write(&state, others.join("\n") + "\n").expect("a state file");
    site.lab.start_lvsd();
    let gone: SocketAddr = gone.parse().expect("an address");
    let now = site.table();
    for (client, server) in &before {
        assert_eq!(now.get(client), Some(server));
    }
    for c in &mut all {
        let client = c.socket().local_addr().expect("an address");
        match before.get(&client) {
            Some(server) if *server == gone => {
                c.socket().set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
                let end = c.say(b"anybody there?").expect_err("its server is no longer configured");
                assert!(
                    matches!(end.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                    "{end}"
                );
            }
            Some(_) => c.say(b"still there?").expect("an echo"),
            None => panic!("{client} is not in the table"),
        }
    }
}

/// What cannot be taken over is replaced, and said.
#[test]
fn another_layout_begins_anew() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let mut all = site.open(2);
    site.take().terminate();
    site.lab.start_lvsd_limited(30_000);
    let log = site.lab.d().log();
    let line =
        log.lines().find(|l| l.contains("begins anew")).unwrap_or_else(|| panic!("no such line in\n{log}"));
    assert!(line.contains("was made for another --max-connections"), "{line}");
    for family in Family::BOTH {
        assert_eq!(Echo::open(&site.lab.client, site.vip(family)).expect("a connection").server.len(), 2);
    }
    // those that were are not known any more, and learn of it
    for c in &mut all {
        assert!(c.say(b"lost").is_err());
    }
}

/// Another daemon (with another socket) does not start beside what one has left: that would drop its clients' packets.
#[test]
fn a_data_plane_that_is_left_keeps_others_off() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    site.take().kill();
    let (dev, dir) = (site.lab.director_devs()[0], &site.lab.dir);
    let mut command = site.lab.director.command(probe::lvsd());
    command.args(["--datapath", "tc", "--pin-dir", "none", "--interface", dev]);
    command.arg("--socket").arg(dir.join("other.sock")).arg("--state-file").arg(dir.join("other.state"));
    let out = command.output().expect("lvsd starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("data plane of another lvsd is attached"), "{said}");
    assert!(said.contains(dev) && said.contains("lvsctl datapath off"), "{said}");
}

/// The rings alone leave nothing in the kernel, also not what a tier left there.
#[test]
fn rings_alone_remove_a_tier() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let lvsd = site.take();
    let socket = lvsd.socket().to_path_buf();
    lvsd.terminate();
    site.lab.start_lvsd_with(&["--datapath", "afpacket"]);
    assert!(site.lab.d().log().contains("removing the data plane"), "{}", site.lab.d().log());
    for _ in 0..3 {
        Echo::open(&site.lab.client, site.vip(Family::V4)).expect("a connection");
    }
    site.take().terminate();
    let said = String::from_utf8(ctl(&socket, "datapath off").stdout).expect("text");
    assert!(said.starts_with("nothing is pinned at "), "{said}");
}

/// `lvsctl datapath off` is refused while a daemon works on it, and removes all when none does.
#[test]
fn the_data_plane_is_removed_on_demand() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let socket = site.lab.d().socket().to_path_buf();
    let refused = ctl(&socket, "datapath off");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("another lvsd works on it"), "{text}");
    let mut all = site.open(1);
    site.take().kill();
    all_go_on(&mut all, "without a daemon");
    let out = ctl(&socket, "datapath off");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for c in &mut all {
        // the kernel lets go of a link a moment after its file
        until("nothing is forwarded", secs(5), || c.say(b"gone").err());
    }
    site.lab.start_lvsd();
    assert!(site.lab.d().connections().is_empty());
    let said = String::from_utf8(ctl(&socket, "datapath off --pin-dir /sys/fs/bpf/lvsd/no-such").stdout)
        .expect("text");
    assert_eq!(said, "nothing is pinned at /sys/fs/bpf/lvsd/no-such\n");
}

/// What goes on under the kills, and what went wrong of it.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    /// Conversations of connections that were there before all kills.
    said: AtomicU64,
    /// Connections that came and went, by family.
    short: [AtomicU64; 2],
    wrong: Mutex<Vec<String>>,
}

impl Load {
    fn complain(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    fn done(&self) -> [u64; 3] {
        let [v4, v6] = &self.short;
        [&self.said, v4, v6].map(|n| n.load(Relaxed))
    }

    fn has_complaints(&self) -> bool {
        !self.wrong.lock().expect("no panic").is_empty()
    }

    /// One connection for all the time.
    fn talk(&self, mut c: Echo, seed: usize) {
        let mut size = seed * 997;
        while !self.over.load(Relaxed) {
            size = (size * 31 + 7919) % 60_000;
            // all together at full speed would leave the daemons no processor to end and start on
            std::thread::sleep(PACE);
            if let Err(e) = c.say(&vec![seed as u8; size + 1]) {
                return self.complain(format!("the connection to {}, {size} bytes: {e}", c.server));
            }
            self.said.fetch_add(1, Relaxed);
        }
    }

    /// One connection after the other; each may have to send its SYN again.
    fn come_and_go(&self, ns: &Netns, vip: SocketAddr, place: usize) {
        while !self.over.load(Relaxed) {
            let one = || -> std::io::Result<()> {
                let mut c = Echo::open_within(ns, vip, secs(20))?;
                c.say(b"short")?;
                c.socket().shutdown(std::net::Shutdown::Write)
            };
            match one() {
                Ok(()) => drop(self.short[place].fetch_add(1, Relaxed)),
                Err(e) => return self.complain(format!("a new connection to {vip}: {e}")),
            }
        }
    }
}

/// The daemon is killed under load, again and again: no established connection is lost, new ones work within a second of the next
/// daemon's start, and in the end all accounts are right.
fn kills(mode: Mode, times: usize) {
    // connections that have ended stay for a while
    let more = ["--max-connections-ipv6", "60000"];
    let Some(mut site) = Site::with(mode, &more) else { return };
    let all = site.open(6);
    let (old, load) = (all.len(), Load::default());
    let vips = Family::BOTH.map(|family| site.vip(family));
    let devs = site.lab.director_devs();
    let first = site.take();
    let Lab { lvsd, client, director, dir, .. } = &mut site.lab;
    *lvsd = Some(first);
    std::thread::scope(|s| {
        let (load, client) = (&load, &*client);
        for (seed, c) in all.into_iter().enumerate() {
            s.spawn(move || load.talk(c, seed));
        }
        for (place, vip) in vips.into_iter().enumerate() {
            s.spawn(move || load.come_and_go(client, vip, place));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..times {
                // else a SYN might meet one downtime after the other
                let before = load.done();
                let goes_on = || load.done().iter().zip(before).all(|(now, then)| *now >= then + 3);
                until("there is load", secs(20), || (goes_on() || load.has_complaints()).then_some(()));
                lvsd.take().expect("the daemon was started").kill();
                *lvsd = Some(Lvsd::start(director, devs, dir, 20_000, &more));
                for vip in vips {
                    if let Err(e) = Echo::open_within(client, vip, secs(1)) {
                        panic!("kill {round}: no new connection to {vip}: {e}");
                    }
                }
                assert!(!load.has_complaints(), "kill {round}: {:?}", load.wrong);
            }
        }));
        load.over.store(true, Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    let wrong = load.wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong:?}");
    for vip in vips {
        let selector = format!("-t {vip}");
        let own: Vec<_> = site.lab.d().connections().into_iter().filter(|c| c.virt == vip).collect();
        for row in site.lab.d().servers(&selector) {
            let here = own.iter().filter(|c| c.destination == row.address).count() as u32;
            // some may end between the two listings
            assert!((row.active + row.inactive).abs_diff(here) <= 2, "{row:?}, and {here} connections");
        }
    }
    println!("{times} kills with {old} connections");
}

/// `lvsd upgrade` as an operator types it.
fn upgrade(socket: &Path) -> Output {
    Command::new(probe::lvsd()).arg("upgrade").arg("--socket").arg(socket).output().expect("lvsd starts")
}

/// From one daemon to the next, three times, under load: no connection is lost, and no packet goes up a ring that nobody reads.
#[test]
fn upgrades_under_load() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let (all, load) = (site.open(4), Load::default());
    let vips = Family::BOTH.map(|family| site.vip(family));
    let first = site.take();
    let (socket, client) = (first.socket().to_path_buf(), &site.lab.client);
    let mut pids = vec![first.pid()];
    let mut orphans: Vec<Orphan> = Vec::new();
    let unserved = first.counter("tier_unserved");
    std::thread::scope(|s| {
        let load = &load;
        for (seed, c) in all.into_iter().enumerate() {
            s.spawn(move || load.talk(c, seed));
        }
        for (place, vip) in vips.into_iter().enumerate() {
            s.spawn(move || load.come_and_go(client, vip, place));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..3 {
                let before = load.done();
                let goes_on = || load.done().iter().zip(before).all(|(now, then)| *now >= then + 3);
                until("there is load", secs(20), || (goes_on() || load.has_complaints()).then_some(()));
                let out = upgrade(&socket);
                let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
                assert!(out.status.success(), "upgrade {round}: {said}\n{}", first.log());
                let pid = said.split_whitespace().nth(3).and_then(|p| p.parse().ok());
                let pid = pid.unwrap_or_else(|| panic!("no process id in {said}"));
                orphans.push(Orphan(pid));
                pids.push(pid);
                assert!(
                    !load.has_complaints(),
                    "upgrade {round}: {:?}\n{}\n{}",
                    load.wrong,
                    first.log(),
                    first.ctl_ok("status --nonzero")
                );
            }
        }));
        load.over.store(true, Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    let wrong = load.wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong:?}\n{}", first.log());
    pids.dedup();
    assert_eq!(pids.len(), 4, "each time another process: {pids:?}");
    if !has_xdp_tier() {
        assert_eq!(first.counter("tier_unserved"), unserved, "packets for a ring that was not there");
    }
    let text = first.ctl_ok("status");
    assert!(text.contains(&format!("process {}", pids[3])), "{text}");
    for vip in vips {
        assert!(first.servers(&format!("-t {vip}")).len() == 3);
    }
}

/// A daemon that is no child of ours.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0 as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let gone = || rustix::process::test_kill_process(pid).is_err().then_some(());
            let ended = within(secs(30), gone).is_some();
            assert!(ended || std::thread::panicking(), "process {} does not end", self.0);
        }
    }
}

/// What cannot take over does not: the daemon goes on, and says why.
#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let Some(mut site) = Site::new(Mode::Nat) else { return };
    let mut all = site.open(2);
    let lvsd = site.take();
    let (socket, pid) = (lvsd.socket().to_path_buf(), lvsd.pid());
    site.lab.lvsd = Some(lvsd);
    let other = site.lab.dir.join("none.sock");
    let none = upgrade(&other);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && said.contains("none.sock"), "{said}");
    // pins that do not fit: as if the program had another layout
    let plane = pinned::default_dir(&socket).join("maps/plane");
    let aside = pinned::default_dir(&socket).join("maps/aside");
    std::fs::rename(&plane, &aside).expect("the plane's map");
    let out = upgrade(&socket);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("upgrade attempt 1 failed"), "{said}");
    std::fs::rename(&aside, &plane).expect("the plane's map");
    assert!(site.lab.d().ctl_ok("status").contains(&format!("process {pid}")));
    all_go_on(&mut all, "after an attempt");
    for family in Family::BOTH {
        Echo::open(&site.lab.client, site.vip(family)).expect("a new connection");
    }
}

#[test]
fn kills_under_load_nat() {
    kills(Mode::Nat, 4);
}

#[test]
#[ignore = "takes minutes"]
fn long_kills_nat() {
    kills(Mode::Nat, 50);
}

#[test]
#[ignore = "takes minutes"]
fn long_kills_dr() {
    kills(Mode::Dr, 50);
}
