//! `maglev.*`: how long building a table of Maglev hashing takes.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use schedulers::{Load, Options, Servers};
use serde_json::json;

use super::CpuTime;
use crate::report::{Bar, Row, median, spread};
use crate::{Failure, Plan};

const SERVERS: usize = 1000;

/// A thousand servers of the same weight.
struct Thousand;

impl Servers for Thousand {
    fn len(&self) -> usize {
        SERVERS
    }
    fn load(&self, _: usize) -> Load {
        Load { weight: 1, active: 0, inactive: 0, overloaded: false }
    }
    fn identity(&self, index: usize) -> (IpAddr, u16) {
        (Ipv4Addr::from(0x0a00_0000 + index as u32).into(), 80)
    }
}

pub(crate) fn maglev(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let sizes = [("maglev.65537", 65_537, 1.8), ("maglev.655373", 655_373, 22.9)];
    let mut rows = Vec::new();
    for (id, size, bar) in sizes {
        let mut ms = Vec::new();
        for _ in 0..plan.pick(30, 100) {
            let options = Options { table_size: Some(size), ..Options::default() };
            let begin = CpuTime::now();
            black_box(schedulers::create("maglev", &options, &Thousand).map_err(|e| e.to_string())?);
            ms.push(begin.elapsed().as_nanos() as f64 / 1e6);
        }
        let raw = json!({
            "formula": "median of the builds",
            "servers": SERVERS,
            "slots": size,
            "ms": spread(&ms),
        });
        rows.push(Row::new(id, median(&ms), "ms", Bar::AtMost(bar), raw));
    }
    Ok(rows)
}
