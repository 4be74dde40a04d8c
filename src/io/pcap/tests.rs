use super::*;

/// Swaps the MACs of frames whose first byte is even, passes those with 1, drops those with 3, keeps those with 5 for the
/// next tick, leaves those with 7 without verdict. Ticks are due each second.
#[derive(Default)]
struct Toy {
    kept: Vec<Vec<u8>>,
    outbox: Vec<Out>,
    ticks: Vec<u64>,
    next: u64,
}

const SECOND: u64 = 1_000_000_000;

impl FrameHandler for Toy {
    fn batch(&mut self, now: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>) {
        self.next = now.0 / SECOND * SECOND + SECOND;
        for f in frames {
            match f.bytes()[0] {
                1 => verdicts.push(Verdict::Pass),
                3 => verdicts.push(Verdict::Drop(crate::engine::Reason::NoDestination)),
                5 => {
                    self.kept.push(f.bytes().to_vec());
                    verdicts.push(Verdict::Queued);
                }
                7 => {}
                _ => {
                    f.start -= 4;
                    f.bytes_mut()[..4].copy_from_slice(b"head");
                    verdicts.push(Verdict::Forward(PortId(1)));
                }
            }
        }
    }
    fn drain_outbox(&mut self, send: &mut dyn FnMut(Out)) {
        self.outbox.drain(..).for_each(send);
    }
    fn tick(&mut self, now: Now) {
        self.ticks.push(now.0);
        if now.0 >= self.next {
            self.next = now.0 / SECOND * SECOND + SECOND;
            for data in self.kept.drain(..) {
                self.outbox.push(Out { port: PortId(0), data, checksum: RxChecksum::Complete, gso: None });
            }
        }
    }
    fn next_deadline(&self, _: Now) -> Now {
        Now(self.next)
    }
}

fn file(packets: &[(u64, &[u8], u32)]) -> Vec<u8> {
    let header = PcapHeader { ts_resolution: TsResolution::NanoSecond, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (at, data, length) in packets {
        writer.write_packet(&PcapPacket::new(Duration::from_nanos(*at), *length, data)).unwrap();
    }
    writer.into_writer()
}

/// Frames with the time they were written at.
type Sent = Vec<(u64, Vec<u8>)>;

fn run(packets: &[(u64, &[u8], u32)]) -> (Result<ReplaySummary, ReplayError>, Sent, Toy) {
    let (mut out, mut toy) = (Vec::new(), Toy::default());
    let result = replay(&file(packets)[..], &mut out, |_| PortId(0), &mut toy);
    let mut reader = PcapReader::new(&out[..]).unwrap();
    let mut sent = Vec::new();
    while let Some(p) = reader.next_packet() {
        let p = p.unwrap();
        sent.push((p.timestamp.as_nanos() as u64, p.data.into_owned()));
    }
    (result, sent, toy)
}

#[test]
fn verdicts_and_times() {
    let (a, p, d, k) = (&[0u8; 20][..], &[1u8; 20][..], &[3u8; 20][..], &[5u8; 20][..]);
    let s = SECOND;
    let (result, sent, toy) =
        run(&[(s, a, 20), (s + 5, p, 20), (s + 6, d, 20), (s + 7, k, 20), (4 * s + 9, a, 20)]);
    let summary = result.unwrap();
    assert_eq!(summary, ReplaySummary { read: 5, written: 3, passed: 1, dropped: 1 });
    let headed = [&b"head"[..], a].concat();
    assert_eq!(sent, [(s, headed.clone()), (2 * s, k.to_vec()), (4 * s + 9, headed)]);
    assert_eq!(toy.ticks, [s + 5, s + 6, s + 7, 2 * s, 3 * s, 4 * s, 4 * s + 9]);
}

#[test]
fn a_cut_capture_names_the_packet() {
    let (result, sent, _) = run(&[(1, &[0; 20], 20), (2, &[0; 20], 60)]);
    let message = result.unwrap_err().to_string();
    assert!(message.starts_with("packet 2: only 20 of 60 bytes were captured"), "{message}");
    assert_eq!(sent.len(), 1);
}

#[test]
fn bad_files_are_refused() {
    let message =
        |bytes: &[u8]| replay(bytes, Vec::new(), |_| PortId(0), &mut Toy::default()).unwrap_err().to_string();
    for (bytes, why) in [
        (&b"not a capture file at all"[..], "it begins otherwise"),
        (b"abc", "it is shorter than a header"),
        (b"", "it is empty"),
        (b"\x0a\x0d\x0d\x0a and more", "it is pcapng: convert it by 'editcap -F pcap'"),
        (b"\xd4\xc3\xb2\xa1\x02\x00", "it is shorter than a header"),
    ] {
        assert_eq!(message(bytes), format!("not a capture in pcap format ({why}); 'tcpdump -w' writes that"));
    }
    let good = file(&[(1, &[0; 20], 20)]);
    assert!(message(&good[..good.len() - 1]).starts_with("packet 1: "));
    let mut raw_ip = good;
    raw_ip[20..24].copy_from_slice(&101u32.to_be_bytes());
    assert!(message(&raw_ip).contains("only Ethernet"), "{}", message(&raw_ip));
    let (result, ..) = run(&[(9, &[0; 20], 20), (8, &[0; 20], 20)]);
    assert!(result.unwrap_err().to_string().starts_with("packet 2: its time stamp"));
    let (result, ..) = run(&[(9, &[7; 20], 20)]);
    assert_eq!(result.unwrap_err().to_string(), "packet 1: no verdict");
}
