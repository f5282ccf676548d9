//! Tests in processes of their own. A process opens one driver for its life, so a test program starts itself again with the
//! simulator of AMD GPUs, or another library, as the HIP library, and names one of its ignored tests.
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Told past the test runner, which swallows what passing tests print.
pub fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "{words}");
}

/// The simulator: where ROCFLASH_SIM_LIBRARY says, or as the repository builds it.
fn simulator() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ROCFLASH_SIM_LIBRARY") {
        let path = PathBuf::from(path);
        assert!(path.exists(), "ROCFLASH_SIM_LIBRARY: {} is not there", path.display());
        return Some(path);
    }
    // Of each crate, and asked when it runs: a target folder may be shared by several clones.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where it is");
    let built = Path::new(&crate_folder).join("../../build/lib/sim/libamdhip64.so");
    built.exists().then(|| built.canonicalize().unwrap())
}

/// Runs a test of this program in a process of its own.
pub fn run(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let words =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && words.contains("1 passed"), "{test} with {variables:?}:\n{words}");
    for line in words.lines().filter(|line| line.contains("skipped")) {
        say(&format!("{}: {line}", variables.last().map_or("", |(_, value)| value)));
    }
}

/// The same on simulated devices.
pub fn on_simulator(test: &str, archs: &str) {
    match simulator() {
        Some(library) => {
            run(test, &[("ROCFLASH_HIP_LIBRARY", library.to_str().unwrap()), ("ROCFLASH_SIM_ARCH", archs)]);
        }
        None => {
            say(&format!("skipped {test} on {archs}: no simulator (build it, or set ROCFLASH_SIM_LIBRARY)"))
        }
    }
}
