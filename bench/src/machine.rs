//! What the machine's processors did meanwhile: by the figures of `/proc/stat`.

use serde_json::{Value, json};

use crate::Failure;

/// Seconds of all processors together: since boot, or between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// At work, in whatever program or interrupt.
    pub(crate) busy: f64,
    /// Taken away by the hypervisor.
    pub(crate) stolen: f64,
    /// With nothing to do.
    pub(crate) idle: f64,
}

impl Usage {
    pub(crate) fn now() -> Result<Usage, Failure> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Usage::parse(&text, ticks).ok_or_else(|| "no processor times in /proc/stat".into())
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)).
    fn parse(text: &str, ticks: f64) -> Option<Usage> {
        let mut words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let mut n = [0.0; 8];
        for n in &mut n {
            *n = words.next()?.parse::<f64>().ok()?;
        }
        let busy = n[0] + n[1] + n[2] + n[5] + n[6];
        Some(Usage { busy: busy / ticks, stolen: n[7] / ticks, idle: (n[3] + n[4]) / ticks })
    }

    /// What was used since an earlier look.
    pub(crate) fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            busy: self.busy - earlier.busy,
            stolen: self.stolen - earlier.stolen,
            idle: self.idle - earlier.idle,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let cut = |x: f64| (x * 100.0).round() / 100.0;
        json!({
            "busy_cpu_seconds": cut(self.busy), "stolen_cpu_seconds": cut(self.stolen),
            "idle_cpu_seconds": cut(self.idle),
        })
    }
}

/// Processor, their number, and kernel.
pub(crate) fn description() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map(|m| m.1);
    let number = std::thread::available_parallelism().map_or(0, usize::from);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // what the builder of a kernel added says nothing
    let release: String = release.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    format!("{}, {number} processors, Linux {release}", model.unwrap_or("processor unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_first_line() {
        let text = "cpu  100 10 200 5000 50 1 9 30 0 0\ncpu0 1 2 3 4 5 6 7 8\n";
        let u = Usage::parse(text, 100.0).expect("good");
        assert_eq!(u, Usage { busy: 3.2, stolen: 0.3, idle: 50.5 });
        assert_eq!(u.since(&u).busy, 0.0);
        assert_eq!(Usage::parse("cpu 1 2", 100.0), None);
    }
}
