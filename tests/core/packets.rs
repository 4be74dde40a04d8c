//! The recorded frames (`d-packets.txt`): what went into an IPVS director must come out of the core the same, byte for byte.

use super::golden::{LATER, Line, SECTIONS, STACK, command, section, without_noise};
use super::rig::{Event, Rig};
use lvsd::route::PortId;

fn check(name: &str) -> (usize, Vec<String>) {
    let mut rig = Rig::golden();
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in section(name) {
        rig.advance_ms(1);
        match line {
            Line::Command(c) => command(&mut rig, &c),
            Line::Row { label, port, frame, out, stack } => {
                rows += 1;
                let got = rig.frame(port, &frame);
                let ok = match &got {
                    Event::Pass => stack,
                    Event::Drop(_) | Event::Queued => out.is_empty() && !stack,
                    Event::Out(frames) => {
                        let clean = |v: &[(PortId, Vec<u8>)]| -> Vec<_> {
                            v.iter().map(|(p, f)| (*p, without_noise(f))).collect()
                        };
                        clean(frames) == clean(&out)
                    }
                };
                if !ok {
                    let hex = |f: &[u8]| f.iter().take(120).map(|b| format!("{b:02x}")).collect::<String>();
                    let show = |v: &[(PortId, Vec<u8>)]| -> String {
                        v.iter().map(|(p, f)| format!("\n    {} {}", p.0, hex(f))).collect()
                    };
                    let got = match &got {
                        Event::Out(v) => show(v),
                        e => format!("{e:?}"),
                    };
                    wrong.push(format!("{label}\n  in {}\n  want{}\n  got {got}", hex(&frame), show(&out)));
                }
            }
        }
    }
    (rows, wrong)
}

#[test]
fn recorded_frames_come_out_the_same() {
    for name in SECTIONS {
        let (rows, wrong) = check(name);
        assert!(rows >= 9, "{name}: {rows} rows");
        assert!(wrong.is_empty(), "{name}: {} of {rows} rows\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Of the sections on tunnels only those rows are left out whose features come later: fragments of clients, SCTP, and
/// `pmtu_disc` 0. Rows that are too big and may be fragmented are not among them.
#[test]
fn rows_of_tunnels_that_are_left_out() {
    let golden = include_str!("../golden/d-packets.txt");
    for name in SECTIONS.iter().filter(|name| name.contains(" TUN ")) {
        let at = golden.find(&format!("\n## {name}\n")).unwrap();
        let (mut recorded, mut label) = (Vec::new(), "");
        for line in golden[at + 1..].lines().skip(1).take_while(|l| !l.starts_with("## ")) {
            match line.strip_prefix("# ") {
                Some(text) if !text.starts_with('$') => label = text,
                _ if line.starts_with("in  ") => recorded.push(label),
                _ => {}
            }
        }
        let mut left_out = recorded.clone();
        for line in section(name) {
            let Line::Row { label, .. } = line else { continue };
            let at = left_out.iter().position(|l| *l == label).unwrap_or_else(|| panic!("{name}: {label}"));
            left_out.remove(at);
        }
        let allowed = |label: &str| LATER[..3].contains(&label) || label.starts_with("pmtu_disc=0, ");
        assert!(left_out.iter().all(|l| allowed(l)), "{name}: {left_out:?}");
        assert!(left_out.len() <= 7 && recorded.len() > 2 * left_out.len(), "{name}: {left_out:?}");
        // None of the others was the stack's: everything else here is a tunnel's.
        assert!(!recorded.iter().any(|l| STACK.contains(l) || l.is_empty()), "{name}");
    }
}
