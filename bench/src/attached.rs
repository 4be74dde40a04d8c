//! BPF programs on interfaces: one that was left behind would spoil the measurement that comes after.

use std::error::Error;
use std::process::Command;

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface to look at (may be repeated)
    #[arg(long = "interface", required = true)]
    interfaces: Vec<String>,
}

pub(crate) fn run(o: &Options) -> Result<Value, Box<dyn Error>> {
    none(o.interfaces.iter().map(String::as_str))?;
    Ok(serde_json::json!({ "interfaces": o.interfaces, "attached": [] }))
}

/// An error that names what is attached to any of these interfaces of this namespace: XDP, tcx, or filters of tc.
pub(crate) fn none<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Result<(), Box<dyn Error>> {
    let mut found = Vec::new();
    for interface in interfaces {
        let link = json("ip", &["-j", "link", "show", "dev", interface])?;
        found.extend(xdp_of(&link).map(|what| format!("{interface}: {what}")));
        for (hook, name) in [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")] {
            // a kernel without tcx has no tcx programs
            let programs = SchedClassifier::query_tcx(interface, hook).map_or(Vec::new(), |(_, p)| p);
            found.extend(programs.iter().map(|p| format!("{interface}: tcx program {} at {name}", p.id())));
            let filters = json("tc", &["-j", "filter", "show", "dev", interface, name])?;
            if filters.as_array().is_some_and(|f| !f.is_empty()) {
                found.push(format!("{interface}: a filter of tc at {name}"));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("{} (left behind? 'ip link', 'tc filter' and 'bpftool net' show more)", found.join("; "))
        .into())
}

/// The XDP program in what `ip -j link show` says of an interface.
fn xdp_of(link: &Value) -> Option<String> {
    let xdp = link.get(0)?.get("xdp")?;
    Some(format!("XDP program {}", xdp["prog"]["id"]))
}

/// What a program of iproute2 says in JSON; nothing at all is null.
fn json(program: &str, words: &[&str]) -> Result<Value, Box<dyn Error>> {
    let out = Command::new(program).args(words).output().map_err(|e| format!("{program} (iproute2): {e}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{program} {}: {}", words.join(" "), said.trim()).into());
    }
    let text = String::from_utf8(out.stdout)?;
    if text.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_xdp_in_what_ip_says() {
        let bare = serde_json::json!([{ "ifindex": 2, "ifname": "d0" }]);
        let with = serde_json::json!([{ "ifname": "d0", "xdp": { "mode": 1, "prog": { "id": 7 } } }]);
        assert_eq!(xdp_of(&bare), None);
        assert_eq!(xdp_of(&with), Some("XDP program 7".to_owned()));
        assert_eq!(xdp_of(&Value::Null), None);
    }
}
