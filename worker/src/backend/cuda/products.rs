//! Matrix products through cuBLASLt. For the shapes of a whole minibatch the fastest of what the library proposes is
//! found out at their first use; smaller minibatches are rare, and take what it proposes first.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulAlgoGetHeuristic,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreferenceAttributes_t as Preference, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType_t,
};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::error::GpuError;
use crate::device::Precision;

/// Memory that a product may use for itself: as much as PyTorch gives it on such devices.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Proposals that are tried, at most, and how often each.
const PROPOSALS: usize = 16;
const TRIALS: u32 = 8;
/// The largest alignment that makes a difference.
const ALIGNMENT_MAX: u64 = 256;

const TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_32F;

/// Whether a matrix is read as it lies, in columns, or turned round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Turned {
    No,
    Yes,
}

/// A matrix on the device, in columns as the library counts: one in rows is its own turned one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) at: CUdeviceptr,
    /// From one column to the next.
    pub(super) stride: usize,
    pub(super) turned: Turned,
}

/// What is done with a product before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum After {
    Nothing,
    /// A bias is added to each column.
    Bias,
    /// And what is below zero is cut.
    BiasRelu,
}

/// All that decides which way is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    /// Rows and columns of the product, and the length of its sums.
    sizes: (usize, usize, usize),
    turned: (Turned, Turned),
    strides: (usize, usize, usize),
    /// Of both factors, the product, and the bias.
    alignments: (u64, u64, u64, u64),
    after: After,
    precision: Precision,
}

/// A product that is ready to run.
struct Plan {
    description: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 3],
    /// `None` if the library knows no way.
    way: Option<cublasLtMatmulAlgo_t>,
}

/// What was found out, for all workers of this process: the same shape is always computed in the same way.
static FOUND: LazyLock<Mutex<HashMap<Shape, Option<cublasLtMatmulAlgo_t>>>> = LazyLock::new(Mutex::default);

pub(super) struct Products {
    handle: cublasLtHandle_t,
    stream: Arc<CudaStream>,
    workspace: CudaSlice<u8>,
    precision: Precision,
    /// Whether proposals compete now.
    compete: Cell<bool>,
    plans: RefCell<HashMap<Shape, Plan>>,
}

impl Products {
    pub(super) fn new(stream: &Arc<CudaStream>, precision: Precision) -> Result<Self, GpuError> {
        Ok(Self {
            handle: lt::create_handle()?,
            workspace: stream.alloc_zeros(WORKSPACE_BYTES)?,
            stream: Arc::clone(stream),
            precision,
            compete: Cell::new(true),
            plans: RefCell::default(),
        })
    }

    /// Says whether the products that follow are worth finding the fastest way for.
    pub(super) fn compete(&self, compete: bool) {
        self.compete.set(compete);
    }

    /// `out = a · b`, rows by columns over a length, all in columns; and what comes after, with its bias. `false` if the
    /// library cannot do that in one go.
    ///
    /// # Safety
    /// The matrices and the bias must lie within memory of this device, and `out` must overlap with none of the others.
    pub(super) unsafe fn multiply(
        &self,
        sizes: (usize, usize, usize),
        a: Matrix,
        b: Matrix,
        (out, stride): (CUdeviceptr, usize),
        (after, bias): (After, CUdeviceptr),
    ) -> Result<bool, GpuError> {
        let alignment = |at: CUdeviceptr| 1 << u64::from(at.trailing_zeros()).min(ALIGNMENT_MAX.ilog2().into());
        let shape = Shape {
            sizes,
            turned: (a.turned, b.turned),
            strides: (a.stride, b.stride, stride),
            alignments: (alignment(a.at), alignment(b.at), alignment(out), alignment(bias)),
            after,
            precision: self.precision,
        };
        let mut plans = self.plans.borrow_mut();
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(plan) => plan.into_mut(),
            // SAFETY: the caller's word; trying a product writes where it is to be.
            std::collections::hash_map::Entry::Vacant(place) => place.insert(unsafe {
                let mut plan = Plan::new(&shape)?;
                plan.set_bias(after, bias)?;
                plan.way = self.find(&shape, &plan, (a.at, b.at, out))?;
                plan
            }),
        };
        let Some(way) = plan.way else {
            return Ok(false);
        };
        plan.set_bias(after, bias)?;
        // SAFETY: the caller's word.
        unsafe { self.run(plan, &way, (a.at, b.at, out))? };
        Ok(true)
    }

    unsafe fn run(
        &self,
        plan: &Plan,
        way: &cublasLtMatmulAlgo_t,
        (a, b, out): (CUdeviceptr, CUdeviceptr, CUdeviceptr),
    ) -> Result<(), CublasError> {
        let (one, zero) = (1f32, 0f32);
        let [of_a, of_b, of_out] = plan.layouts;
        let (workspace, _held) = self.workspace.device_ptr(&self.stream);
        // SAFETY: the caller's word; the two factors are read before the call returns.
        unsafe {
            lt::matmul(
                self.handle,
                plan.description,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                a as *const c_void,
                of_a,
                b as *const c_void,
                of_b,
                out as *const c_void,
                of_out,
                out as *mut c_void,
                of_out,
                way,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )
        }
    }

    /// The fastest way that the library proposes and that works.
    unsafe fn find(
        &self,
        shape: &Shape,
        plan: &Plan,
        places: (CUdeviceptr, CUdeviceptr, CUdeviceptr),
    ) -> Result<Option<cublasLtMatmulAlgo_t>, GpuError> {
        // Held while it looks: others would look for the same at the same time, and disturb it.
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&way) = found.get(shape) {
            return Ok(way);
        }
        let mut best: Option<(Duration, cublasLtMatmulAlgo_t)> = None;
        for way in self.proposals(shape, plan)? {
            // SAFETY: the caller's word.
            if unsafe { self.run(plan, &way, places) }.is_err() {
                continue;
            }
            if !self.compete.get() {
                best = Some((Duration::ZERO, way));
                break;
            }
            self.stream.synchronize()?;
            let start = Instant::now();
            for _ in 0..TRIALS {
                // SAFETY: the caller's word.
                unsafe { self.run(plan, &way, places)? };
            }
            self.stream.synchronize()?;
            let time = start.elapsed();
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                best = Some((time, way));
            }
        }
        let way = best.map(|(_, way)| way);
        found.insert(*shape, way);
        Ok(way)
    }

    fn proposals(&self, shape: &Shape, plan: &Plan) -> Result<Vec<cublasLtMatmulAlgo_t>, GpuError> {
        let preference = lt::create_matmul_pref()?;
        let (a, b, out, _) = shape.alignments;
        let wishes = [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
        ];
        let mut results = [const { MaybeUninit::<cublasLtMatmulHeuristicResult_t>::uninit() }; PROPOSALS];
        let mut count = 0;
        let [of_a, of_b, of_out] = plan.layouts;
        // SAFETY: attributes are read while their values live; as many results are written as are counted.
        let status = unsafe {
            let bytes = WORKSPACE_BYTES;
            let attribute = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            lt::set_matmul_pref_attribute(
                preference,
                attribute,
                std::ptr::from_ref(&bytes).cast(),
                size_of_val(&bytes),
            )?;
            for (attribute, bytes) in wishes {
                let bytes = bytes as u32;
                let value = std::ptr::from_ref(&bytes).cast();
                lt::set_matmul_pref_attribute(preference, attribute, value, size_of_val(&bytes))?;
            }
            let status = cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                plan.description,
                of_a,
                of_b,
                of_out,
                of_out,
                preference,
                PROPOSALS as i32,
                results.as_mut_ptr().cast(),
                &raw mut count,
            );
            lt::destroy_matmul_pref(preference)?;
            status
        };
        if status != cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            return Ok(Vec::new());
        }
        let results = results.iter().take(count as usize);
        // SAFETY: so many were written.
        let results = results.map(|result| unsafe { result.assume_init_ref() });
        let sound = results.filter(|result| result.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(sound.map(|result| result.algo).collect())
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: the handle is its own, and no plan outlives it.
        unsafe {
            for plan in self.plans.get_mut().values() {
                for layout in plan.layouts {
                    let _ = lt::destroy_matrix_layout(layout);
                }
                let _ = lt::destroy_matmul_desc(plan.description);
            }
            let _ = lt::destroy_handle(self.handle);
        }
    }
}

impl Plan {
    fn new(shape: &Shape) -> Result<Self, GpuError> {
        let (rows, columns, inner) = shape.sizes;
        let compute = match shape.precision {
            Precision::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let epilogue = match shape.after {
            After::Nothing => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            After::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            After::BiasRelu => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        let layout = |rows: usize, columns: usize, turned: Turned, stride: usize| {
            let (rows, columns) = match turned {
                Turned::No => (rows, columns),
                Turned::Yes => (columns, rows),
            };
            lt::create_matrix_layout(TYPE, rows as u64, columns as u64, stride as i64)
        };
        let (a, b) = shape.turned;
        let plan = Self {
            description: lt::create_matmul_desc(compute, TYPE)?,
            layouts: [
                layout(rows, inner, a, shape.strides.0)?,
                layout(inner, columns, b, shape.strides.1)?,
                layout(rows, columns, Turned::No, shape.strides.2)?,
            ],
            way: None,
        };
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(a))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(b))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        Ok(plan)
    }

    fn set_bias(&self, after: After, bias: CUdeviceptr) -> Result<(), GpuError> {
        match after {
            After::Nothing => Ok(()),
            After::Bias | After::BiasRelu => self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias),
        }
    }

    fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), GpuError> {
        let place = std::ptr::from_ref(&value).cast();
        // SAFETY: the value is of the attribute's type, and is copied before the call returns.
        Ok(unsafe { lt::set_matmul_desc_attribute(self.description, attribute, place, size_of::<T>()) }?)
    }
}

/// `cublasOperation_t`, which the bindings of this library leave out.
fn operation(turned: Turned) -> i32 {
    match turned {
        Turned::No => 0,
        Turned::Yes => 1,
    }
}
