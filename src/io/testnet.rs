//! Network namespaces for tests: made by a thread, gone with the last descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use super::TierPlan;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace of this test's own.
pub(crate) struct Net {
    fd: OwnedFd,
}

/// Why namespace tests cannot run here, if so. With `CI=true` that is a failure.
pub(crate) fn cannot() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    let reason = "needs root (network namespaces and BPF)";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
    eprintln!("skipped: {reason}");
    true
}

/// A tier that is pinned nowhere.
pub(crate) fn plan() -> TierPlan<'static> {
    TierPlan { workers: 1, pin_dir: None, successor: false }
}

impl Net {
    pub(crate) fn new() -> Net {
        let fd = std::thread::spawn(|| {
            // SAFETY: only this thread's network namespace changes, and it ends right away.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            std::fs::File::open("/proc/thread-self/ns/net").unwrap().into()
        })
        .join()
        .unwrap();
        let net = Net { fd };
        net.sh("ip link set lo up");
        net
    }

    /// Runs a function in the namespace, on a thread of its own.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|s| {
            s.spawn(|| {
                self.enter();
                f()
            })
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }

    /// Moves the calling thread into the namespace for good.
    pub(crate) fn enter(&self) {
        use std::os::fd::AsFd;
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs a command line in the namespace and returns what it prints; panics where it fails.
    pub(crate) fn sh(&self, line: &str) -> String {
        let out = self.run(|| Command::new("sh").arg("-ec").arg(line).output().unwrap());
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{line}: {}{text}", String::from_utf8_lossy(&out.stderr));
        text
    }

    /// What `ip link set … netns` takes for this namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Links this namespace's `here` (address, prefix) with `there` of another one by a veth pair.
    pub(crate) fn link(&self, here: (&str, &str), other: &Net, there: (&str, &str)) {
        self.sh(&format!("ip link add {} type veth peer name {} netns {}", here.0, there.0, other.path()));
        for (net, (device, address)) in [(self, here), (other, there)] {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            net.sh(&format!("ip addr add {address} dev {device} {nodad}; ip link set {device} up"));
        }
        for (net, (device, _)) in [(self, here), (other, there)] {
            until("the carrier", || net.sh(&format!("ip -o link show dev {device}")).contains("state UP"));
        }
    }

    pub(crate) fn mac(&self, device: &str) -> [u8; 6] {
        let text = self.sh(&format!("ip -o link show dev {device}"));
        let text = text.split("link/ether ").nth(1).and_then(|t| t.split(' ').next()).unwrap().to_owned();
        let bytes: Vec<u8> = text.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
        bytes.try_into().unwrap()
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "waited 10 s for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
