//! The recorded frames once more, through `lvsd replay`: the program, its configuration file, pcap in and out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lvsd::route::PortId;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};

use super::golden::{Line, SECTIONS, section, without_noise};

/// A frame, and what came out for it.
type Row = (Vec<u8>, Vec<(PortId, Vec<u8>)>);

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lvsd-replay-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The recordings' network, with the server side's MTU.
fn network(mtu: u32) -> String {
    let mut text = format!(
        "interface c0 02:00:00:00:00:d0\ninterface s0 02:00:00:00:00:d1 mtu {mtu}\n\
         address c0 10.0.0.254/24\naddress c0 10.0.0.1/32\naddress s0 10.1.0.254/24\n\
         address c0 2001:db8::254/64\naddress c0 2001:db8::1/128\naddress s0 2001:db8:1::254/64\n\
         route 10.2.0.0/16 via 10.0.0.253\nroute 2001:db8:2::/48 via 2001:db8::253\n\
         neighbour 10.0.0.253 02:00:00:00:00:c1\nneighbour 2001:db8::253 02:00:00:00:00:c1\n"
    );
    for k in 1..30 {
        text += &format!("neighbour 10.1.0.{k} 02:00:00:00:01:{k:02x}\n");
        text += &format!("neighbour 2001:db8:1::{k:x} 02:00:00:00:01:{k:02x}\n");
    }
    text
}

/// What configuration there is at one point of a recording.
#[derive(Default)]
struct Configured {
    services: Vec<String>,
    dests: Vec<String>,
    sysctls: Vec<String>,
    mtu: u32,
}

/// The first five words of a server's line name it: `-a -t VIP -r RIP`.
fn names(line: &str) -> Vec<&str> {
    line.split_whitespace().skip(1).take(4).collect()
}

impl Configured {
    /// Follows a command of the recording; `false` for one that changes nothing.
    fn follow(&mut self, command: &str) -> bool {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["ipvsadm", "-A", ..] => self.services.push(command["ipvsadm ".len()..].to_owned()),
            ["ipvsadm", verb @ ("-a" | "-e"), ..] => {
                // A saved line names method and weight, where the command leaves them out.
                let mut line = format!("-a{}", &command["ipvsadm -a".len()..]);
                if !line.contains(" -w ") {
                    line += " -w 1";
                }
                if verb == "-e" {
                    let name: Vec<String> = names(&line).iter().map(|w| (*w).to_owned()).collect();
                    self.dests.retain(|d| names(d) != name);
                }
                self.dests.push(line);
            }
            ["ipvsadm", "-d", ..] => self.dests.retain(|d| names(d) != words[2..6]),
            ["sysctl", "-w", setting] => {
                let (name, value) = setting.strip_prefix("net.ipv4.vs.").unwrap().split_once('=').unwrap();
                self.sysctls.push(format!("#sysctl {name} {value}"));
            }
            ["ip", "link", "set", "s0", "mtu", mtu, ..] => {
                self.mtu = mtu.trim_end_matches(';').parse().unwrap();
            }
            _ => return false,
        }
        true
    }

    fn text(&self) -> String {
        let mut text = network(if self.mtu == 0 { 1500 } else { self.mtu });
        for line in self.services.iter().chain(&self.dests).chain(&self.sysctls) {
            text += line;
            text.push('\n');
        }
        text
    }
}

fn replay(dir: &Path, config: &str, frames: &[&[u8]]) -> Vec<Vec<u8>> {
    let [conf, input, output] = ["conf", "in.pcap", "out.pcap"].map(|n| dir.join(n));
    fs::write(&conf, config).unwrap();
    let mut writer = PcapWriter::new(File::create(&input).unwrap()).unwrap();
    for (i, frame) in frames.iter().enumerate() {
        let time = Duration::from_millis(1_000_000 + i as u64);
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
    drop(writer);
    let out = Command::new(env!("CARGO_BIN_EXE_lvsd"))
        .arg("replay")
        .arg("--config")
        .arg(&conf)
        .arg("--in")
        .arg(&input)
        .arg("--out")
        .arg(&output)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}\n{config}", String::from_utf8_lossy(&out.stderr));
    let mut reader = PcapReader::new(File::open(&output).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Each stretch of rows between two commands is a replay of its own. A connection does not outlive its stretch, so rows that go on
/// with an older one (a server deleted under it) are left to the core's own test.
#[test]
fn recorded_frames_come_out_of_a_replay() {
    let mut stretches = 0;
    for name in SECTIONS {
        let dir = Dir::new();
        let mut configured = Configured::default();
        let mut rows: Vec<Row> = Vec::new();
        let mut lines = section(name).into_iter().peekable();
        while let Some(line) = lines.next() {
            match line {
                Line::Command(c) => {
                    configured.follow(&c);
                }
                Line::Row { label, frame, out, stack, .. } => {
                    let older = label.contains("server deleted") || label.contains("deleted server");
                    if !older {
                        rows.push((frame, if stack { Vec::new() } else { out }));
                    }
                }
            }
            if !rows.is_empty() && !matches!(lines.peek(), Some(Line::Row { .. })) {
                let input: Vec<&[u8]> = rows.iter().map(|r| r.0.as_slice()).collect();
                let got = replay(&dir.0, &configured.text(), &input);
                let want: Vec<Vec<u8>> =
                    rows.iter().flat_map(|r| &r.1).map(|o| without_noise(&o.1)).collect();
                let got: Vec<Vec<u8>> = got.iter().map(|f| without_noise(f)).collect();
                assert_eq!(got, want, "{name}, stretch {stretches}\n{}", configured.text());
                rows.clear();
                stretches += 1;
            }
        }
    }
    assert!(stretches >= 20, "{stretches}");
}

#[test]
fn mistakes_are_named() {
    let dir = Dir::new();
    let conf = dir.0.join("conf");
    for (text, says) in [
        ("-A -t 10.0.0.1:80 -s rr\n", "no 'interface NAME MAC' line: a director needs one"),
        (
            "interface c0 02:00:00:00:00:d0\n-A -t 10.0.0.1:80 -s foo\n",
            "line 2: there is no scheduler 'foo' in this version, but rr ",
        ),
        ("interface c0 nonsense\n", "line 1: 'nonsense' is no MAC address"),
    ] {
        fs::write(&conf, text).unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_lvsd"))
            .args(["replay", "--in", "/dev/null", "--out", "/dev/null", "--config"])
            .arg(&conf)
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && err.lines().count() == 1 && err.contains(says), "{err}");
    }
}
