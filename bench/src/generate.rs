//! A generator without hardware: live frames of `BPF_PROG_TEST_RUN`, redirected out of an interface.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use aya::EbpfLoader;
use aya::maps::Array;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::{Mac, attached};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generate.bpf.o"));

/// Bytes of the shortest frame of IPv4, without frame check sequence.
const SHORTEST: usize = 60;
/// Bytes that the program writes, of IPv4 and of IPv6: headers, and what is left of the word.
const HEADERS: [usize; 2] = [60, 64];
/// Frames in one bulk redirect.
const BATCH: u32 = 64;
/// Frames in one system call. Each call sets up and waits for a page pool, so few large ones are far faster.
const REPEAT: u32 = 1 << 19;
/// The same where a rate is kept for a time: most runs of the program are spent waiting, 30 ns each or so.
const PACED: u32 = 1 << 22;

/// What the program keeps: frames sent; two words of its own; when it sent the first and the last frame (nanoseconds of the
/// monotonic clock; the last only with a rate or a count).
type State = [u64; 7];

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
    /// First source address [default: 198.18.0.1 or 2001:2::1]
    #[arg(long)]
    src: Option<IpAddr>,
    /// Destination address
    #[arg(long)]
    dst: IpAddr,
    /// Bytes of a frame without frame check sequence; IPv6 has 64 at least
    #[arg(long, default_value_t = SHORTEST as u32, value_parser = clap::value_parser!(u32).range(SHORTEST as i64..=1514))]
    size: u32,
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
    /// Frames of a rate that may be sent late, one after the other, by who was kept from sending
    #[arg(long, default_value_t = 256)]
    burst: u64,
}

pub(crate) fn run(o: &Options) -> Result<serde_json::Value, Box<dyn Error>> {
    attached::none([o.interface.as_str()])?;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let ifindex = netdevice::name_to_index(&any, &o.interface)
        .map_err(|_| format!("interface {}: there is no such interface", o.interface))?;
    let Template { frame, ip_sum, l4_sum, source } = template(o)?;
    let v6 = o.dst.is_ipv6();
    let mut words = [0u32; HEADERS[1] / 4];
    for (word, bytes) in words.iter_mut().zip(frame.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut ebpf = EbpfLoader::new()
        .override_global("frame", &words, true)
        .override_global("ip_sum", &ip_sum, true)
        .override_global("l4_sum", &l4_sum, true)
        .override_global("v6", &u32::from(v6), true)
        .override_global("tcp", &u32::from(o.syn), true)
        .override_global("source", &source, true)
        .override_global("flows", &o.flows, true)
        .override_global("strides", &strides(o.flows), true)
        .override_global("ifindex", &ifindex, true)
        .override_global("limit", &o.count, true)
        .override_global("rate", &o.rate, true)
        .override_global("burst", &o.burst, true)
        .load(OBJECT)?;
    let program: &mut Xdp = ebpf.program_mut("generate").ok_or("no program in the object")?.try_into()?;
    program.load()?;
    let program: &Xdp = ebpf.program("generate").ok_or("no program in the object")?.try_into()?;
    let state: Array<_, State> = Array::try_from(ebpf.map("state").ok_or("no map in the object")?)?;
    let sent = || state.get(&0, 0).map(|[sent, ..]| sent);

    let repeat = if o.rate == 0 || o.count > 0 { REPEAT } else { PACED };
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
    let [sent, _, _, first, last, ..] = state.get(&0, 0)?;
    // between the first and the last frame, where that is known
    let seconds = if last > first { (last - first) as f64 / 1e9 } else { elapsed.as_secs_f64() };
    Ok(serde_json::json!({
        "sent": sent, "seconds": seconds, "pps": sent as f64 / seconds, "flows": o.flows, "interface": o.interface,
        "first_ns": first,
    }))
}

/// The frame without what differs between flows; the sums of its IPv4 header and of what UDP's or TCP's checksum covers; and the
/// last 32 bits of the first source address.
struct Template {
    frame: Vec<u8>,
    ip_sum: u32,
    l4_sum: u32,
    source: u32,
}

fn template(o: &Options) -> Result<Template, Box<dyn Error>> {
    let v6 = o.dst.is_ipv6();
    let mut f = vec![0u8; (o.size as usize).max(HEADERS[usize::from(v6)])];
    let l4 = if v6 { 54 } else { 34 };
    let l4_len = (f.len() - l4) as u16;
    let proto = if o.syn { 6 } else { 17 };
    f[..6].copy_from_slice(&o.dst_mac.0);
    f[6..12].copy_from_slice(&o.src_mac.0);
    // pseudo-header: addresses, protocol, length
    let mut l4_sum = u32::from(proto) + u32::from(l4_len);
    let default = if v6 { "2001:2::1" } else { "198.18.0.1" }.parse()?;
    let source = match (o.src.unwrap_or(default), o.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            f[12..14].copy_from_slice(&[8, 0]);
            f[14] = 0x45;
            f[16..18].copy_from_slice(&(20 + l4_len).to_be_bytes());
            f[22..24].copy_from_slice(&[64, proto]);
            f[30..34].copy_from_slice(&dst.octets());
            l4_sum += sum(&dst.octets());
            u32::from(src)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            f[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            f[18..20].copy_from_slice(&l4_len.to_be_bytes());
            f[20..22].copy_from_slice(&[proto, 64]);
            let [src @ .., a, b, c, d] = src.octets();
            f[22..34].copy_from_slice(&src);
            f[38..54].copy_from_slice(&dst.octets());
            l4_sum += sum(&src) + sum(&dst.octets());
            u32::from_be_bytes([a, b, c, d])
        }
        _ => return Err("--src and --dst are of different families".into()),
    };
    f[l4 + 2..l4 + 4].copy_from_slice(&o.port.to_be_bytes());
    if o.syn {
        if v6 {
            return Err("--syn is for IPv4 only".into());
        }
        // sequence number 1, header of 20 bytes, SYN, a window; the rest is data
        f[41] = 1;
        f[46..50].copy_from_slice(&[0x50, 2, 0xff, 0xff]);
    } else {
        f[l4 + 4..l4 + 6].copy_from_slice(&l4_len.to_be_bytes());
        f[l4 + 8..].iter_mut().zip(b"lvsd bench payload".iter().cycle()).for_each(|(to, byte)| *to = *byte);
    }
    let ip_sum = if v6 { 0 } else { sum(&f[14..34]) };
    l4_sum += sum(&f[l4..]);
    // long frames: small enough again for the program to add to
    while l4_sum >> 16 != 0 {
        l4_sum = (l4_sum & 0xffff) + (l4_sum >> 16);
    }
    Ok(Template { frame: f, ip_sum, l4_sum, source })
}

/// Steps from one flow to the next that come by every flow once in a round, one for each of eight rounds. The first is 1.
fn strides(flows: u32) -> [u32; 8] {
    let parts = [0.0, 0.618_034, 0.381_966, 0.723_607, 0.276_393, 0.553_574, 0.839_287, 0.160_713];
    parts.map(|part| {
        let from = ((f64::from(flows) * part) as u32).max(1);
        (from..flows).find(|stride| gcd(*stride, flows) == 1).unwrap_or(1 % flows)
    })
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Sum of big-endian 16-bit words.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| u32::from(b))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_round_has_every_flow_once_in_an_order_of_its_own() {
        for flows in [1, 2, 3, 30_000, 100_003] {
            let mut orders = HashSet::new();
            for stride in strides(flows) {
                let order: Vec<u32> = (0..flows)
                    .scan(0, |at, _| {
                        *at = (*at + stride) % flows;
                        Some(*at)
                    })
                    .collect();
                assert_eq!(order.iter().collect::<HashSet<_>>().len(), flows as usize, "{flows} by {stride}");
                orders.insert(stride);
            }
            assert!(flows < 30_000 || orders.len() == 8);
            assert_eq!(strides(flows)[0], 1 % flows);
        }
    }
}
