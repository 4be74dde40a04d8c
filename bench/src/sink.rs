//! The end of frames that XDP has redirected to a veth.

use std::error::Error;
use std::time::Duration;

use aya::EbpfLoader;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;

use crate::attached;

static SINK: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sink.bpf.o"));

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface whose frames are dropped as they come in, at XDP
    #[arg(long)]
    interface: String,
    /// Seconds to run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

pub(crate) fn run(o: &Options) -> Result<serde_json::Value, Box<dyn Error>> {
    attached::none([o.interface.as_str()])?;
    let mut ebpf = EbpfLoader::new().load(SINK)?;
    let program: &mut Xdp = ebpf.program_mut("sink").ok_or("no program in the object")?.try_into()?;
    program.load()?;
    program.attach(&o.interface, XdpMode::Driver)?;
    std::thread::sleep(Duration::from_secs(o.seconds));
    Ok(serde_json::json!({ "interface": o.interface }))
}
