//! What the rings can do with no logic in them: the yardstick for `rings.*` rows; and what XDP can do, for `tier.dr.*`.
//!
//! The port is lvsd's own, with the same BPF classifier at socket and ingress hook and the same look-up of one service in it.
//! The handler writes the two MAC addresses and nothing else.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::EbpfLoader;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use lvsd::conn::Config;
use lvsd::engine::{Frame, FrameHandler, Out, Verdict};
use lvsd::io::afpacket::{self, AfPacketConfig, QueueStats};
use lvsd::io::afxdp::{self, AfXdpConfig};
use lvsd::io::rings::Running;
use lvsd::io::{BpfTables, TableShape};
use lvsd::route::PortId;
use lvsd::time::Now;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::{Datapath, Mac, attached};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface that frames come in by
    #[arg(long)]
    input: String,
    /// Interface that they leave by
    #[arg(long)]
    output: String,
    /// Destination MAC address to write
    #[arg(long)]
    dst_mac: Mac,
    /// Source MAC address to write
    #[arg(long)]
    src_mac: Mac,
    /// Address of the service that is taken
    #[arg(long)]
    address: IpAddr,
    /// IP protocol of the service
    #[arg(long, default_value_t = 17)]
    protocol: u8,
    /// Port of the service
    #[arg(long, default_value_t = 53)]
    port: u16,
    /// Kind of ring
    #[arg(long, value_enum, default_value_t = Datapath::Afpacket)]
    datapath: Datapath,
    /// Threads
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Seconds to run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

struct Switch {
    macs: [u8; 12],
}

impl FrameHandler for Switch {
    fn batch(&mut self, _: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>) {
        for frame in frames {
            if let Some(macs) = frame.bytes_mut().get_mut(..12) {
                macs.copy_from_slice(&self.macs);
            }
            verdicts.push(Verdict::Forward(PortId(1)));
        }
    }
    fn drain_outbox(&mut self, _: &mut dyn FnMut(Out)) {}
    fn tick(&mut self, _: Now) {}
    fn next_deadline(&self, now: Now) -> Now {
        Now(now.0.saturating_add(1_000_000_000))
    }
}

static REDIRECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

/// Redirects whatever IP packet comes in, at XDP.
fn redirect(o: &Options, bytes: &[u8; 12]) -> Result<serde_json::Value, Box<dyn Error>> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let ifindex = netdevice::name_to_index(&any, &o.output)?;
    let mut macs = [0u16; 6];
    for (word, pair) in macs.iter_mut().zip(bytes.chunks_exact(2)) {
        *word = u16::from_ne_bytes([pair[0], pair[1]]);
    }
    let mut ebpf = EbpfLoader::new()
        .override_global("macs", &macs, true)
        .override_global("ifindex", &ifindex, true)
        .load(REDIRECT)?;
    let program: &mut Xdp = ebpf.program_mut("redirect").ok_or("no program in the object")?.try_into()?;
    program.load()?;
    program.attach(&o.input, XdpMode::Driver)?;
    std::thread::sleep(Duration::from_secs(o.seconds));
    Ok(serde_json::json!({ "input": o.input, "output": o.output }))
}

pub(crate) fn run(o: &Options) -> Result<serde_json::Value, Box<dyn Error>> {
    attached::none([o.input.as_str(), o.output.as_str()])?;
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&o.dst_mac.0);
    macs[6..].copy_from_slice(&o.src_mac.0);
    if o.datapath == Datapath::Xdp {
        return redirect(o, &macs);
    }
    let config = Config { max_v4: 1000, max_v6: 1000, hash_key: [1, 2], shards: 1 };
    let tables = Arc::new(BpfTables::create(TableShape::of(&config), 0x1bad_babe)?);
    tables.service_added(o.address.into(), o.protocol, o.address.into(), o.port);
    let interfaces = vec![(PortId(0), o.input.clone()), (PortId(1), o.output.clone())];
    let make = |_| -> Box<dyn FrameHandler + Send> { Box::new(Switch { macs }) };
    let running: Box<dyn Running> = match o.datapath {
        Datapath::Afpacket => {
            Box::new(afpacket::start(AfPacketConfig::new(interfaces, o.workers), &tables, || Ok(make))?)
        }
        Datapath::Tc | Datapath::Xdp => {
            return Err(format!("--datapath {}: there is no bare forwarder for it", o.datapath).into());
        }
        Datapath::Afxdp => {
            Box::new(afxdp::start(AfXdpConfig::new(interfaces, o.workers), &tables, || Ok(make))?)
        }
    };
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(o.seconds));
    let mut sum = QueueStats::default();
    for port in running.stats() {
        port.queues.iter().for_each(|q| sum += *q);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    drop(running);
    Ok(serde_json::json!({
        "rx": sum.rx_frames, "rx_ring_full": sum.rx_ring_full, "tx": sum.tx_frames, "tx_full": sum.tx_full,
        "seconds": seconds, "pps": sum.tx_frames as f64 / seconds,
        "cpu_seconds": cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        "classifier": "lvsd's, one service",
    }))
}
