//! The pairs that each processor has found last: they make the tier faster, and nothing else.

use super::tier::{Both, Done, Face, NETS, Plan, client, without_ident};
use super::*;
use crate::conn::hash::siphash13;
use crate::engine::{FrameHandler, Verdict};
use crate::time::Now;

/// Lines of one processor, and pairs of a line; as in `modes/bpf/table.h`.
const LINES: u64 = 8192;
const PAIRS: usize = 8;

/// UDP flows that all have the same line, a few more than it takes.
fn flows_of_one_line() -> Vec<Plan> {
    let net = &NETS[0];
    let line = |plan: &Plan| {
        let addrs = u64::from(client(net, plan.client).v4()) << 32 | u64::from(addr(net.vip).v4());
        let ports = u64::from(plan.sport) << 48 | 80 << 32 | 17;
        siphash13(CONFIG.hash_key, [addrs, ports]) & (LINES - 1)
    };
    let all = (0..4).flat_map(|client| (1024..=u16::MAX).map(move |sport| Plan::plain_udp(client, sport)));
    let found: Vec<Plan> = all.filter(|plan| line(plan) == 7).take(PAIRS + 4).collect();
    assert_eq!(found.len(), PAIRS + 4);
    found
}

/// The tier forwards the flow's packets as the core does.
fn agree(both: &mut Both, face: Face, plan: &Plan) {
    let (port, f) = plan.frame();
    let (done, sent) = both.tier(face, &f);
    let (verdict, bytes) = both.core(face, port, &f);
    assert_eq!(done, Done::Forward, "{verdict:?} {plan:?}");
    assert_eq!(without_ident(&sent), without_ident(&bytes), "{plan:?}");
}

#[test]
fn flows_that_share_a_line_are_all_forwarded_and_one_that_is_gone_is_not() {
    if testnet::cannot() {
        return;
    }
    for face in [Face::Skb, Face::Xdp] {
        let mut both = Both::new();
        let flows = flows_of_one_line();
        for plan in &flows {
            let (port, f) = plan.frame();
            assert_eq!(both.tier(face, &f).0, Done::Up);
            assert!(matches!(both.core(face, port, &f).0, Verdict::Forward(_)));
            // known, and the tier's from the next packet on
            both.core(face, port, &f);
        }
        for _ in 0..3 {
            flows.iter().for_each(|plan| agree(&mut both, face, plan));
        }
        // all end; what was found before finds nothing any more
        let later = Now(tier::now().0 + 3600 * 1_000_000_000);
        both.worker.tick(later);
        for plan in &flows {
            assert_eq!(both.tier(face, &plan.frame().1).0, Done::Up, "{plan:?}");
        }
    }
}
