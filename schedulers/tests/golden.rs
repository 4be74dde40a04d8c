//! The choices of every scheduler beside those of a Linux 6.1 kernel, as recorded in `tests/golden`.

mod common;

use common::Service;
use schedulers::{Flag, Flow, Options, names, parse_flag};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

fn golden(file: &str) -> String {
    let path = format!("{}/../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A service under the commands of a golden file; `None` while its scheduler is one that we do not have.
#[derive(Default)]
struct Replay(Option<Service>);

impl Replay {
    /// Carries out one `ipvsadm` command.
    fn command(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let value = |option: &str| words.iter().position(|word| *word == option).map(|at| words[at + 1]);
        let number = |option: &str| value(option).map(|word| word.parse::<u32>().unwrap());
        let at = || value("-r").unwrap().parse::<SocketAddr>().unwrap();
        match (words[0], &mut self.0) {
            ("-A", service) => {
                let name = value("-s").unwrap();
                let known = names().iter().any(|algorithm| algorithm.name == name);
                *service = known.then(|| Service::new(name, &options(name, value("-b"))).unwrap());
            }
            (_, None) => {}
            ("-E", Some(service)) => service.switch(value("-s").unwrap(), &Options::default()).unwrap(),
            ("-a", Some(service)) => {
                service.add(at(), number("-w").unwrap_or(1));
                service.server(at()).upper = number("-x").unwrap_or(0);
                service.server(at()).lower = number("-y").unwrap_or(0);
            }
            ("-e", Some(service)) => {
                let upper = number("-x").unwrap_or(0);
                let server = service.server(at());
                if upper == 0 || upper > server.upper {
                    server.load.overloaded = false;
                }
                server.upper = upper;
                server.lower = number("-y").unwrap_or(0);
                service.set_weight(at(), number("-w").unwrap_or(1));
            }
            ("-d", Some(service)) => service.remove(at()),
            (other, _) => panic!("command {other}"),
        }
    }

    /// Takes over what the kernel counted ("1:2/0 2:0/1": server 1 has 2 active connections, ...).
    fn counts(&mut self, before: &str) {
        let Some(service) = &mut self.0 else { return };
        for word in before.split_whitespace() {
            let (k, counts) = word.split_once(':').unwrap();
            let (active, inactive) = counts.split_once('/').unwrap();
            let octet: u8 = k.parse().unwrap();
            let server = service.pool.0.iter_mut().find(|server| last_octet(server.at.ip()) == octet.into());
            let server = server.unwrap_or_else(|| panic!("no server {k}"));
            let old = server.load.active + server.load.inactive;
            (server.load.active, server.load.inactive) = (active.parse().unwrap(), inactive.parse().unwrap());
            let total = server.load.active + server.load.inactive;
            // The upper threshold acts when a connection is bound, the lower one when one is released.
            if total > old && server.upper != 0 && total >= server.upper {
                server.load.overloaded = true;
            }
            let lifted = if server.lower != 0 { total < server.lower } else { total * 4 < server.upper * 3 };
            if total < old && lifted {
                server.load.overloaded = false;
            }
        }
    }
}

fn options(scheduler: &str, flags: Option<&str>) -> Options {
    let mut options = Options::default();
    for word in flags.iter().flat_map(|flags| flags.split(',')) {
        match parse_flag(scheduler, word).unwrap() {
            Flag::Sched1 => options.fallback = true,
            Flag::Sched2 => options.port = true,
            Flag::Sched3 => {}
        }
    }
    options
}

/// The number of a server, which is the last word of its address.
fn last_octet(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(v4) => u16::from(v4.octets()[3]),
        IpAddr::V6(v6) => v6.segments()[7],
    }
}

/// Replays a file of connection sequences; returns how many choices were compared for each scheduler.
fn replay_sequences(file: &str) -> BTreeMap<String, usize> {
    let mut compared = BTreeMap::new();
    let mut replay = Replay::default();
    let mut title = String::new();
    for (line, text) in (1..).zip(golden(file).lines()) {
        if let Some(command) = text.strip_prefix("# $ ipvsadm ") {
            replay.command(command);
        } else if let Some(heading) = text.strip_prefix("## ") {
            title = heading.into();
        }
        let columns: Vec<&str> = text.split('\t').collect();
        let [_, client, client_port, virt, virt_port, _, chosen, before] = columns[..] else { continue };
        if client == "client" {
            continue;
        }
        replay.counts(before);
        let Some(service) = &mut replay.0 else { continue };
        let flow = Flow {
            client: client.parse().unwrap(),
            client_port: client_port.parse().unwrap(),
            virt: virt.parse().unwrap(),
            virt_port: virt_port.parse().unwrap(),
        };
        let ours = service.pick(&flow).map(|at| last_octet(at.ip()).to_string());
        // "icmp3/3" (port unreachable) is the kernel's answer where no server takes the connection.
        let kernel = (chosen != "icmp3/3").then(|| chosen.to_string());
        assert_eq!(ours, kernel, "{file}:{line} ({title}): {text}");
        *compared.entry(service.name.clone()).or_insert(0) += 1;
    }
    compared
}

#[track_caller]
fn compared(file: &str, expected: &[(&str, usize)]) {
    let expected = expected.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    assert_eq!(replay_sequences(file), expected, "choices compared");
}

#[test]
fn tcp_connections() {
    compared(
        "b-seq-tcp.tsv",
        &[
            ("fo", 1144),
            ("lc", 1144),
            ("nq", 1144),
            ("ovf", 1144),
            ("rr", 1144),
            ("sed", 1144),
            ("wlc", 1144),
            ("wrr", 1144),
        ],
    );
}

#[test]
fn hashing_schedulers() {
    compared("b-seq-hash.tsv", &[("dh", 244), ("mh", 244), ("sh", 244)]);
}

#[test]
fn changes_while_connections_come_in() {
    compared(
        "b-seq-events.tsv",
        &[
            ("fo", 140),
            ("lc", 140),
            ("mh", 140),
            ("nq", 140),
            ("ovf", 140),
            ("rr", 540),
            ("sed", 140),
            ("sh", 140),
            ("wlc", 140),
            ("wrr", 140),
        ],
    );
}

#[test]
fn thresholds() {
    compared(
        "b-seq-threshold.tsv",
        &[
            ("fo", 40),
            ("lc", 40),
            ("mh", 60),
            ("nq", 40),
            ("ovf", 40),
            ("rr", 70),
            ("sed", 40),
            ("sh", 60),
            ("wlc", 40),
            ("wrr", 40),
        ],
    );
}

#[test]
fn udp_and_one_packet_scheduling() {
    compared(
        "b-seq-udp.tsv",
        &[
            ("fo", 120),
            ("lc", 120),
            ("nq", 120),
            ("ovf", 120),
            ("rr", 120),
            ("sed", 120),
            ("wlc", 120),
            ("wrr", 120),
        ],
    );
}

#[test]
fn expiry_odd_weights_and_switching_schedulers() {
    compared(
        "b-seq-more.tsv",
        &[("dh", 52), ("lc", 256), ("mh", 324), ("rr", 296), ("sh", 52), ("wlc", 256), ("wrr", 256)],
    );
}

/// Replays a file of maps, client (or destination) to server; returns the number of columns compared.
fn replay_map(file: &str, virt: Option<&str>) -> usize {
    let text = golden(file);
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2000);
    let mut replay = Replay::default();
    let mut columns = 0;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("# $ ipvsadm ") {
            replay.command(command);
        }
        let Some((column, title)) = line.strip_prefix("# column ").and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let column: usize = column.parse().unwrap();
        let service = replay.0.as_mut().unwrap();
        for row in &rows {
            let address: IpAddr = row[0].parse().unwrap();
            let flow = Flow {
                client: if virt.is_some() { address } else { "10.2.0.1".parse().unwrap() },
                client_port: row[1].parse().unwrap(),
                virt: virt.map_or(address, |virt| virt.parse().unwrap()),
                virt_port: 1000,
            };
            let ours = service.pick(&flow).map_or("-".into(), |at| format!("{:x}", last_octet(at.ip())));
            assert_eq!(ours, row[column - 1], "{file} column {column} ({title}): {} port {}", row[0], row[1]);
        }
        columns += 1;
    }
    columns
}

#[test]
fn maps_of_ipv4_clients() {
    assert_eq!(replay_map("b-map-v4.tsv", Some("10.0.0.1")), 87);
}

#[test]
fn maps_of_ipv6_clients() {
    assert_eq!(replay_map("b-map-v6.tsv", Some("2001:db8::1")), 12);
}

#[test]
fn maps_of_destinations() {
    assert_eq!(replay_map("b-map-dh.tsv", None), 12);
}
