//! Programs and network namespaces, each ended by its guard, and by the kernel where this process is killed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::until;
use crate::Failure;

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A directory of its own; removed on drop.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> Result<Directory, Failure> {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lvsd-bench-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Directory(path))
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left in the temporary directory is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command that dies with the thread that starts it. To be started from the main thread only.
fn mortal(program: &str) -> Command {
    let mut c = Command::new("setpriv");
    c.args(["--pdeathsig", "KILL", "--", program]).stdin(Stdio::null());
    c
}

/// Runs a command to its end; its standard output.
pub(super) fn output(command: &mut Command) -> Result<String, Failure> {
    let out = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if !out.status.success() {
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        return Err(format!("{}: {}: {}", words.join(" "), out.status, said.trim()).into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// A running program, with its standard output in a file; killed on drop.
pub(super) struct Running {
    child: Child,
    name: String,
    out: PathBuf,
    errors: PathBuf,
}

impl Running {
    pub(super) fn start(
        command: &mut Command,
        name: &str,
        directory: &Directory,
    ) -> Result<Running, Failure> {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let (out, errors) =
            (directory.join(&format!("{name}-{n}.out")), directory.join(&format!("{name}-{n}.err")));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&errors)?)
            .spawn()
            .map_err(|e| format!("starting {name}: {e}"))?;
        Ok(Running { child, name: name.to_owned(), out, errors })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default().trim().to_owned()
    }

    /// An error if it has ended.
    pub(super) fn must_run(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("{} ended: {status}: {}", self.name, self.said()).into()),
            None => Ok(()),
        }
    }

    /// Something if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<()>, Failure> {
        Ok(self.child.try_wait()?.map(|_| ()))
    }

    /// Waits for its end, which must be a good one; its standard output.
    pub(super) fn finish(mut self) -> Result<String, Failure> {
        let status = until(&format!("the end of {}", self.name), || Ok(self.child.try_wait()?))?;
        if !status.success() {
            return Err(format!("{}: {status}: {}", self.name, self.said()).into());
        }
        Ok(std::fs::read_to_string(&self.out)?)
    }

    /// Sends SIGTERM and waits for its end, which must be a good one.
    pub(super) fn terminate(self) -> Result<(), Failure> {
        let pid = Pid::from_raw(self.child.id().try_into()?).ok_or("a process without number")?;
        kill_process(pid, Signal::TERM)?;
        self.finish().map(|_| ())
    }

    /// Processor time that it has used in user and kernel mode.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let ticks = cpu_ticks(&text).ok_or("no processor times in /proc/PID/stat")?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// `utime` + `stime`. The command's name, in parentheses before them, may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let at = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(at(11)? + at(12)?)
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network namespace without a name: it lives as long as a program that sleeps in it, and nothing is left of it.
pub(super) struct Net {
    holder: Child,
}

impl Net {
    pub(super) fn new() -> Result<Net, Failure> {
        let holder = mortal("unshare")
            .args(["--net", "--", "sleep", "infinity"])
            .spawn()
            .map_err(|e| format!("starting setpriv (package util-linux): {e}"))?;
        let mut net = Net { holder };
        let comm = format!("/proc/{}/comm", net.holder.id());
        until("a new network namespace", || {
            if let Some(status) = net.holder.try_wait()? {
                return Err(format!("unshare --net: {status}").into());
            }
            Ok((std::fs::read_to_string(&comm)?.trim() == "sleep").then_some(()))
        })?;
        net.set("net.ipv4.conf.all.rp_filter", "0")?;
        net.set("net.ipv4.conf.default.rp_filter", "0")?;
        net.ip("link set lo up")?;
        Ok(net)
    }

    /// What `ip link … netns` takes for it.
    pub(super) fn pid(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// Moves the calling thread into it, for good.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        let file = File::open(self.path())?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// A command that will run inside.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut c = mortal("nsenter");
        c.arg(format!("--net={}", self.path())).args(["--", program]);
        c
    }

    /// As [`Net::command`], on one processor.
    pub(super) fn command_on(&self, cpu: Option<usize>, program: &str) -> Command {
        let Some(cpu) = cpu else { return self.command(program) };
        let mut c = self.command("taskset");
        c.args(["-c", &cpu.to_string(), program]);
        c
    }

    /// Runs a program inside, its words split at blanks; what it says.
    pub(super) fn run(&self, line: &str) -> Result<String, Failure> {
        let mut words = line.split_whitespace();
        let program = words.next().ok_or("an empty command")?;
        output(self.command(program).args(words))
    }

    /// Runs `ip` commands inside, one a line.
    pub(super) fn ip(&self, lines: &str) -> Result<(), Failure> {
        lines.lines().map(str::trim).filter(|l| !l.is_empty()).try_for_each(|l| {
            self.run(&format!("ip {l}"))?;
            Ok(())
        })
    }

    /// Sets a sysctl inside.
    pub(super) fn set(&self, key: &str, value: &str) -> Result<(), Failure> {
        output(self.command("sysctl").args(["-qw", &format!("{key}={value}")])).map(|_| ())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Ended already: then the namespace is gone too.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("7 (a"), None);
    }
}
