//! `table.structured/random`: whether patterns in the connections slow the table's look-ups down.

use std::hint::black_box;

use lvsd::conn::{Config, ConnTable, Hint, NewConn, Tuple};
use modes::{Addr, Family};
use serde_json::json;

use super::frames::{BATCH, Random};
use super::{CpuTime, now, tuple};
use crate::report::{Bar, Row, median, spread};
use crate::{Failure, Plan};

const CONNECTIONS: u32 = 1_000_000;
/// Look-ups in one round: few, so that a disturbance spoils few rounds.
const ROUND: usize = 256 * BATCH;
const CLIENTS: u32 = 0xc612_0000;
const VIRTUAL: u32 = 0xc000_020a;

/// Connection number `n` of a pattern: client's address and port, virtual address and port.
type Pattern = fn(u32) -> (u32, u16, u32, u16);

const PATTERNS: [(&str, Pattern); 3] = [
    ("random", |n| {
        // two odd factors: permutations, so no two connections are the same
        let (a, b) = (n.wrapping_mul(0x9e37_79b1), n.wrapping_mul(0x85eb_ca6b));
        (a, (b >> 16) as u16, VIRTUAL + (b >> 8 & 63), 80)
    }),
    ("one_address_to_50_services", |n| (CLIENTS, 1024 + (n / 50) as u16, VIRTUAL, 8000 + (n % 50) as u16)),
    ("one_source_port_to_65535_ports", |n| (CLIENTS + n / 65_535, 40_000, VIRTUAL, (n % 65_535) as u16 + 1)),
];

struct Table {
    table: ConnTable,
    pattern: Pattern,
    ns: Vec<f64>,
}

impl Table {
    fn new(pattern: Pattern) -> Result<Table, Failure> {
        let config =
            Config { max_v4: CONNECTIONS, max_v6: 0, hash_key: [0x5bd1_e995, 0xc2b2_ae35], shards: 16 };
        let table = ConnTable::new(config)?;
        let tick = now().tick();
        for n in 0..CONNECTIONS {
            let (src, sport, dst, dport) = pattern(n);
            let new = NewConn {
                family: Family::V4,
                proto: 6,
                client: (Addr(src.into()), sport),
                virt: (Addr(dst.into()), dport),
                // different for each connection, so that no reply's key is taken
                real: (Addr((0x0a00_0000 + n).into()), 8080),
                dest: 0,
                method: 0,
                state: 1,
                flags: 0,
                timeout: 1 << 20,
                template: None,
                fwmark: 0,
                index_out: true,
                half_open: false,
                is_template: false,
            };
            table.insert(tick, &new)?;
        }
        Ok(Table { table, pattern, ns: Vec::new() })
    }

    /// Nanoseconds a look-up, in batches as the engine makes them.
    fn round(&mut self, random: &mut Random) -> Result<(), Failure> {
        let tuples: Vec<Tuple> = (0..ROUND)
            .map(|_| {
                let (src, sport, dst, dport) = (self.pattern)(random.below(CONNECTIONS as usize) as u32);
                tuple(src, sport, dst, dport, true)
            })
            .collect();
        let mut hashes = [(0, Hint::NONE); BATCH];
        let mut found = 0;
        let begin = CpuTime::now();
        for batch in tuples.chunks_exact(BATCH) {
            for ((hash, _), tuple) in hashes.iter_mut().zip(batch) {
                *hash = self.table.hash(tuple);
                self.table.prefetch(Family::V4, *hash);
            }
            for (hash, hint) in &mut hashes {
                *hint = self.table.prefetch_entry(Family::V4, *hash);
            }
            for (hash, hint) in &mut hashes {
                if hint.is_none() {
                    *hint = self.table.prefetch_entry_again(Family::V4, *hash);
                }
            }
            for ((hash, hint), tuple) in hashes.iter().zip(batch) {
                found += usize::from(black_box(self.table.lookup_by(*hint, *hash, tuple)).is_some());
            }
        }
        self.ns.push(begin.elapsed().as_nanos() as f64 / ROUND as f64);
        if found == ROUND { Ok(()) } else { Err(format!("{found} of {ROUND} connections were found").into()) }
    }
}

pub(crate) fn lookups(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let mut tables = PATTERNS.iter().map(|(_, p)| Table::new(*p)).collect::<Result<Vec<_>, _>>()?;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..plan.pick(100, 400) {
        for table in &mut tables {
            table.round(&mut random)?;
        }
    }
    let base = median(&tables[0].ns);
    let worst = tables[1..].iter().map(|t| median(&t.ns) / base).fold(0.0, f64::max);
    let each: serde_json::Map<_, _> = PATTERNS
        .iter()
        .zip(&tables)
        .map(|((name, _), t)| {
            let stats = t.table.stats(Family::V4);
            let one = json!({
                "ns_a_lookup": spread(&t.ns), "moves": stats.moves, "overflow": stats.overflow,
            });
            ((*name).to_owned(), one)
        })
        .collect();
    let raw = json!({
        "formula": "larger of the medians of the two structured sets / median of the random set",
        "connections": CONNECTIONS,
        "lookups_a_round": ROUND,
        "batch": BATCH,
        "sets": each,
    });
    Ok(vec![Row::new("table.structured/random", worst, "ratio", Bar::AtMost(1.2), raw)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_pattern_names_a_connection_twice() {
        for (name, pattern) in PATTERNS {
            let all: HashSet<_> = (0..CONNECTIONS).map(pattern).collect();
            assert_eq!(all.len(), CONNECTIONS as usize, "{name}");
        }
    }
}
