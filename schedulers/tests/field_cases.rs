//! What operators of load balancers ran into, and what this crate does there.

mod common;

use common::{Service, flow, flows, server};
use schedulers::{CreateError, Flag, MAX_TABLE_SIZE, Options, create, find, is_prime, names, parse_flag};
use std::net::SocketAddr;

const FLAGS: [Options; 4] = [
    Options { fallback: false, port: false, table_size: None },
    Options { fallback: false, port: true, table_size: None },
    Options { fallback: true, port: false, table_size: None },
    Options { fallback: true, port: true, table_size: None },
];

fn share(picks: &[Option<SocketAddr>], at: Option<SocketAddr>) -> f64 {
    picks.iter().filter(|pick| **pick == at).count() as f64 / picks.len() as f64
}

/// mh: a server of weight 0 keeps its slots; nobody there, or one alone.
#[test]
fn mh_with_weight_0_no_server_and_one_server() {
    let flows = flows(10_000);
    for options in FLAGS {
        let mut service = Service::with("mh", &options, &[1, 1, 2]);
        let first = service.picks(&flows);
        for (k, expected) in [(1, 0.25), (2, 0.25), (3, 0.5)] {
            let share = share(&first, Some(server(k)));
            assert!((share - expected).abs() < 0.03, "server {k} has {share}");
        }

        service.set_weight(server(2), 0);
        let without = service.picks(&flows);
        for (old, new) in first.iter().zip(&without) {
            if *old != Some(server(2)) {
                assert_eq!(old, new, "the flows of others stay");
            } else {
                assert_eq!(new.is_some(), options.fallback);
                assert_ne!(*new, Some(server(2)));
            }
        }
        if options.fallback {
            for k in [1, 3] {
                assert!(share(&without, Some(server(k))) > share(&first, Some(server(k))) + 0.03);
            }
        }

        service.set_weight(server(2), 1);
        assert_eq!(service.picks(&flows), first, "back as it was");

        service.remove(server(2));
        let removed = service.picks(&flows);
        let others = first.iter().zip(&removed).filter(|(old, _)| **old != Some(server(2)));
        let moved = others.clone().filter(|(old, new)| old != new).count() as f64 / others.count() as f64;
        assert!(moved < 0.05, "{moved} of the others' flows moved");

        for k in [1, 3] {
            service.set_weight(server(k), 0);
        }
        assert_eq!(share(&service.picks(&flows), None), 1.0, "all at 0");
        for k in [1, 3] {
            service.remove(server(k));
        }
        assert_eq!(share(&service.picks(&flows), None), 1.0, "none");
        service.add(server(9), 1);
        assert_eq!(share(&service.picks(&flows), Some(server(9))), 1.0, "one");
    }
}

#[test]
fn mh_and_sh_hash_the_port_only_where_told() {
    for name in ["mh", "sh"] {
        for port in [false, true] {
            let mut service = Service::with(name, &Options { port, ..Options::default() }, &[1, 1, 1]);
            let ports: Vec<_> = (1..1000).map(|port| flow(7, port)).collect();
            let picks = service.picks(&ports);
            let servers = (1..=3).filter(|k| picks.contains(&Some(server(*k)))).count();
            assert_eq!(servers, if port { 3 } else { 1 }, "{name} port={port}");
        }
    }
}

/// More servers than mh has slots: the kernel refuses to make a table, the old one serves on.
#[test]
fn mh_with_more_servers_than_slots() {
    let mut service = Service::with("rr", &Options::default(), &[1; 4093]);
    service.switch("mh", &Options::default()).unwrap();
    let flows = flows(1000);
    let full = service.picks(&flows);
    assert!(full.iter().all(Option::is_some));
    service.add(server(5000), 1);
    assert_eq!(service.picks(&flows), full);
    let gone = full[0].unwrap();
    service.add(server(5001), 1);
    service.remove(gone);
    for (old, new) in full.iter().zip(service.picks(&flows)) {
        assert_eq!(new, old.filter(|at| *at != gone));
    }
    service.remove(server(5000));
    assert!(service.picks(&flows).iter().all(Option::is_some), "4093 servers again");
}

/// sh: a client whose server takes none is refused, or falls back to the same other server every time.
#[test]
fn sh_with_and_without_fallback() {
    for port in [false, true] {
        for fallback in [false, true] {
            let options = Options { fallback, port, table_size: None };
            let mut service = Service::with("sh", &options, &[1, 1]);
            let mut twin = Service::with("sh", &options, &[1, 1]);
            let flows = flows(500);
            let first = service.picks(&flows);
            assert_eq!(first, twin.picks(&flows), "two directors with the same list");
            assert!(share(&first, Some(server(1))) > 0.4 && share(&first, Some(server(2))) > 0.4);
            service.set_weight(server(1), 0);
            for (old, new) in first.iter().zip(service.picks(&flows)) {
                let other = if fallback { Some(server(2)) } else { None };
                // Weight 0 still takes one bucket in the round, as 1 does: nobody else's bucket changes.
                assert_eq!(new, if *old == Some(server(1)) { other } else { *old });
            }
            service.set_weight(server(1), 1);
            assert_eq!(service.picks(&flows), first);
            service.server(server(2)).load.overloaded = true;
            let without: Vec<_> = service.picks(&flows);
            assert_eq!(share(&without, None) == 0.0, fallback);
            assert_eq!(share(&without, Some(server(2))), 0.0);
        }
    }
}

/// Every weight is 0: refused; works again at the first connection after a weight is given.
#[test]
fn every_weight_is_0() {
    for algorithm in names() {
        let mut service = Service::with(algorithm.name, &Options::default(), &[0, 0]);
        assert_eq!(service.picks(&flows(50)), vec![None; 50], "{}", algorithm.name);
        for k in [1, 2] {
            service.set_weight(server(k), 1);
        }
        assert!(service.pick(&flow(1, 1)).is_some(), "{}", algorithm.name);
    }
}

#[test]
fn no_server_at_all() {
    for algorithm in names() {
        for options in FLAGS {
            let mut service = Service::new(algorithm.name, &options).unwrap();
            assert_eq!(service.pick(&flow(1, 1)), None, "{}", algorithm.name);
            service.add(server(1), 1);
            assert_eq!(service.pick(&flow(1, 1)), Some(server(1)), "{}", algorithm.name);
            service.remove(server(1));
            assert_eq!(service.pick(&flow(1, 1)), None, "{}", algorithm.name);
        }
    }
}

/// An unknown scheduler or flag: the sentence says which there are.
#[test]
fn unknown_schedulers_and_flags() {
    let service = common::Pool::default();
    let Err(error) = create("foo", &Options::default(), &service) else { panic!("there is no foo") };
    assert_eq!(
        error.to_string(),
        r#"unknown scheduler "foo": there are rr, wrr, lc, wlc, sed, nq, fo, ovf, sh, dh, mh, maglev"#
    );
    assert!(matches!(find("RR"), Err(CreateError::Unknown { .. })));

    assert_eq!(parse_flag("sh", "sh-port"), Ok(Flag::Sched2));
    assert_eq!(parse_flag("sh", "sh-fallback"), Ok(Flag::Sched1));
    assert_eq!(parse_flag("mh", "mh-port"), Ok(Flag::Sched2));
    assert_eq!(parse_flag("rr", "flag-3"), Ok(Flag::Sched3));
    let refused = parse_flag("rr", "sh-port").unwrap_err().to_string();
    assert_eq!(refused, r#"scheduler rr has no flag "sh-port": it takes flag-1, flag-2, flag-3"#);
    let refused = parse_flag("mh", "sh-port").unwrap_err().to_string();
    assert_eq!(
        refused,
        r#"scheduler mh has no flag "sh-port": it takes mh-fallback, mh-port, flag-1, flag-2, flag-3"#
    );
    assert!(matches!(parse_flag("foo", "flag-1"), Err(CreateError::Unknown { .. })));
}

#[test]
fn table_sizes() {
    let sized = |name: &str, size, servers: usize| {
        let pool = Service::with("rr", &Options::default(), &vec![1; servers]).pool;
        create(name, &Options { table_size: Some(size), ..Options::default() }, &pool).map(|_| ())
    };
    let refused = |name: &str, size, servers| sized(name, size, servers).unwrap_err().to_string();
    assert_eq!(sized("maglev", 655_373, 3), Ok(()));
    assert_eq!(sized("maglev", 5, 4), Ok(()));
    assert_eq!(sized("maglev", MAX_TABLE_SIZE, 2), Ok(()));
    assert_eq!(refused("maglev", 5, 5), "table size 5 of scheduler maglev is not larger than the 5 servers");
    for size in [0, 1, 4, 65_536, 655_371] {
        let sentence =
            format!("table size {size} of scheduler maglev is not a prime number (65537 and 655373 are)");
        assert_eq!(refused("maglev", size, 0), sentence);
    }
    assert_eq!(
        refused("maglev", u32::MAX, 0),
        "table size 4294967295 of scheduler maglev is above the limit of 2097143"
    );
    assert_eq!(refused("mh", 65_537, 0), "scheduler mh takes no table size: only maglev does");
}

/// Servers beyond the number of slots get no connections; the others go on.
#[test]
fn maglev_with_more_servers_than_slots() {
    let options = Options { table_size: Some(7), ..Options::default() };
    let mut service = Service::with("maglev", &options, &[1; 20]);
    let picks = service.picks(&flows(1000));
    let served = (1..=20).filter(|k| picks.contains(&Some(server(*k)))).count();
    assert_eq!(served, 6);
    assert_eq!(share(&picks, None), 0.0);
}

#[test]
fn maglev_with_more_servers_than_it_can_number() {
    let mut service = Service::with("maglev", &Options::default(), &[1]);
    let one = service.pool.0[0].clone();
    service.pool.0 = (1..=70_000).map(|k| common::Server { at: server(k), ..one.clone() }).collect();
    let options = Options { table_size: Some(655_373), ..Options::default() };
    service.scheduler = create("maglev", &options, &service.pool).unwrap();
    assert_eq!(share(&service.picks(&flows(1000)), None), 0.0);
}

#[test]
fn primes() {
    let sieve = |limit: usize| {
        let mut prime = vec![true; limit];
        prime[0] = false;
        prime[1] = false;
        for i in 2..limit {
            if prime[i] {
                (i * i..limit).step_by(i).for_each(|multiple| prime[multiple] = false);
            }
        }
        prime
    };
    for (number, prime) in sieve(70_000).into_iter().enumerate() {
        assert_eq!(is_prime(number as u32), prime, "{number}");
    }
    for (number, prime) in [
        (655_373, true),
        (MAX_TABLE_SIZE, true),
        (4_294_967_291, true),
        (u32::MAX, false),
        (65_521 * 65_519, false),
    ] {
        assert_eq!(is_prime(number), prime, "{number}");
    }
}

/// The names fit `ipvsadm -s` (15 bytes) and are given once.
#[test]
fn the_registry_is_in_order() {
    for (at, algorithm) in names().iter().enumerate() {
        assert!((1..=15).contains(&algorithm.name.len()));
        assert!(names()[..at].iter().all(|other| other.name != algorithm.name));
        assert!(!algorithm.description.is_empty() && !algorithm.description.contains('\n'));
        assert_eq!(find(algorithm.name).unwrap().name, algorithm.name);
    }
}
