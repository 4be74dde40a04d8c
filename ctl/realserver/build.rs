//! Compiles the decapsulator (`modes/bpf/decap.bpf.c`) with clang into `$OUT_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let source = Path::new("../../modes/bpf/decap.bpf.c");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(e) = compile(source, &out.join("decap.bpf.o")) {
        println!("cargo::error={e}");
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let run = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
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
    Err(format!(
        "clang could not compile {} (packages libbpf-dev and linux-libc-dev have its headers): {}",
        source.display(),
        said.replace('\n', " | ")
    ))
}
