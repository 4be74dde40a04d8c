//! What the scenarios need of the machine, and what happens where it is missing.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::netns::{Netns, run};

/// Programs that scenarios run, from packages that `scripts/setup` installs.
const PROGRAMS: [&str; 11] = [
    "ip",
    "tc",
    "nsenter",
    "setpriv",
    "ethtool",
    "nginx",
    "curl",
    "traceroute",
    "ping",
    "sysctl",
    "sha256sum",
];

/// Whether a test can run here. If not: prints why and returns false, or with `CI=true` fails.
pub(crate) fn ready() -> bool {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    decide(READY.get_or_init(look))
}

/// As [`ready`], and the machine has nftables with NAT: only the harness's own tests need that.
pub(crate) fn nft_ready() -> bool {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    ready() && decide(READY.get_or_init(look_for_nft))
}

/// Whether the machine has a program that only some tests need.
pub(crate) fn has(program: &'static str) -> bool {
    decide(&find(program).map(|_| ()))
}

fn decide(found: &Result<(), String>) -> bool {
    let Err(why) = found else { return true };
    assert!(!in_ci(), "cannot run here, and CI=true allows no skipping: {why}");
    println!("SKIP: {why}");
    false
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|v| v == "true")
}

fn look() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".into());
    }
    for p in PROGRAMS {
        find(p)?;
    }
    let name = format!("lvst-{}-probe", std::process::id());
    attempt(&format!("ip netns add {name}"))?;
    let result = [
        format!("ip -n {name} link add v0 type veth peer name v1"),
        format!("ip -n {name} link add b0 type bridge"),
        format!("ip netns exec {name} tc qdisc add dev v0 clsact"),
        format!("ip -n {name} addr add 2001:db8::1/64 dev v0 nodad"),
    ]
    .iter()
    .try_for_each(|line| attempt(line));
    attempt(&format!("ip netns del {name}"))?;
    result?;
    raise_file_limit()
}

fn look_for_nft() -> Result<(), String> {
    find("nft")?;
    let ns = Netns::new("probe");
    let rules = "add table ip t; add chain ip t c { type nat hook prerouting priority -100; }";
    let out = ns.command("nft").arg(rules).output().map_err(|e| e.to_string())?;
    if out.status.success() { Ok(()) } else { Err("this kernel has no nftables NAT".into()) }
}

fn find(program: &str) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').chain(["/usr/sbin", "/sbin"]).any(|d| {
        let file = Path::new(d).join(program);
        file.is_file()
    });
    if found { Ok(()) } else { Err(format!("{program} is missing; scripts/setup installs it")) }
}

fn attempt(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let out = Command::new(words.next().unwrap_or_default())
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{line}: {e}"))?;
    if out.status.success() {
        Ok(())
    } else {
        Err(format!("{line}: {}", String::from_utf8_lossy(&out.stderr).trim()))
    }
}

/// 2,000 connections need more descriptors than some shells give.
fn raise_file_limit() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = 16_384;
    if now.current.is_some_and(|c| c < wanted) {
        let maximum = now.maximum.map(|m| m.max(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
            .map_err(|e| format!("cannot raise the limit of open files to {wanted}: {e}"))?;
    }
    Ok(())
}

/// The daemon under test: the one that Cargo built, or what the environment variable `LVSD` names.
pub(crate) fn lvsd() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| std::env::var("LVSD").unwrap_or_else(|_| env!("CARGO_BIN_EXE_lvsd").to_string()))
}

/// The control tool under test: what the environment variable `LVSCTL` names, or the one beside the daemon. That is built
/// first: it belongs to another package, so Cargo does not do it for this one's tests.
pub(crate) fn lvsctl() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Ok(path) = std::env::var("LVSCTL") {
            return path.into();
        }
        let lvsd = Path::new(env!("CARGO_BIN_EXE_lvsd"));
        let out = lvsd.parent().expect("a directory");
        let profile = if out.ends_with("release") { "release" } else { "test" };
        run(Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--locked",
                "--package",
                "lvsctl",
                "--profile",
                profile,
                "--target-dir",
            ])
            .arg(out.parent().expect("a target directory"))
            .current_dir(env!("CARGO_MANIFEST_DIR")));
        lvsd.with_file_name("lvsctl")
    })
}
