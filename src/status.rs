//! What `lvsctl status` shows of the process and its ports; rates are taken from samples of the last seconds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ipvs_netlink::{Overview, QueueStatus, Traffic};

use crate::engine::Surroundings;

/// Samples that are kept; with one a second, rates are means over as many seconds.
const SAMPLES: usize = 5;
/// A shorter time says nothing of a rate.
const SHORTEST: f64 = 0.5;

/// Reads the ports' queues, without rates.
pub type ReadQueues = Box<dyn Fn() -> Vec<QueueStatus> + Send + Sync>;

/// The counts of one queue at one time.
struct Counts {
    interface: String,
    queue: u32,
    traffic: Traffic,
}

/// The process, its data path, and samples of its ports' counters.
pub struct Status {
    started: Instant,
    overview: Overview,
    read: Option<ReadQueues>,
    samples: Mutex<VecDeque<(Instant, Vec<Counts>)>>,
    /// The last thing that went wrong with the process, and did not end it.
    complaint: Mutex<Option<String>>,
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("overview", &self.overview).finish_non_exhaustive()
    }
}

impl Status {
    /// Of this process, started now: which data path it has, why that one, how many workers, and how its queues are read.
    pub fn new(datapath: &str, reason: &str, workers: usize, read: Option<ReadQueues>) -> Status {
        let overview = Overview {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            datapath: datapath.to_owned(),
            reason: reason.to_owned(),
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
            ..Overview::default()
        };
        Status {
            started: Instant::now(),
            overview,
            read,
            samples: Mutex::default(),
            complaint: Mutex::default(),
        }
    }

    /// Has something told with the notices; it replaces what was told so before.
    pub fn complain(&self, what: String) {
        *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// Takes a sample of the ports' counters, and returns what was read; to be called once a second.
    pub fn sample(&self, now: Instant) -> Vec<QueueStatus> {
        let Some(read) = &self.read else { return Vec::new() };
        let queues = read();
        let counts = queues.iter().map(|q| Counts {
            interface: q.interface.clone(),
            queue: q.queue,
            traffic: q.traffic,
        });
        let sample = (now, counts.collect());
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        while samples.len() > SAMPLES {
            samples.pop_front();
        }
        queues
    }

    /// The queues as they are now, with rates.
    pub fn queues_at(&self, now: Instant) -> Vec<QueueStatus> {
        let Some(read) = &self.read else { return Vec::new() };
        let mut queues = read();
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((then, counts)) = samples.front() else { return queues };
        let seconds = now.saturating_duration_since(*then).as_secs_f64();
        for q in &mut queues {
            let old = counts.iter().find(|c| c.interface == q.interface && c.queue == q.queue);
            if let Some(old) = old.filter(|_| seconds >= SHORTEST) {
                set_rates(&mut q.traffic, &old.traffic, seconds);
            }
        }
        queues
    }
}

fn set_rates(now: &mut Traffic, then: &Traffic, seconds: f64) {
    let rate =
        |new: u64, old: u64, unit: f64| (new.saturating_sub(old) as f64 * unit / seconds).round() as u64;
    now.rx_pps = rate(now.rx_packets, then.rx_packets, 1.0);
    now.rx_bps = rate(now.rx_bytes, then.rx_bytes, 8.0);
    now.tx_pps = rate(now.tx_packets, then.tx_packets, 1.0);
    now.tx_bps = rate(now.tx_bytes, then.tx_bytes, 8.0);
}

impl Surroundings for Arc<Status> {
    fn overview(&self) -> Overview {
        Overview { uptime: self.started.elapsed().as_secs(), ..self.overview.clone() }
    }

    fn queues(&self) -> Vec<QueueStatus> {
        self.queues_at(Instant::now())
    }

    fn notices(&self) -> Vec<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_of_the_last_seconds_and_queues_are_told_apart() {
        let packets = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&packets);
        let read = move || {
            let n = count.load(Ordering::Relaxed);
            let queue = |interface: &str, queue, factor: u64| QueueStatus {
                interface: interface.into(),
                queue,
                traffic: Traffic {
                    rx_packets: n * factor,
                    rx_bytes: n * factor * 100,
                    tx_packets: n,
                    ..Traffic::default()
                },
                ..QueueStatus::default()
            };
            vec![queue("a", 0, 1), queue("a", 1, 2), queue("b", 0, 3)]
        };
        let status = Status::new("afpacket", "because", 2, Some(Box::new(read)));
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        assert!(status.queues_at(start).iter().all(|q| q.traffic.rx_pps == 0), "nothing is known yet");
        // 1000 a second for 20 seconds, then 10 a second for 10.
        for second in 0..30 {
            status.sample(at(second));
            packets.fetch_add(if second < 20 { 1000 } else { 10 }, Ordering::Relaxed);
            if second == 15 {
                let rows = status.queues_at(at(16));
                let rates: Vec<_> = rows.iter().map(|q| (q.traffic.rx_pps, q.traffic.rx_bps)).collect();
                assert_eq!(rates, [(1000, 800_000), (2000, 1_600_000), (3000, 2_400_000)]);
                assert!(rows.iter().all(|q| q.traffic.tx_pps == 1000 && q.traffic.tx_bps == 0));
            }
        }
        assert_eq!(status.queues_at(at(30))[2].traffic.rx_pps, 30, "the old rate is forgotten");
        assert!(status.samples.lock().unwrap().len() <= SAMPLES);
    }
}
