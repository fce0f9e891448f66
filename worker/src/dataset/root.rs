//! Confines a job to the directory that its node offers for data.
//!
//! A job names its data by path and may come from another machine, so a node can give its workers a directory in which
//! all data must lie.

use std::path::{Path, PathBuf};

use super::DatasetError;

/// Returns the path to open for `path`, or an error if a root is given and the path lies outside of it.
///
/// With a root, symbolic links and `..` are resolved first, and the result must lie inside of the root.
pub(super) fn resolve(path: &Path, root: Option<&Path>) -> Result<PathBuf, DatasetError> {
    let Some(root) = root else {
        return Ok(path.to_owned());
    };
    let root = root.canonicalize().map_err(DatasetError::read(root))?;
    // Joining an absolute path yields that path, which is then checked like any other.
    let joined = root.join(path);
    let resolved = joined.canonicalize();
    // A missing file is only reported inside of the root; otherwise a job could probe for files elsewhere.
    let found = resolved.as_ref().ok().cloned().or_else(|| nearest(&joined));
    if found.is_none_or(|found| !found.starts_with(&root)) {
        return Err(DatasetError::OutsideRoot {
            file: path.to_owned(),
            root,
        });
    }
    resolved.map_err(DatasetError::read(&joined))
}

/// Returns the nearest existing ancestor of a path.
fn nearest(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| above.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn paths_inside_the_root_are_found_from_it() {
        let root = tempfile::tempdir().unwrap();
        let canonical = root.path().canonicalize().unwrap();
        fs::write(root.path().join("a.csv"), "x").unwrap();
        let found = resolve(Path::new("a.csv"), Some(root.path())).unwrap();
        assert_eq!(found, canonical.join("a.csv"));
        let found = resolve(&canonical.join("a.csv"), Some(root.path())).unwrap();
        assert_eq!(found, canonical.join("a.csv"));
    }

    #[test]
    fn paths_out_of_the_root_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        // The root's name is a prefix of this name, but the root is no parent of this path.
        let secret = outer.path().join("root-secret.csv");
        fs::write(&secret, "x").unwrap();
        let nothing = outer.path().join("nothing.csv");
        for path in [
            Path::new("../root-secret.csv"),
            &secret,
            Path::new("../nothing"),
            &nothing,
        ] {
            let error = resolve(path, Some(&root)).unwrap_err();
            assert!(matches!(error, DatasetError::OutsideRoot { .. }), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_out_of_the_root_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(outer.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(outer.path(), root.join("folder")).unwrap();
        for path in ["link", "folder/secret", "folder/nothing"] {
            let error = resolve(Path::new(path), Some(&root)).unwrap_err();
            assert!(matches!(error, DatasetError::OutsideRoot { .. }), "{path}: {error}");
        }
        let missing = resolve(Path::new("missing/deep"), Some(&root)).unwrap_err();
        assert!(matches!(missing, DatasetError::Read { .. }), "{missing}");
    }

    #[test]
    fn without_a_root_a_path_is_taken_as_it_is() {
        let path = Path::new("not/there.csv");
        assert_eq!(resolve(path, None).unwrap(), path);
        assert!(resolve(path, Some(Path::new("."))).is_err());
    }
}
