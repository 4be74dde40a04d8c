//! A generator without hardware: live frames of `BPF_PROG_TEST_RUN`, redirected out of an interface.

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use aya::EbpfLoader;
use aya::maps::Array;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::{Mac, attached};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generate.bpf.o"));

/// Bytes of each frame, without frame check sequence.
const FRAME: usize = 60;
/// Frames in one bulk redirect.
const BATCH: u32 = 64;
/// Frames in one system call. Each call sets up and waits for a page pool, so few large ones are far faster.
const REPEAT: u32 = 1 << 19;

/// What the program keeps: frames sent; two words of its own; when it sent the first and the last frame (nanoseconds of the
/// monotonic clock; the last only with a rate or a count).
type State = [u64; 5];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface to send by. Of a veth pair the other end needs NAPI (`ethtool -K DEV gro on`) or an XDP program.
    #[arg(long)]
    interface: String,
    /// Destination MAC address
    #[arg(long)]
    dst_mac: Mac,
    /// Source MAC address
    #[arg(long)]
    src_mac: Mac,
    /// First source address
    #[arg(long, default_value = "198.18.0.1")]
    src: Ipv4Addr,
    /// Destination address
    #[arg(long)]
    dst: Ipv4Addr,
    /// Destination port
    #[arg(long, default_value_t = 53)]
    port: u16,
    /// Flows, told apart by source port (50,000 an address) and address
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    flows: u32,
    /// Stop after this many seconds (rounded up to a whole batch of frames)
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// TCP segments with SYN instead of UDP
    #[arg(long)]
    syn: bool,
    /// Stop after exactly this many frames
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// Frames a second; 0: as many as go
    #[arg(long, default_value_t = 0)]
    rate: u64,
}

pub(crate) fn run(o: &Options) -> Result<serde_json::Value, Box<dyn Error>> {
    attached::none([o.interface.as_str()])?;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let ifindex = netdevice::name_to_index(&any, &o.interface)
        .map_err(|_| format!("interface {}: there is no such interface", o.interface))?;
    let (frame, ip_sum, l4_sum) = template(o);
    let mut words = [0u32; FRAME / 4];
    for (word, bytes) in words.iter_mut().zip(frame.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let source = u32::from(o.src);
    let mut ebpf = EbpfLoader::new()
        .override_global("frame", &words, true)
        .override_global("ip_sum", &ip_sum, true)
        .override_global("l4_sum", &l4_sum, true)
        .override_global("tcp", &u32::from(o.syn), true)
        .override_global("source", &source, true)
        .override_global("flows", &o.flows, true)
        .override_global("ifindex", &ifindex, true)
        .override_global("limit", &o.count, true)
        .override_global("rate", &o.rate, true)
        .load(OBJECT)?;
    let program: &mut Xdp = ebpf.program_mut("generate").ok_or("no program in the object")?.try_into()?;
    program.load()?;
    let program: &Xdp = ebpf.program("generate").ok_or("no program in the object")?.try_into()?;
    let state: Array<_, State> = Array::try_from(ebpf.map("state").ok_or("no map in the object")?)?;
    let sent = || state.get(&0, 0).map(|[sent, ..]| sent);

    // with a rate most runs are spent waiting, so a call must be short enough to notice the end of the time
    let repeat = if o.rate == 0 || o.count > 0 { REPEAT } else { REPEAT / 8 };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(o.seconds) && (o.count == 0 || sent()? < o.count) {
        program.test_run(TestRunOptions {
            data_in: Some(&frame),
            repeat,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::new()
        })?;
    }
    let elapsed = start.elapsed();
    let [sent, _, _, first, last] = state.get(&0, 0)?;
    // between the first and the last frame, where that is known
    let seconds = if last > first { (last - first) as f64 / 1e9 } else { elapsed.as_secs_f64() };
    Ok(serde_json::json!({
        "sent": sent, "seconds": seconds, "pps": sent as f64 / seconds, "flows": o.flows, "interface": o.interface,
        "first_ns": first,
    }))
}

/// The frame without what differs between flows, and the sums of its IP header and of what UDP's or TCP's checksum covers.
fn template(o: &Options) -> ([u8; FRAME], u32, u32) {
    let mut f = [0u8; FRAME];
    f[..6].copy_from_slice(&o.dst_mac.0);
    f[6..12].copy_from_slice(&o.src_mac.0);
    f[12..14].copy_from_slice(&[8, 0]);
    let (ip_len, l4_len) = ((FRAME - 14) as u16, (FRAME - 34) as u16);
    let proto = if o.syn { 6 } else { 17 };
    f[14] = 0x45;
    f[16..18].copy_from_slice(&ip_len.to_be_bytes());
    f[22..24].copy_from_slice(&[64, proto]);
    f[30..34].copy_from_slice(&o.dst.octets());
    f[36..38].copy_from_slice(&o.port.to_be_bytes());
    if o.syn {
        // sequence number 1, header of 20 bytes, SYN, a window; 6 bytes of data
        f[41] = 1;
        f[46..50].copy_from_slice(&[0x50, 2, 0xff, 0xff]);
    } else {
        f[38..40].copy_from_slice(&l4_len.to_be_bytes());
        f[42..].copy_from_slice(b"lvsd bench payload");
    }
    let ip = sum(&f[14..34]);
    // pseudo-header: addresses, protocol, length
    let l4 = sum(&f[30..34]) + u32::from(proto) + u32::from(l4_len) + sum(&f[34..]);
    (f, ip, l4)
}

/// Sum of big-endian 16-bit words.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| u32::from(b))).sum()
}
