//! lvsctl against the transcript of ipvsadm, and field cases of the command line.

mod transcript;

use ipvs_netlink::memory::Memory;
use transcript::{Shell, replay};

const TRANSCRIPT: &str = include_str!("../../tests/golden/a-cli.txt");

#[test]
fn transcript_is_reproduced() {
    let memory = Memory::default();
    let mut shell = Shell::over(&memory);
    let replayed = replay(TRANSCRIPT, &mut shell);
    assert!(replayed > 370, "only {replayed} commands");
}
