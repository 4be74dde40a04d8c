//! The file's format: sections, commands, frames.

use std::path::Path;

/// The wire a frame is seen on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

#[derive(Debug)]
pub(crate) enum Row {
    /// A command that was run between frames.
    Command(String),
    /// A frame that went in, and what came out.
    Frames { title: String, side: Side, frame: Vec<u8>, out: Vec<(Side, Vec<u8>)> },
}

/// All rows of the section with this name.
pub(crate) fn section(name: &str) -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/d-packets.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().skip_while(|l| l.strip_prefix("## ") != Some(name)).skip(1);
    let mut rows = Vec::new();
    let mut title = String::new();
    for line in lines.take_while(|l| !l.starts_with("## ")) {
        if let Some(command) = line.strip_prefix("# $ ") {
            rows.push(Row::Command(command.into()));
        } else if let Some(text) = line.strip_prefix("# ") {
            title = text.into();
        } else if let Some(rest) = line.strip_prefix("in  ") {
            let (side, frame) = side_and_frame(rest);
            rows.push(Row::Frames { title: title.clone(), side, frame, out: Vec::new() });
        } else if let Some(rest) = line.strip_prefix("out ") {
            let Some(Row::Frames { out, .. }) = rows.last_mut() else { panic!("{line}: no frame before") };
            if rest != "nothing" {
                out.push(side_and_frame(rest));
            }
        } else {
            assert!(line.is_empty(), "{line}: not understood");
        }
    }
    assert!(!rows.is_empty(), "no section {name}");
    rows
}

fn side_and_frame(text: &str) -> (Side, Vec<u8>) {
    let (side, digits) = text.split_once(' ').expect("side and frame");
    let side = match side {
        "c1" => Side::Client,
        "s1" => Side::Server,
        other => panic!("side {other}"),
    };
    let digit = |c: u8| char::from(c).to_digit(16).expect("a hex digit") as u8;
    (side, digits.trim().as_bytes().chunks(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Copies what the kernel draws at random: flow labels of packets that it makes (they have label 0 in ours), and IPv6 fragments'
/// identifications.
pub(crate) fn copy_noise(ours: &mut [u8], theirs: &[u8]) {
    const HEADER: usize = 14;
    if ours.len() != theirs.len() || ours.len() < HEADER + 48 || ours[HEADER] >> 4 != 6 {
        return;
    }
    let made = matches!(ours[HEADER + 6], 58 | 6) && ours[HEADER + 7] == 64;
    if made && ours[HEADER + 1..HEADER + 4] == [0; 3] {
        let label = theirs[HEADER + 1] & 15;
        ours[HEADER + 1] |= label;
        ours[HEADER + 2..HEADER + 4].copy_from_slice(&theirs[HEADER + 2..HEADER + 4]);
    }
    if ours[HEADER + 6] == 44 {
        ours[HEADER + 44..HEADER + 48].copy_from_slice(&theirs[HEADER + 44..HEADER + 48]);
    }
}
