//! Compiles the BPF programs (`modes/bpf/`) with clang into `$OUT_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    if std::env::var_os("CARGO_FEATURE_DAEMON").is_none() {
        return;
    }
    let dir = Path::new("modes/bpf");
    println!("cargo::rerun-if-changed=modes/bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(e) = compile(&dir.join("lvsd.bpf.c"), &out.join("lvsd.bpf.o")) {
        println!("cargo::error={e}");
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let run = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        // where Debian keeps asm/types.h, which linux/bpf.h wants
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run {} (package clang; or set CLANG): {e}", clang.display()))?;
    if run.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&run.stderr);
    let hint =
        if said.contains("bpf_helpers.h") || said.contains("linux/bpf.h") || said.contains("asm/types.h") {
            " (packages libbpf-dev and linux-libc-dev have the headers)"
        } else {
            ""
        };
    Err(format!("clang could not compile {}{hint}: {}", source.display(), said.replace('\n', " | ")))
}
