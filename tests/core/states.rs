//! Every cell of the recorded state tables (`c-states.tsv`) at default settings and after `--set`.

use std::net::IpAddr;

use ipvs_netlink::{Backend, Timeouts};

use super::frames::*;
use super::rig::{C0, Event, Rig, S0};

const TABLES: [(&str, &str); 6] = [
    ("## proto=tcp mode=NAT defaults", "-m"),
    ("## proto=tcp mode=DR defaults", "-g"),
    ("## proto=tcp mode=TUN defaults", "-i"),
    ("## proto=tcp mode=NAT after ipvsadm --set 100 20 30", "-m"),
    ("## proto=udp mode=NAT defaults", "-m"),
    ("## proto=udp mode=NAT after ipvsadm --set 100 20 30", "-m"),
];

fn flags(segment: &str) -> u8 {
    match segment {
        "none" => 0,
        "DATA" => PSH | ACK,
        other => other
            .split('+')
            .map(|f| match f {
                "SYN" => SYN,
                "ACK" => ACK,
                "FIN" => FIN,
                "RST" => RST,
                f => panic!("unknown flag {f}"),
            })
            .fold(0, |a, b| a | b),
    }
}

struct Case {
    rig: Rig,
    udp: bool,
}

impl Case {
    fn new(table: &str, method: &str) -> Case {
        let mut rig = Rig::golden();
        let udp = table.contains("proto=udp");
        let kind = if udp { "-u" } else { "-t" };
        if table.contains("--set") {
            rig.director.set_timeouts(Timeouts { tcp: 100, tcp_fin: 20, udp: 30 }).unwrap();
        }
        rig.cli(&format!("-A {kind} 10.0.0.1:1001 -s rr"));
        rig.cli(&format!("-a {kind} 10.0.0.1:1001 -r 10.1.0.1:1001 {method}"));
        rig.advance_ms(1);
        Case { rig, udp }
    }

    /// Sends a segment; says what came of it in the golden file's words.
    fn send(&mut self, direction: &str, segment: &str) -> &'static str {
        let client: IpAddr = "10.2.0.1".parse().unwrap();
        let vip: IpAddr = "10.0.0.1".parse().unwrap();
        let server: IpAddr = "10.1.0.1".parse().unwrap();
        let data: &[u8] = if segment == "DATA" { b"x" } else { b"" };
        let build = |ip: Ip, sport, dport| {
            if self.udp { udp(&ip, sport, dport, b"x") } else { tcp(&ip, sport, dport, flags(segment), data) }
        };
        let event = match direction {
            "c>s" => {
                let packet = build(Ip::new(client, vip), 30000, 1001);
                self.rig.client(&packet)
            }
            "s>c" => {
                let packet = build(Ip::new(server, client), 1001, 30000);
                self.rig.server(1, &packet)
            }
            d => panic!("unknown direction {d}"),
        };
        match event {
            Event::Out(frames) if frames.len() == 1 && frames[0].0 == S0 => ">",
            Event::Out(frames) if frames.len() == 1 && frames[0].0 == C0 => "<",
            Event::Pass => "pass",
            other => panic!("{direction} {segment}: {other:?}"),
        }
    }

    fn counts(&self) -> (i64, i64) {
        let services = self.rig.director.services();
        let dests = Backend::dests(&*self.rig.director, &services[0].service.key).unwrap();
        (dests[0].active.into(), dests[0].inactive.into())
    }

    /// State and seconds left, or nothing.
    fn conn(&self) -> Option<(String, u32)> {
        let (list, _) = self.rig.director.conns(0, 10);
        assert!(list.len() <= 1, "{list:?}");
        list.first().map(|c| (c.state.clone(), c.expires))
    }
}

fn check_row(table: &str, method: &str, row: &str) -> Result<(), String> {
    let cells: Vec<&str> = row.split('\t').collect();
    let [_, direction, segment, state, expires, counts, out, path] = cells[..] else {
        return Err(format!("{} cells", cells.len()));
    };
    let mut case = Case::new(table, method);
    for step in path.split_whitespace() {
        let (d, s) = step.split_once(':').unwrap();
        case.send(d, s);
    }
    let before = case.counts();
    let got_out = case.send(direction, segment);
    // What the kernel's stack answered, or dropped for want of a socket, is not ours to answer.
    let want_out = if out == "nothing" || out.starts_with("answer:") { "pass" } else { out };
    if got_out != want_out {
        return Err(format!("came out {got_out}, not {want_out}"));
    }
    let after = case.counts();
    let got = (after.0 - before.0, after.1 - before.1);
    let want: Vec<i64> = counts.split('/').map(|n| n.parse().unwrap()).collect();
    // "SYN on a dead connection": the recorder read the counters before the kernel had freed the old connection.
    let late = segment.contains("SYN") && ["CLOSE", "TIME_WAIT"].contains(&cells[0]) && want == [1, 0];
    if [got.0, got.1] != want[..] && !(late && got == (1, -1)) {
        return Err(format!("counts {got:?}, not {want:?}"));
    }
    match (case.conn(), state) {
        (None, "-") => Ok(()),
        (Some((got, left)), want) if got == want => {
            let want: u32 = expires.parse().unwrap();
            // Read right after the packet and rounded down: both ends of the second are right.
            if left == want || left == want + 1 || left + 1 == want {
                Ok(())
            } else {
                Err(format!("expires in {left} s, not {want}"))
            }
        }
        (got, want) => Err(format!("state {got:?}, not {want}")),
    }
}

#[test]
fn every_recorded_cell() {
    let golden = include_str!("../golden/c-states.tsv");
    for (table, method) in TABLES {
        let at = golden.find(&format!("{table}\n")).unwrap_or_else(|| panic!("no {table}"));
        let rows: Vec<&str> =
            golden[at..].lines().skip(2).take_while(|l| !l.is_empty() && !l.starts_with("##")).collect();
        assert!(rows.len() >= 3, "{table}");
        let wrong: Vec<String> = rows
            .iter()
            .filter_map(|r| {
                check_row(table, method, r).err().map(|e| format!("{}: {e}", r.replace('\t', " ")))
            })
            .collect();
        assert!(wrong.is_empty(), "{table}: {} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    }
}
