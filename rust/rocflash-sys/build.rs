//! Builds librocflash.a from the sources in native/, or finds an installed library.
//!
//! ROCFLASH_LIB_DIR names a folder with librocflash.a or librocflash.so and wins over everything; then the feature
//! `system` asks pkg-config; else `bundled` drives CMake, so that the list of sources is CMake's own. On docs.rs
//! nothing is built or linked: documentation needs neither.
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
              one of them must say where the library comes from",
        );
    }
}

/// Ends the build with a message that says what to do.
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
            "ROCFLASH_LIB_DIR is {}, but there is neither librocflash.a nor librocflash.so in it",
            directory.display()
        ));
    }
}

/// The archive holds C++ objects, so the C++ runtime comes with it.
fn link_static(directory: &Path) {
    println!("cargo:rerun-if-changed={}", directory.join("librocflash.a").display());
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:rustc-link-lib=static=rocflash");
    let runtime = env::var("CXXSTDLIB").unwrap_or_else(|_| "stdc++".into());
    if !runtime.is_empty() {
        println!("cargo:rustc-link-lib=dylib={runtime}");
    }
    // What else CMake linked it with, one archive a line: zstd, where there are kernels to decompress.
    let others = std::fs::read_to_string(directory.join("librocflash.libs")).unwrap_or_default();
    for path in others.lines().map(str::trim).filter(|line| !line.is_empty()).map(Path::new) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_prefix("lib").and_then(|name| name.strip_suffix(".a")) else {
            stop(&format!("librocflash.libs names {}, which is no static library", path.display()));
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        println!("cargo:rustc-link-search=native={}", folder.display());
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
             (PKG_CONFIG_PATH) or in the folder that ROCFLASH_LIB_DIR names.\n{error}"
        ));
    }
}

#[cfg(not(feature = "system"))]
fn link_installed() {}

/// Runs CMake into OUT_DIR and gives the build folder.
fn build_bundled() -> PathBuf {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap();
    if arch != "x86_64" || os != "linux" {
        stop(&format!("rocflash runs on x86-64 Linux; the target is {arch} {os}"));
    }
    let native = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("native");
    let build = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("cmake");
    // In the repository these are links; cargo is to look at what they lead to.
    for entry in std::fs::read_dir(&native).expect("native/ is part of the crate") {
        let path = entry.expect("native/ can be listed").path();
        let real = path.canonicalize().unwrap_or(path);
        println!("cargo:rerun-if-changed={}", real.display());
    }
    println!("cargo:include={}", native.join("include").display());

    let cmake = env::var("CMAKE").unwrap_or_else(|_| "cmake".into());
    check_cmake(&cmake);
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(&native).arg("-B").arg(&build);
    if !build.join("CMakeCache.txt").exists() {
        if answer("ninja", &["--version"]).is_some() {
            configure.args(["-G", "Ninja"]);
        }
        configure.args(compiler());
    }
    configure.arg("-DCMAKE_BUILD_TYPE=Release");
    configure.arg(format!("-Ddlpack_DIR={}", native.join("dlpack").display()));
    for part in ["CLI", "TESTS", "EXAMPLES", "SIM", "FUZZ"] {
        configure.arg(format!("-DROCFLASH_BUILD_{part}=OFF"));
    }
    configure.arg("-DROCFLASH_WERROR=OFF");
    let archs = asked_archs();
    if let Some(archs) = &archs {
        println!("cargo:warning=GPU_ARCHS: kernels for {archs} alone");
        configure.arg(format!("-DROCFLASH_GPU_ARCHS={archs}"));
    }
    if let Ok(path) = env::var("ROCM_PATH") {
        println!(
            "cargo:warning=ROCM_PATH is {path}: nothing of ROCm is used to build; its driver is found at run time"
        );
    }
    if let Ok(extra) = env::var("ROCFLASH_CMAKE_ARGS") {
        configure.args(extra.split_whitespace());
    }
    run(&mut configure, "CMake could not configure the library");
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "2".into());
    let mut compile = Command::new(&cmake);
    compile.arg("--build").arg(&build).args(["--target", "rocflash_static", "--parallel", &jobs]);
    // Cargo's own make would be talked to through these, and refuse.
    compile.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("CARGO_MAKEFLAGS");
    run(&mut compile, "the library did not compile");
    let targets = std::fs::read_to_string(build.join("kernels/include/targets.inc")).unwrap_or_default();
    let asked =
        archs.is_some() || env::var("ROCFLASH_CMAKE_ARGS").unwrap_or_default().contains("ROCFLASH_GPU_ARCHS");
    if !asked && targets.lines().any(|line| line == "#define ROCFLASH_TARGETS 0") {
        println!(
            "cargo:warning=this build is for the CPU alone: kernels for GPUs need clang 22, lld 22 and libzstd.a \
             (ROCFLASH_CMAKE_ARGS=-DROCFLASH_GPU_ARCHS=none says that this is meant)"
        );
    }
    build
}

/// The architectures that GPU_ARCHS names, as other builds of flash attention read it; CMake refuses what it does not know.
/// "native" is all of them: one build serves every GPU.
fn asked_archs() -> Option<String> {
    let given = env::var("GPU_ARCHS").ok()?;
    let archs: Vec<&str> = given.split([';', ',', ' ']).filter(|arch| !arch.is_empty()).collect();
    if archs.is_empty() || archs == ["native"] || archs == ["all"] {
        return None;
    }
    Some(archs.join(";"))
}

/// What a program prints, or none if it is not there or fails.
fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(command: &mut Command, complaint: &str) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            stop(&format!("{complaint} ({status}); its words are above.\nThe command was: {command:?}"))
        }
        Err(error) => stop(&format!("{complaint}: {error}.\nThe command was: {command:?}")),
    }
}

fn check_cmake(cmake: &str) {
    let (major, minor) = MINIMUM_CMAKE;
    let Some(text) = answer(cmake, &["--version"]) else {
        stop(&format!(
            "`{cmake}` cannot be run. Building the bundled library needs CMake {major}.{minor} or newer \
             (CMAKE names another); or link an installed library with the feature `system`."
        ));
    };
    let found = text.split_whitespace().nth(2).and_then(version);
    if found.is_some_and(|found| found < MINIMUM_CMAKE) {
        let first = text.lines().next().unwrap_or_default();
        stop(&format!("{first} is too old; CMake {major}.{minor} or newer is needed (CMAKE names another)"));
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
        let Some(text) = answer(&cxx, &["-dumpversion"]) else { continue };
        if answer(&c, &["-dumpversion"]).is_some() && version(&text).is_some_and(|found| found.0 >= minimum) {
            return vec![format!("-DCMAKE_C_COMPILER={c}"), format!("-DCMAKE_CXX_COMPILER={cxx}")];
        }
    }
    stop(&format!(
        "no C++20 compiler was found: looked for clang++ ({MINIMUM_CLANG} or newer) and g++ ({MINIMUM_GCC} or newer). \
         Install one (Debian, Ubuntu: apt install clang), name it by CC and CXX, or link an installed library \
         with the feature `system`. Neither ROCm nor CUDA is needed."
    ));
}
