//! Work on the GPU that is recorded once and then replayed (CUDA graphs).

use cudarc::driver::CudaGraph;

use super::error::GpuError;
use super::gpu::Gpu;

/// Work on the GPU that is launched once as it is, then recorded, and replayed from then on: a replay costs the host one
/// launch. `K` is everything that the work depends on besides the contents of device memory; if it changes, the work is
/// recorded anew.
pub(super) struct Recorded<K> {
    state: State<K>,
}

enum State<K> {
    New,
    /// The work has run once with this key, so that its algorithms are chosen and its kernels are loaded.
    Launched(K),
    Recorded(K, CudaGraph),
}

impl<K: PartialEq> Recorded<K> {
    pub(super) fn new() -> Self {
        Self { state: State::New }
    }

    /// Runs the work that `launch` launches.
    pub(super) fn run(
        &mut self,
        gpu: &Gpu,
        key: K,
        launch: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        match &self.state {
            State::Recorded(recorded, graph) if *recorded == key => return Ok(graph.launch()?),
            State::Launched(launched) if *launched == key => {
                let graph = gpu.record(launch)?;
                graph.launch()?;
                self.state = State::Recorded(key, graph);
            }
            _ => {
                launch()?;
                self.state = State::Launched(key);
            }
        }
        Ok(())
    }
}
