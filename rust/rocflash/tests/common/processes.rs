//! Tests in child processes. A process opens one driver for its lifetime, so a test program runs
//! itself again with the simulator of AMD GPUs, or another file, as the HIP library, and selects
//! one of its ignored tests.
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes to stderr directly, because the test runner captures the output of passing tests.
pub fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The simulator: ROCFLASH_SIM_LIBRARY, or the repository's build.
fn simulator() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ROCFLASH_SIM_LIBRARY") {
        let path = PathBuf::from(path);
        assert!(path.exists(), "ROCFLASH_SIM_LIBRARY: {} does not exist", path.display());
        return Some(path);
    }
    // Read at run time, because several clones may share a target directory.
    let crate_directory = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let built = Path::new(&crate_directory).join("../../build/lib/sim/libamdhip64.so");
    built.exists().then(|| built.canonicalize().unwrap())
}

/// Runs a test of this program in a child process.
pub fn run(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && output_text.contains("1 passed"),
        "{test} with {variables:?}:\n{output_text}"
    );
    for line in output_text.lines().filter(|line| line.contains("skipped")) {
        report(&format!("{}: {line}", variables.last().map_or("", |(_, value)| value)));
    }
}

/// Runs a test of this program in a child process with simulated devices.
pub fn on_simulator(test: &str, archs: &str) {
    match simulator() {
        Some(library) => {
            run(test, &[("ROCFLASH_HIP_LIBRARY", library.to_str().unwrap()), ("ROCFLASH_SIM_ARCH", archs)]);
        }
        None => report(&format!(
            "skipped {test} on {archs}: no simulator (build it, or set ROCFLASH_SIM_LIBRARY)"
        )),
    }
}
