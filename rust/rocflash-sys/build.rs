//! Builds librocflash.a from the sources in native/, or finds an installed library.
//!
//! ROCFLASH_LIB_DIR names a directory with librocflash.a or librocflash.so and has precedence.
//! Next, the feature `system` queries pkg-config. Otherwise `bundled` runs CMake, which has the
//! list of sources. On docs.rs nothing is built or linked, because documentation needs neither.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const MINIMUM_CMAKE: (u32, u32) = (3, 25);
const MINIMUM_CLANG: u32 = 16;
const MINIMUM_GCC: u32 = 12;

fn main() {
    for variable in [
        "ROCFLASH_LIB_DIR",
        "ROCFLASH_CMAKE_ARGS",
        "GPU_ARCHS",
        "ROCFLASH_KERNEL_COMPILER",
        "ROCFLASH_KERNEL_LINKER",
        "ROCM_PATH",
        "CMAKE",
        "CXX",
        "CC",
        "CXXSTDLIB",
        "DOCS_RS",
    ] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Some(directory) = env::var_os("ROCFLASH_LIB_DIR") {
        link_directory(Path::new(&directory));
    } else if cfg!(feature = "system") {
        link_installed();
    } else if cfg!(feature = "bundled") {
        link_static(&build_bundled().join("lib"));
    } else {
        stop(
            "neither the feature `bundled` nor `system` is on, and ROCFLASH_LIB_DIR is not set: \
              enable one of them",
        );
    }
}

/// Stops the build with a message.
fn stop(message: &str) -> ! {
    eprintln!("\nrocflash-sys: {message}\n");
    std::process::exit(1);
}

fn link_directory(directory: &Path) {
    if directory.join("librocflash.a").exists() {
        link_static(directory);
    } else if directory.join("librocflash.so").exists() {
        println!("cargo:rustc-link-search=native={}", directory.display());
        println!("cargo:rustc-link-lib=dylib=rocflash");
    } else {
        stop(&format!(
            "ROCFLASH_LIB_DIR is {}, which has neither librocflash.a nor librocflash.so",
            directory.display()
        ));
    }
}

/// The archive has C++ objects, so the C++ runtime is linked too.
fn link_static(directory: &Path) {
    println!("cargo:rerun-if-changed={}", directory.join("librocflash.a").display());
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:rustc-link-lib=static=rocflash");
    let runtime = env::var("CXXSTDLIB").unwrap_or_else(|_| "stdc++".into());
    if !runtime.is_empty() {
        println!("cargo:rustc-link-lib=dylib={runtime}");
    }
    // The other archives that CMake linked it with, one per line: zstd, which decompresses the
    // kernels.
    let others = std::fs::read_to_string(directory.join("librocflash.libs")).unwrap_or_default();
    for path in others.lines().map(str::trim).filter(|line| !line.is_empty()).map(Path::new) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_prefix("lib").and_then(|name| name.strip_suffix(".a")) else {
            stop(&format!("librocflash.libs names {}, which is not a static library", path.display()));
        };
        let search = path.parent().unwrap_or(Path::new(""));
        println!("cargo:rustc-link-search=native={}", search.display());
        println!("cargo:rustc-link-lib=static={name}");
    }
    for library in ["pthread", "dl", "m"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

#[cfg(feature = "system")]
fn link_installed() {
    let version = env::var("CARGO_PKG_VERSION").unwrap();
    if let Err(error) = pkg_config::Config::new().atleast_version(&version).probe("rocflash") {
        stop(&format!(
            "the feature `system` needs an installed rocflash {version} or newer, known to pkg-config \
             (PKG_CONFIG_PATH) or in the directory ROCFLASH_LIB_DIR.\n{error}"
        ));
    }
}

#[cfg(not(feature = "system"))]
fn link_installed() {}

/// Runs CMake in OUT_DIR and returns the build directory.
fn build_bundled() -> PathBuf {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap();
    if arch != "x86_64" || os != "linux" {
        stop(&format!("the target is {arch} {os}; only x86-64 Linux is supported"));
    }
    let native = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("native");
    let build = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("cmake");
    // In the repository these are symbolic links; cargo must watch their targets.
    for entry in std::fs::read_dir(&native).expect("native/ is part of the crate") {
        let path = entry.expect("native/ can be listed").path();
        let real = path.canonicalize().unwrap_or(path);
        println!("cargo:rerun-if-changed={}", real.display());
    }
    println!("cargo:include={}", native.join("include").display());

    let cmake = env::var("CMAKE").unwrap_or_else(|_| "cmake".into());
    check_cmake(&cmake);
    // --fresh: options of an earlier build, such as GPU_ARCHS, must not persist in CMake's cache.
    // Compiled objects do.
    let mut configure = Command::new(&cmake);
    configure.arg("--fresh").arg("-S").arg(&native).arg("-B").arg(&build);
    if output_of("ninja", &["--version"]).is_some() {
        configure.args(["-G", "Ninja"]);
    }
    configure.args(compiler());
    configure.arg("-DCMAKE_BUILD_TYPE=Release");
    configure.arg(format!("-Ddlpack_DIR={}", native.join("dlpack").display()));
    for part in ["CLI", "TESTS", "EXAMPLES", "SIM", "FUZZ"] {
        configure.arg(format!("-DROCFLASH_BUILD_{part}=OFF"));
    }
    configure.arg("-DROCFLASH_WERROR=OFF");
    let archs = requested_archs();
    if let Some(archs) = &archs {
        println!("cargo:warning=GPU_ARCHS: kernels for {archs} only");
        configure.arg(format!("-DROCFLASH_GPU_ARCHS={archs}"));
    }
    if let Ok(path) = env::var("ROCM_PATH") {
        println!(
            "cargo:warning=ROCM_PATH is {path}: the build does not use ROCm; the driver is found at run time"
        );
    }
    if let Ok(extra) = env::var("ROCFLASH_CMAKE_ARGS") {
        configure.args(extra.split_whitespace());
    }
    run(&mut configure, "CMake could not configure the library");
    let requested =
        archs.is_some() || env::var("ROCFLASH_CMAKE_ARGS").unwrap_or_default().contains("ROCFLASH_GPU_ARCHS");
    let targets = std::fs::read_to_string(build.join("kernels/include/targets.inc")).unwrap_or_default();
    // Cargo hides the warnings of dependencies, so this must be an error.
    if !requested && targets.lines().any(|line| line == "#define ROCFLASH_TARGETS 0") {
        stop(
            "GPU kernels need clang 22, lld 22 and libzstd.a (Debian: clang-22 lld-22 libzstd-dev). \
             ROCFLASH_KERNEL_COMPILER and ROCFLASH_KERNEL_LINKER name them if they are elsewhere. \
             GPU_ARCHS=none builds for CPUs only.",
        );
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "2".into());
    let mut compile = Command::new(&cmake);
    compile.arg("--build").arg(&build).args(["--target", "rocflash_static", "--parallel", &jobs]);
    // Cargo's jobserver variables would make the nested make fail.
    compile.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("CARGO_MAKEFLAGS");
    run(&mut compile, "the library did not compile");
    build
}

/// The architectures in GPU_ARCHS, which other builds of flash attention read too; CMake rejects
/// unknown ones. "native" selects all of them: one build supports every GPU.
fn requested_archs() -> Option<String> {
    let value = env::var("GPU_ARCHS").ok()?;
    let archs: Vec<&str> = value.split([';', ',', ' ']).filter(|arch| !arch.is_empty()).collect();
    if archs.is_empty() || archs == ["native"] || archs == ["all"] {
        return None;
    }
    Some(archs.join(";"))
}

/// The standard output of a program, or `None` if it is missing or fails.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(command: &mut Command, failure: &str) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            stop(&format!("{failure} ({status}); its output is above.\nThe command was: {command:?}"))
        }
        Err(error) => stop(&format!("{failure}: {error}.\nThe command was: {command:?}")),
    }
}

fn check_cmake(cmake: &str) {
    let (major, minor) = MINIMUM_CMAKE;
    let Some(text) = output_of(cmake, &["--version"]) else {
        stop(&format!(
            "could not run `{cmake}`. Building the bundled library needs CMake {major}.{minor} or newer \
             (set CMAKE to another one); or link an installed library with the feature `system`."
        ));
    };
    let found = text.split_whitespace().nth(2).and_then(version);
    if found.is_some_and(|found| found < MINIMUM_CMAKE) {
        let first = text.lines().next().unwrap_or_default();
        stop(&format!(
            "{first} is too old; CMake {major}.{minor} or newer is needed (set CMAKE to another one)"
        ));
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// The CMake options that select the compiler: CXX and CC where they are set, else clang, else GCC.
fn compiler() -> Vec<String> {
    if env::var_os("CXX").is_some() {
        return Vec::new(); // CMake reads CXX and CC itself
    }
    let clangs = std::iter::once("22".to_string())
        .chain(std::iter::once(String::new()))
        .chain((MINIMUM_CLANG..=30).rev().map(|n| n.to_string()))
        .map(|n| if n.is_empty() { n } else { format!("-{n}") })
        .map(|suffix| (format!("clang{suffix}"), format!("clang++{suffix}"), MINIMUM_CLANG));
    let gccs = std::iter::once(String::new())
        .chain((MINIMUM_GCC..=20).rev().map(|n| format!("-{n}")))
        .map(|suffix| (format!("gcc{suffix}"), format!("g++{suffix}"), MINIMUM_GCC));
    for (c, cxx, minimum) in clangs.chain(gccs) {
        let Some(text) = output_of(&cxx, &["-dumpversion"]) else { continue };
        if output_of(&c, &["-dumpversion"]).is_some()
            && version(&text).is_some_and(|found| found.0 >= minimum)
        {
            return vec![format!("-DCMAKE_C_COMPILER={c}"), format!("-DCMAKE_CXX_COMPILER={cxx}")];
        }
    }
    stop(&format!(
        "found no C++20 compiler: tried clang++ ({MINIMUM_CLANG} or newer) and g++ ({MINIMUM_GCC} or newer). \
         Install one (Debian, Ubuntu: apt install clang), set CC and CXX, or link an installed library \
         with the feature `system`. Neither ROCm nor CUDA is needed."
    ));
}
