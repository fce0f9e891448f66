//! Tests that an interpreter loads the extension, which needs no PyTorch. Skipped with a message without Python.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const PYTHON: &str = "python3";
/// Program that prints the release, and fails if importing has loaded PyTorch.
const SCRIPT: &str = "import sys, tau; assert 'torch' not in sys.modules; print(tau.__version__)";

#[test]
fn an_interpreter_imports_the_extension_without_pytorch() {
    if !Command::new(PYTHON)
        .arg("--version")
        .output()
        .is_ok_and(|said| said.status.success())
    {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the extension is not imported ({PYTHON} is missing)"
        );
        return;
    }
    let built = std::env::current_exe().unwrap().with_file_name("lib_tau.so");
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("tau");
    std::fs::create_dir(&package).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tau");
    for file in std::fs::read_dir(sources).unwrap().flatten() {
        if file.path().extension().is_some_and(|kind| kind == "py") {
            std::fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    std::fs::copy(built, package.join("_tau.abi3.so")).unwrap();
    let said = Command::new(PYTHON)
        .args(["-c", SCRIPT])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let version = String::from_utf8(said.stdout).unwrap();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
}
