//! Messages between ipvsadm 1.31 and kernel 6.1.

use crate::memory::Memory;
use crate::reply::{decode_message, encode_done, encode_error};
use crate::wire::{Frame, next_frame};
use crate::{Af, Envelope, Errno, Family, Message, Request, serve};

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/e-netlink.txt");

/// A datagram to the kernel and those that it answered.
struct Turn {
    line: usize,
    request: Vec<u8>,
    replies: Vec<Vec<u8>>,
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn capture() -> Vec<Turn> {
    let text = std::fs::read_to_string(CAPTURE).unwrap();
    let mut turns: Vec<Turn> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if let Some(hex) = text.strip_prefix("-> to kernel ") {
            turns.push(Turn { line, request: unhex(hex.trim()), replies: Vec::new() });
        } else if let Some(hex) = text.strip_prefix("<- from kernel ") {
            turns.last_mut().unwrap().replies.push(unhex(hex.trim()));
        }
    }
    assert!(turns.len() > 90, "{} turns", turns.len());
    turns
}

fn frames(datagram: &[u8]) -> Vec<Frame<'_>> {
    let mut rest = datagram;
    let frames: Vec<_> = std::iter::from_fn(|| next_frame(&mut rest)).collect();
    assert_eq!(rest, &[] as &[u8], "bytes left over");
    frames
}

fn family(kind: u16) -> Family {
    if kind == 16 { Family::Ctrl } else { Family::Ipvs }
}

fn envelope(f: &Frame<'_>) -> Envelope {
    Envelope { family: f.kind, seq: f.seq, pid: f.pid }
}

#[test]
fn requests_are_read_and_written_as_ipvsadm_writes_them() {
    for turn in capture() {
        let [frame] = frames(&turn.request)[..] else { panic!("line {}: one message expected", turn.line) };
        let dump = frame.flags & 0x300 == 0x300;
        let request = Request::decode(family(frame.kind), dump, frame.payload)
            .unwrap_or_else(|e| panic!("line {}: {e:?}", turn.line));
        assert_eq!(request.is_dump(), dump, "line {}", turn.line);
        assert_eq!(
            request.encode(envelope(&frame)).unwrap(),
            turn.request,
            "line {}: {request:?}",
            turn.line
        );
    }
}

#[test]
fn replies_are_read_and_written_as_the_kernel_writes_them() {
    let mut seen = [0; 4];
    for turn in capture() {
        let request = frames(&turn.request)[0];
        for datagram in &turn.replies {
            for frame in frames(datagram) {
                let message = decode_message(&frame, family(request.kind), Af::V4)
                    .unwrap_or_else(|e| panic!("line {}: {e}", turn.line));
                let (kind, again) = match message {
                    Message::Reply(r) => (0, r.encode(envelope(&frame), frame.flags & 2 != 0).unwrap()),
                    Message::Ack => (1, encode_error(&request, None)),
                    Message::Error(e) => (2, encode_error(&request, Some(e))),
                    Message::Done => (3, encode_done(&request)),
                };
                assert_eq!(again, frame.whole, "line {}", turn.line);
                seen[kind] += 1;
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 10), "replies, acks, errors, ends: {seen:?}");
}

/// The whole session again, with a back-end in the kernel's place: every reply is byte for byte the kernel's. Only the
/// order of services is the kernel's hash table's.
#[test]
fn a_session_is_answered_as_by_the_kernel() {
    let backend = Memory::default();
    for turn in capture() {
        let sorted = |datagrams: &[Vec<u8>]| {
            let mut messages: Vec<Vec<u8>> =
                datagrams.iter().flat_map(|d| frames(d)).map(|f| f.whole.to_vec()).collect();
            if turn.request[16] == crate::wire::ipvs::GET_SERVICE {
                messages.sort();
            }
            messages
        };
        let replies: Vec<Vec<u8>> = serve(&backend, &turn.request).collect();
        assert_eq!(sorted(&replies), sorted(&turn.replies), "line {}", turn.line);
    }
}

#[test]
fn a_failing_dump_ends_with_its_error() {
    let mut done = encode_done(
        &frames(&Request::DumpServices.encode(Envelope { family: 32, seq: 1, pid: 2 }).unwrap())[0],
    );
    done[16..20].copy_from_slice(&(-4_i32).to_ne_bytes());
    let message = decode_message(&frames(&done)[0], Family::Ipvs, Af::V4);
    assert_eq!(message, Ok(Message::Error(Errno(4))));
}
