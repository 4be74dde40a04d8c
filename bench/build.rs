//! Compiles the bench's BPF programs with clang into `$OUT_DIR`.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    for name in ["generate", "redirect", "sink"] {
        let source = format!("bpf/{name}.bpf.c");
        let run = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .args(["-c", &source, "-o"])
            .arg(out.join(format!("{name}.bpf.o")))
            .output();
        match run {
            Ok(run) if run.status.success() => {}
            Ok(run) => {
                let said = String::from_utf8_lossy(&run.stderr).replace('\n', " | ");
                println!("cargo::error=clang could not compile {source}: {said}");
            }
            Err(e) => {
                println!("cargo::error=cannot run {} (package clang; or set CLANG): {e}", clang.display());
            }
        }
    }
}
