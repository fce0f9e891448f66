//! Work on the GPU that is recorded once and then replayed (CUDA graphs).

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream, DriverError};

use super::error::GpuError;
use super::gpu::Gpu;

/// Records the work that `launch` puts on a stream as a graph, without running it. That work must neither wait for the
/// device nor allocate memory.
pub(super) fn record(
    stream: &Arc<CudaStream>,
    launch: impl FnOnce() -> Result<(), GpuError>,
) -> Result<CudaGraph, GpuError> {
    // Other threads of this process, which evaluate for example, may do anything meanwhile.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let launched = launch();
    // Ended in any case: a stream that records can do nothing else.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    let graph = graph?.ok_or(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))?;
    graph.upload()?;
    Ok(graph)
}

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
