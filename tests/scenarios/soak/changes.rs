//! The changes of the configuration: drawn at random, never one that a client of a core service would rightly notice.
use std::net::SocketAddr;

use super::{Kind, Random, SERVICES};
use crate::lab::{Family, Lab, Mode};

/// Schedulers that find a server whenever there is one to be had.
const SURE: [&str; 6] = ["rr", "wrr", "lc", "wlc", "sh -b sh-fallback,sh-port", "mh -b mh-fallback,mh-port"];
/// All others: these may refuse a client though another server would take it.
const ANY: [&str; 9] = ["rr", "wrr", "lc", "wlc", "dh", "sh", "mh", "maglev", "sh -b sh-port"];

/// The sysctls and how many values each has.
const SYSCTLS: [(&str, usize); 3] =
    [("conn_reuse_mode", 4), ("expire_nodest_conn", 2), ("expire_quiescent_template", 2)];

/// Timeouts (TCP, after a FIN, UDP): longer than a client is idle, short enough to wait for them.
const TIMEOUTS: [&str; 2] = ["--set 30 10 10", "--set 40 15 12"];

/// One service as it is configured now.
struct Now {
    spec: usize,
    vip: SocketAddr,
    there: bool,
    /// Which servers are there.
    servers: [bool; 3],
}

/// The configuration of one director, and what was done to it.
pub(super) struct Changes<'a> {
    lab: &'a Lab,
    random: Random,
    services: Vec<Now>,
    done: Vec<String>,
}

impl<'a> Changes<'a> {
    /// Configures a director; `seed` decides what happens to it later.
    pub(super) fn new(lab: &'a Lab, seed: u64) -> Changes<'a> {
        let mut c = Changes { lab, random: Random::new(seed), services: Vec::new(), done: Vec::new() };
        c.ctl(TIMEOUTS[0].to_owned());
        for family in Family::BOTH {
            for (spec, s) in SERVICES.iter().enumerate() {
                let vip = lab.vip_port(family, s.port);
                c.services.push(Now { spec, vip, there: false, servers: [false; 3] });
                c.add_service(c.services.len() - 1);
            }
        }
        c
    }

    /// The last things done.
    pub(super) fn last(&self) -> String {
        self.done[self.done.len().saturating_sub(40)..].join("\n")
    }

    fn ctl(&mut self, line: String) {
        self.done.push(line);
        self.lab.d().ctl_ok(&self.done[self.done.len() - 1]);
    }

    /// `-t VIP:PORT` of a service.
    fn selector(&self, service: usize) -> String {
        let now = &self.services[service];
        format!("{} {}", SERVICES[now.spec].proto, now.vip)
    }

    /// What `-A` and `-E` say of a service, with a scheduler by chance.
    fn shape(&mut self, service: usize) -> String {
        let spec = &SERVICES[self.services[service].spec];
        let scheduler = match spec.kind {
            Kind::Core => self.random.of(&SURE),
            Kind::Servers | Kind::Whole => self.random.of(&ANY),
        };
        let persistent = if spec.persistent { " -p 10" } else { "" };
        format!("{} -s {scheduler}{persistent}", self.selector(service))
    }

    /// What `-a` and `-e` say of a server, weight and thresholds by chance. The first of a core service always takes connections.
    fn server(&mut self, service: usize, server: usize) -> String {
        let now = &self.services[service];
        let spec = &SERVICES[now.spec];
        let family = if now.vip.is_ipv4() { Family::V4 } else { Family::V6 };
        let rip = SocketAddr::new(self.lab.rip(family, server + 1), spec.port);
        let method = if self.lab.mode == Mode::Nat { "-m" } else { spec.method };
        let sure = spec.kind == Kind::Core && server == 0;
        let weight = if sure { 1 + self.random.below(4) } else { self.random.of(&[0, 0, 1, 1, 2, 4]) };
        let upper = if sure { 0 } else { self.random.of(&[0, 0, 0, 2, 5]) };
        let lower = if upper == 0 { 0 } else { self.random.of(&[0, 1]) };
        format!("{} -r {rip} {method} -w {weight} -x {upper} -y {lower}", self.selector(service))
    }

    fn add_service(&mut self, service: usize) {
        let shape = self.shape(service);
        self.ctl(format!("-A {shape}"));
        self.services[service].there = true;
        (0..3).for_each(|server| self.add_server(service, server));
    }

    fn add_server(&mut self, service: usize, server: usize) {
        let line = self.server(service, server);
        self.ctl(format!("-a {line}"));
        self.services[service].servers[server] = true;
    }

    /// Makes one change.
    pub(super) fn step(&mut self) {
        match self.random.below(16) {
            0 => self.ctl("-Z".to_owned()),
            1 => {
                let line = self.random.of(&TIMEOUTS);
                self.ctl(line.to_owned());
            }
            2 | 3 => {
                let (name, values) = self.random.of(&SYSCTLS);
                let value = self.random.below(values);
                self.ctl(format!("sysctl {name}={value}"));
            }
            _ => self.change_service(),
        }
    }

    fn change_service(&mut self) {
        let service = self.random.below(self.services.len());
        let server = self.random.below(3);
        let kind = SERVICES[self.services[service].spec].kind;
        if !self.services[service].there {
            return self.add_service(service);
        }
        let what = self.random.below(6);
        if what == 0 {
            let shape = self.shape(service);
            return self.ctl(format!("-E {shape}"));
        }
        match kind {
            Kind::Servers if !self.services[service].servers[server] => self.add_server(service, server),
            Kind::Servers if what < 4 => {
                let line = self.selector(service);
                let family = if self.services[service].vip.is_ipv4() { Family::V4 } else { Family::V6 };
                let port = SERVICES[self.services[service].spec].port;
                let rip = SocketAddr::new(self.lab.rip(family, server + 1), port);
                self.ctl(format!("-d {line} -r {rip}"));
                self.services[service].servers[server] = false;
            }
            Kind::Whole if what < 4 => {
                let line = self.selector(service);
                self.ctl(format!("-D {line}"));
                self.services[service].there = false;
                self.services[service].servers = [false; 3];
            }
            _ => {
                let line = self.server(service, server);
                self.ctl(format!("-e {line}"));
            }
        }
    }
}
