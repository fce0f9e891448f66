//! Paths of the files that this node keeps of runs.

use std::path::{Path, PathBuf};

use protocol::ids::RunId;

use crate::checkpoint;

/// The node's folder with a subfolder for each run. Files carry the node's name, because nodes may share a folder.
#[derive(Clone, Debug)]
pub(crate) struct RunFiles {
    dir: PathBuf,
    /// Folder in which models are saved if the node's folder cannot be written to.
    spare_dir: PathBuf,
    node: String,
}

impl RunFiles {
    /// Creates the paths of a node with this folder and name. Only here is the system asked where temporary files are.
    pub(crate) fn new(dir: PathBuf, node: &str) -> Self {
        Self {
            dir,
            spare_dir: std::env::temp_dir(),
            node: node.into(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path at which the model of a run is saved.
    pub(crate) fn model(&self, run: RunId) -> PathBuf {
        self.of(&self.dir.join(run.to_string()))
    }

    /// Returns the path at which the model of a run is saved if the node's folder cannot be written to.
    pub(crate) fn spare_model(&self, run: RunId) -> PathBuf {
        self.of(&self.spare_dir.join(format!("tau-rescued-{run}")))
    }

    /// Returns the path at which checkpoints of a run are written.
    pub(crate) fn checkpoint(&self, run: RunId) -> PathBuf {
        checkpoint::path(&self.dir.join(run.to_string()), &self.node)
    }

    fn of(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.safetensors", self.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_run_lie_together_and_two_nodes_files_apart() {
        let (one, other) = (RunFiles::new("d".into(), "n1"), RunFiles::new("d".into(), "n2"));
        let (run, next) = (RunId(0xaa), RunId(0xab));
        assert_eq!(one.model(run), Path::new("d/00000000000000aa/n1.safetensors"));
        assert_eq!(one.checkpoint(run).parent(), one.model(run).parent());
        assert_ne!(one.model(run), other.model(run));
        assert_ne!(one.checkpoint(run), other.checkpoint(run));
        assert_ne!(one.spare_model(run), one.spare_model(next));
        assert!(!one.spare_model(run).starts_with(one.dir()));
    }
}
