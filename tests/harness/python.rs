//! A Python interpreter with PyTorch and with the extension of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::skip;

/// A virtual environment in which `import tau` finds the extension that was built beside the binary. Removed on drop.
pub(crate) struct Python {
    folder: tempfile::TempDir,
}

impl Python {
    /// Makes a virtual environment. Without PyTorch or the extension, says that the test is skipped.
    pub(crate) fn find() -> Option<Self> {
        let binary = Path::new(env!("CARGO_BIN_EXE_tau"));
        let extension = binary.parent().unwrap().join("deps/lib_tau.so");
        if !extension.is_file() {
            skip("the extension is not built: test the whole workspace");
            return None;
        }
        let base = std::env::var("TAU_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into());
        let has_torch = Command::new(&base).args(["-c", "import torch"]).output();
        if !has_torch.is_ok_and(|output| output.status.success()) {
            skip(&format!("{base} has no PyTorch: name another with TAU_TEST_PYTHON"));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new(&base)
            .args(["-m", "venv", "--system-site-packages", "--without-pip"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let python = Self { folder };
        let package = python.folder.path().join("package/tau");
        std::fs::create_dir_all(&package).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tau");
        for file in std::fs::read_dir(sources).unwrap().flatten() {
            if file.path().extension().is_some_and(|kind| kind == "py") {
                std::fs::copy(file.path(), package.join(file.file_name())).unwrap();
            }
        }
        std::os::unix::fs::symlink(extension, package.join("_tau.abi3.so")).unwrap();
        let library = std::fs::read_dir(python.folder.path().join("lib")).unwrap().next();
        let packages = library.unwrap().unwrap().path().join("site-packages");
        let root = package.parent().unwrap().display().to_string();
        std::fs::write(packages.join("tau.pth"), root).unwrap();
        Some(python)
    }

    /// Returns the path of the interpreter.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.path().join("bin/python")
    }
}
