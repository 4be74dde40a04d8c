//! Network namespaces for tests: made by a thread, gone with the last descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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

/// A name that nothing else has: interfaces of tests are told apart by process and count.
pub(crate) fn name(kind: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{kind}{:x}-{}", std::process::id() & 0xfffff, COUNT.fetch_add(1, Ordering::Relaxed))
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

/// A BPF array's words, mapped for the rest of the process's life.
pub(crate) fn words(fd: std::os::fd::BorrowedFd<'_>, bytes: usize) -> &'static [std::sync::atomic::AtomicU64] {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: the mapping is that long and stays; it is only used as atomic words.
    unsafe { std::slice::from_raw_parts(at.cast(), bytes / 8) }
}
