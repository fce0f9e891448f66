//! The folder a model is saved to: proven writable before training, gone again if nothing comes of it.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A folder that can be written to. Folders made for it are removed again unless something was kept in them.
#[derive(Debug)]
pub(crate) struct OutFolder {
    path: PathBuf,
    /// Those that did not exist before, innermost first.
    made: Vec<PathBuf>,
}

impl OutFolder {
    /// Makes the folder where it does not exist, and proves that a file can be written to it.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let refuse = |error: std::io::Error| {
            let path = path.display();
            Failure::because(format!(
                "{path} cannot be written to: {error}; give another folder with --out"
            ))
        };
        let path = std::path::absolute(path).map_err(refuse)?;
        let made: Vec<PathBuf> = path
            .ancestors()
            .take_while(|folder| !folder.exists())
            .map(PathBuf::from)
            .collect();
        // From here on, dropping removes what was made.
        let folder = Self { path, made };
        std::fs::create_dir_all(&folder.path).map_err(refuse)?;
        tempfile::tempfile_in(&folder.path).map_err(refuse)?;
        Ok(folder)
    }

    /// A file in the folder.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for OutFolder {
    fn drop(&mut self) {
        for folder in &self.made {
            // Fails where something is in it, which is then kept.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_folders_go_and_used_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        drop(OutFolder::open(&deep).unwrap());
        assert!(!root.path().join("a").exists());
        let folder = OutFolder::open(&deep).unwrap();
        std::fs::write(folder.join("kept"), "x").unwrap();
        drop(folder);
        assert!(deep.join("kept").exists());
        drop(OutFolder::open(&deep).unwrap());
        assert!(deep.join("kept").exists());
    }

    #[test]
    fn a_file_in_the_way_is_named_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let Failure::BadInput(reasons) = OutFolder::open(&file.join("below")).unwrap_err() else {
            panic!("the file is the user's mistake");
        };
        assert!(reasons[0].contains("cannot be written to") && reasons[0].contains("--out"));
        assert!(file.exists());
    }
}
