//! Debian's unmodified keepalived drives lvsd: it takes servers out of the service whose checks fail, and puts them back.
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Echo, curl};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Proc;
use crate::probe;
use crate::servers::{Nginx, Service, TcpServer};
use crate::wait::{secs, until};

/// A check each second, which fails at once.
const CHECK: &str = "connect_timeout 2 retry 1 delay_before_retry 1";
/// The port on which the sorry server says who it is, and that of a service whose connections are kept open.
const SORRY: u16 = 7999;
const ECHO: u16 = 7;
/// How long keepalived may take to see a change.
const SEEN: Duration = secs(30);

/// A daemon with nothing configured, and keepalived beside it.
struct Site {
    keepalived: Proc,
    conf: PathBuf,
    _echo: Vec<TcpServer>,
    _sorry: TcpServer,
    lab: Lab,
}

impl Drop for Site {
    /// keepalived ends its checker when it is told to end; killed, it would leave that behind.
    fn drop(&mut self) {
        if self.keepalived.ended().is_some() {
            return;
        }
        self.keepalived.signal(Signal::TERM);
        let ended = crate::wait::within(secs(10), || self.keepalived.ended());
        let checker = std::fs::read_to_string(self.lab.dir.join("checkers.pid"));
        if let (None, Some(pid)) = (ended, checker.ok().and_then(|t| t.trim().parse().ok())) {
            // its number, as it wrote it down itself; if it is gone, there is nothing to kill
            let _ = rustix::process::Pid::from_raw(pid)
                .map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        }
    }
}

impl Site {
    fn new() -> Option<Site> {
        if !probe::ready() || !probe::has("keepalived") {
            return None;
        }
        let mut lab = Lab::with_nginx(Mode::Nat);
        let echo =
            lab.servers.iter().map(|s| TcpServer::start(&s.ns, &s.name, ECHO, Service::Echo)).collect();
        let sorry = TcpServer::start(&lab.server("s1").ns, "sorry", SORRY, Service::Echo);
        lab.start_lvsd();
        let conf = lab.dir.join("keepalived.conf");
        std::fs::write(&conf, config(&lab, [3, 2, 1])).expect("keepalived's configuration");
        let mut command = lab.director.command(probe::lvsctl().to_str().expect("a path"));
        command.arg("--socket").arg(lab.d().socket()).args(["exec", "--", "keepalived"]);
        command.args(["--dont-fork", "--log-console", "--check", "--use-file"]).arg(&conf);
        command.arg("--pid").arg(lab.dir.join("keepalived.pid"));
        command.arg("--checkers_pid").arg(lab.dir.join("checkers.pid"));
        let keepalived = Proc::start(&mut command, lab.dir.join("keepalived.log"));
        Some(Site { keepalived, conf, _echo: echo, _sorry: sorry, lab })
    }

    fn vip(&self) -> SocketAddr {
        self.lab.vip_port(Family::V4, 80)
    }

    /// Waits until the service has servers with these weights, in the order of their addresses.
    fn until_weights(&self, wanted: &[(&str, u32)]) {
        let selector = format!("-t {}", self.vip());
        let name = |address: SocketAddr| {
            let mut of = self.lab.servers.iter();
            let found = of.find(|s| SocketAddr::new(self.lab.rip(Family::V4, s.number), 80) == address);
            found.map_or_else(|| "sorry".to_owned(), |s| s.name.clone())
        };
        let mut last = Vec::new();
        let found = crate::wait::within(SEEN, || {
            let out = self.lab.d().ctl(&format!("-Ln {selector}"));
            let rows = if out.status.success() { self.lab.d().servers(&selector) } else { Vec::new() };
            last = rows.iter().map(|r| (name(r.address), r.weight)).collect::<Vec<_>>();
            last.sort();
            last.iter().map(|(n, w)| (n.as_str(), *w)).eq(wanted.iter().copied()).then_some(())
        });
        assert!(
            found.is_some(),
            "servers are {last:?}, not {wanted:?}; keepalived: {}",
            self.keepalived.output()
        );
    }

    fn stop(&mut self, name: &str) {
        let s = self.lab.servers.iter_mut().find(|s| s.name == name).expect("a server of that name");
        s.nginx = None;
    }

    fn start(&mut self, name: &str) {
        let dir = self.lab.dir.join(name);
        let s = self.lab.servers.iter_mut().find(|s| s.name == name).expect("a server of that name");
        s.nginx = Some(Nginx::start(&s.ns, name, dir));
    }

    /// How often each server answers `n` requests.
    fn answers(&self, n: usize) -> Vec<(String, usize)> {
        let all = curl(&self.lab.client, self.vip(), n);
        let mut names = all.clone();
        names.sort();
        names.dedup();
        names.into_iter().map(|name| (name.clone(), all.iter().filter(|a| **a == name).count())).collect()
    }
}

/// Three servers, by HTTP, TCP and HTTP again; a sorry server; and a service whose servers are not checked.
fn config(lab: &Lab, weights: [u32; 3]) -> String {
    let vip = lab.vip(Family::V4);
    let http = format!("HTTP_GET {{ url {{ path / status_code 200 }} {CHECK} }}");
    let checks = [http.clone(), format!("TCP_CHECK {{ {CHECK} }}"), http];
    let mut text = format!(
        "global_defs {{\n router_id lvsd_test\n}}\nvirtual_server {vip} 80 {{\n delay_loop 1\n lb_algo wrr\n lb_kind NAT\n \
         protocol TCP\n quorum 1\n sorry_server {} {SORRY}\n",
        lab.rip(Family::V4, 1)
    );
    for (number, (check, weight)) in (1..).zip(checks.iter().zip(weights)) {
        let rip = lab.rip(Family::V4, number);
        // Writing to a String can't fail.
        let _ = writeln!(text, " real_server {rip} 80 {{\n  weight {weight}\n  {check}\n }}");
    }
    let _ = writeln!(text, "}}\nvirtual_server {vip} {ECHO} {{\n lb_algo rr\n lb_kind NAT\n protocol TCP");
    for number in 1..=3 {
        let _ = writeln!(text, " real_server {} {ECHO} {{\n  weight 1\n }}", lab.rip(Family::V4, number));
    }
    text.push_str("}\n");
    text
}

fn counts(answers: &[(String, usize)]) -> Vec<(&str, usize)> {
    answers.iter().map(|(name, n)| (name.as_str(), *n)).collect()
}

#[test]
fn servers_come_and_go_with_their_checks() {
    let Some(mut site) = Site::new() else { return };
    site.until_weights(&[("s1", 3), ("s2", 2), ("s3", 1)]);
    assert_eq!(counts(&site.answers(60)), [("s1", 30), ("s2", 20), ("s3", 10)]);
    site.stop("s2");
    site.until_weights(&[("s1", 3), ("s3", 1)]);
    assert_eq!(counts(&site.answers(40)), [("s1", 30), ("s3", 10)]);
    site.start("s2");
    site.until_weights(&[("s1", 3), ("s2", 2), ("s3", 1)]);
    assert_eq!(counts(&site.answers(60)).len(), 3);
    // nobody is left: the sorry server takes all
    for name in ["s1", "s2", "s3"] {
        site.stop(name);
    }
    site.until_weights(&[("sorry", 1)]);
    for name in ["s1", "s2", "s3"] {
        site.start(name);
    }
    site.until_weights(&[("s1", 3), ("s2", 2), ("s3", 1)]);
}

#[test]
fn connections_are_kept_over_a_reload_of_keepalived_and_a_restart_of_lvsd() {
    let Some(mut site) = Site::new() else { return };
    site.until_weights(&[("s1", 3), ("s2", 2), ("s3", 1)]);
    let to = site.lab.vip_port(Family::V4, ECHO);
    let mut open: Vec<Echo> =
        (0..6).map(|_| Echo::open(&site.lab.client, to).expect("a connection")).collect();
    let talk = |open: &mut Vec<Echo>| {
        for echo in open.iter_mut() {
            echo.say(b"still there?\n").expect("a connection that is kept");
        }
    };
    talk(&mut open);
    // other weights take effect, and nothing else changes
    std::fs::write(&site.conf, config(&site.lab, [1, 1, 4])).expect("keepalived's configuration");
    site.keepalived.signal(Signal::HUP);
    site.until_weights(&[("s1", 1), ("s2", 1), ("s3", 4)]);
    talk(&mut open);
    // a daemon that is started again has its table from its state file, and keepalived's next request finds it
    site.lab.lvsd.take().expect("a daemon").terminate();
    site.lab.start_lvsd();
    site.until_weights(&[("s1", 1), ("s2", 1), ("s3", 4)]);
    if crate::director::has_tier() {
        talk(&mut open);
    }
    site.stop("s3");
    site.until_weights(&[("s1", 1), ("s2", 1)]);
    site.start("s3");
    site.until_weights(&[("s1", 1), ("s2", 1), ("s3", 4)]);
    until("a new connection", SEEN, || Echo::open(&site.lab.client, to).ok());
}
