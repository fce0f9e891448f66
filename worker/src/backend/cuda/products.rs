//! Matrix products by cuBLASLt. For the shapes of a full minibatch, the fastest of the proposed algorithms is measured
//! at their first use; smaller minibatches are rare and use the first proposal.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulAlgoGetHeuristic,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreferenceAttributes_t as Preference, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType_t,
};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr};

use super::address::DeviceAddress;
use super::error::GpuError;
use super::recorded::record;
use crate::backend::device::Precision;

/// Bytes of scratch memory for a matrix product: as much as PyTorch allows on such GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Most algorithms that are tried for a matrix product; `TRIALS` is the number of timed runs of each.
const PROPOSALS: usize = 16;
const TRIALS: u32 = 20;
/// Share of the shortest time so far that an algorithm may take at most to be chosen instead: processes that measure
/// nearly the same then choose the same.
const MARGIN: f32 = 0.97;
/// Largest alignment in bytes of a matrix that affects the choice of an algorithm for its product.
const ALIGNMENT_MAX: u64 = 256;

const TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_32F;

/// Tells if a matrix is read as stored (in columns) or transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transposed {
    No,
    Yes,
}

/// A matrix on the device in column-major order, as cuBLASLt expects; a row-major matrix is given as its transpose.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    at: DeviceAddress<f32>,
    /// Distance from one column of the stored matrix to the next, in numbers.
    stride: usize,
    transposed: Transposed,
}

impl Matrix {
    /// Makes a matrix that is read as stored: in columns.
    pub(super) fn plain(at: DeviceAddress<f32>, stride: usize) -> Self {
        Self {
            at,
            stride,
            transposed: Transposed::No,
        }
    }

    /// Makes a matrix that is read as the transpose of the stored one.
    pub(super) fn transposed(at: DeviceAddress<f32>, stride: usize) -> Self {
        Self {
            transposed: Transposed::Yes,
            ..Self::plain(at, stride)
        }
    }
}

/// Operation applied to a matrix product before it is written.
#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    Nothing,
    /// Adds a bias vector to each column of the product.
    Bias(DeviceAddress<f32>),
    /// Adds a bias vector to each column of the product, then applies relu.
    BiasRelu(DeviceAddress<f32>),
}

impl Epilogue {
    fn bias(self) -> Option<DeviceAddress<f32>> {
        match self {
            Self::Nothing => None,
            Self::Bias(bias) | Self::BiasRelu(bias) => Some(bias),
        }
    }

    fn code(self) -> cublasLtEpilogue_t {
        match self {
            Self::Nothing => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Self::Bias(_) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Self::BiasRelu(_) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        }
    }
}

/// Sizes of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Length of the dimension that the matrix product sums over.
    pub(super) inner: usize,
}

/// The product `out = a · b` of column-major matrices, followed by an epilogue.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) sizes: Sizes,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) out: Matrix,
    pub(super) epilogue: Epilogue,
}

/// Everything that affects which algorithm is fastest for a matrix product; key of the cache of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    sizes: Sizes,
    transposed: (Transposed, Transposed),
    strides: (usize, usize, usize),
    /// Alignments in bytes of the product's matrices `a`, `b` and `out` and of the bias.
    alignments: (u64, u64, u64, u64),
    epilogue: cublasLtEpilogue_t,
    precision: Precision,
}

impl Shape {
    fn new(product: &Product, precision: Precision) -> Self {
        let alignment =
            |at: DeviceAddress<f32>| 1 << u64::from(at.address().trailing_zeros()).min(ALIGNMENT_MAX.ilog2().into());
        let Product {
            sizes,
            a,
            b,
            out,
            epilogue,
        } = product;
        Self {
            sizes: *sizes,
            transposed: (a.transposed, b.transposed),
            strides: (a.stride, b.stride, out.stride),
            alignments: (
                alignment(a.at),
                alignment(b.at),
                alignment(out.at),
                epilogue.bias().map_or(ALIGNMENT_MAX, alignment),
            ),
            epilogue: epilogue.code(),
            precision,
        }
    }
}

/// A prepared matrix product: cuBLASLt's descriptors and the chosen algorithm.
struct Plan {
    description: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 3],
    /// The chosen algorithm; `None` if the library has none for this product.
    algorithm: Option<cublasLtMatmulAlgo_t>,
}

/// Algorithms that were chosen in this process, so that all its workers compute a shape in the same way.
static FOUND: LazyLock<Mutex<HashMap<Shape, Option<cublasLtMatmulAlgo_t>>>> = LazyLock::new(Mutex::default);

pub(super) struct Products {
    handle: cublasLtHandle_t,
    /// The two streams of the GPU, each with scratch memory for the product that runs on it.
    streams: [(Arc<CudaStream>, CudaSlice<u8>); 2],
    /// Index of the stream that products are launched on.
    present: Cell<usize>,
    /// Events around timed products.
    begun: CudaEvent,
    done: CudaEvent,
    precision: Cell<Precision>,
    /// True if the algorithms for a new shape of products are timed; else the first that works is taken.
    compete: Cell<bool>,
    plans: RefCell<HashMap<Shape, Plan>>,
}

impl Products {
    pub(super) fn new([stream, side]: [&Arc<CudaStream>; 2], precision: Precision) -> Result<Self, GpuError> {
        let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        // Allocated on one stream, where it is also freed.
        let with_workspace =
            |of: &Arc<CudaStream>| Ok::<_, GpuError>((Arc::clone(of), stream.alloc_zeros(WORKSPACE_BYTES)?));
        Ok(Self {
            handle: lt::create_handle()?,
            streams: [with_workspace(stream)?, with_workspace(side)?],
            present: Cell::new(0),
            begun: event()?,
            done: event()?,
            precision: Cell::new(precision),
            compete: Cell::new(true),
            plans: RefCell::default(),
        })
    }

    /// Sets whether products are launched on the second stream from now on.
    pub(super) fn go_beside(&self, beside: bool) {
        self.present.set(usize::from(beside));
    }

    /// Sets whether the algorithms for new shapes of products are timed from now on; else the first that works is
    /// taken.
    pub(super) fn compete(&self, compete: bool) {
        self.compete.set(compete);
    }

    /// Runs `compute` with matrix products in full precision.
    pub(super) fn in_full<T>(&self, compute: impl FnOnce() -> T) -> T {
        let before = self.precision.replace(Precision::F32);
        let computed = compute();
        self.precision.set(before);
        computed
    }

    /// Computes a product; fails if the library has no algorithm for it.
    ///
    /// # Safety
    /// As for [`Products::try_multiply`].
    pub(super) unsafe fn multiply(&self, product: Product) -> Result<(), GpuError> {
        // SAFETY: the caller promises that matrices and bias lie within arrays of this device.
        if unsafe { self.try_multiply(product)? } {
            Ok(())
        } else {
            let Sizes { rows, columns, inner } = product.sizes;
            Err(GpuError::NoProduct((rows, columns, inner)))
        }
    }

    /// Computes a product and returns true, or returns false if the library has no algorithm for it.
    ///
    /// # Safety
    /// The matrices and the bias must lie within arrays of this device, with the given sizes and strides, and `out`
    /// must not overlap with the others.
    pub(super) unsafe fn try_multiply(&self, product: Product) -> Result<bool, GpuError> {
        let shape = Shape::new(&product, self.precision.get());
        let mut plans = self.plans.borrow_mut();
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(plan) => plan.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut plan = Plan::new(&shape)?;
                plan.set_bias(product.epilogue)?;
                // SAFETY: as the caller has promised; trial runs only write to `out`.
                plan.algorithm = unsafe { self.find(&shape, &plan, &product)? };
                place.insert(plan)
            }
        };
        let Some(algorithm) = plan.algorithm else {
            return Ok(false);
        };
        plan.set_bias(product.epilogue)?;
        // SAFETY: the caller promises that matrices and bias lie within arrays of this device.
        unsafe { self.run(plan, &algorithm, &product)? };
        Ok(true)
    }

    /// Launches one product with a given algorithm.
    ///
    /// # Safety
    /// As for [`Products::try_multiply`]; `plan` must be made for this product.
    unsafe fn run(&self, plan: &Plan, algorithm: &cublasLtMatmulAlgo_t, product: &Product) -> Result<(), CublasError> {
        let (one, zero) = (1f32, 0f32);
        let [of_a, of_b, of_out] = plan.layouts;
        let (stream, workspace) = &self.streams[self.present.get()];
        let (workspace, _held) = workspace.device_ptr(stream);
        let out = product.out.at.address();
        // SAFETY: as the caller has promised; `one` and `zero` are read before the call returns.
        unsafe {
            lt::matmul(
                self.handle,
                plan.description,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                product.a.at.address() as *const c_void,
                of_a,
                product.b.at.address() as *const c_void,
                of_b,
                out as *const c_void,
                of_out,
                out as *mut c_void,
                of_out,
                algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        }
    }

    /// Returns the fastest of the algorithms that the library proposes and that work.
    ///
    /// # Safety
    /// As for [`Products::try_multiply`]; `plan` must be made for this product.
    unsafe fn find(
        &self,
        shape: &Shape,
        plan: &Plan,
        product: &Product,
    ) -> Result<Option<cublasLtMatmulAlgo_t>, GpuError> {
        // Locked during the search, because other workers would search for the same shapes and disturb the timing.
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&algorithm) = found.get(shape) {
            return Ok(algorithm);
        }
        let stream = &self.streams[self.present.get()].0;
        let mut best: Option<(f32, cublasLtMatmulAlgo_t)> = None;
        for algorithm in self.proposals(shape, plan)? {
            // SAFETY: the caller promises that matrices and bias lie within arrays of this device.
            if unsafe { self.run(plan, &algorithm, product) }.is_err() {
                continue;
            }
            if !self.compete.get() {
                // Not shared: a worker that uses this shape often should measure the algorithms.
                return Ok(Some(algorithm));
            }
            // Replayed, because launches one by one take the host longer than small products take the device.
            let trials = record(stream, || {
                // SAFETY: the caller promises that matrices and bias lie within arrays of this device.
                (0..TRIALS).try_for_each(|_| unsafe { self.run(plan, &algorithm, product) }.map_err(GpuError::from))
            })?;
            trials.launch()?;
            self.begun.record(stream)?;
            trials.launch()?;
            self.done.record(stream)?;
            let time = self.begun.elapsed_ms(&self.done)?;
            if best.as_ref().is_none_or(|(least, _)| time < MARGIN * least) {
                best = Some((time, algorithm));
            }
        }
        let algorithm = best.map(|(_, algorithm)| algorithm);
        found.insert(*shape, algorithm);
        Ok(algorithm)
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
        // SAFETY: each attribute's value lives during its call; the library writes at most `PROPOSALS` results and
        // counts them.
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
        // SAFETY: the library has written `count` results.
        let results = results.map(|result| unsafe { result.assume_init_ref() });
        let sound = results.filter(|result| result.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(sound.map(|result| result.algo).collect())
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this value, and no plan outlives it.
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
        let Sizes { rows, columns, inner } = shape.sizes;
        let compute = match shape.precision {
            Precision::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let layout = |rows: usize, columns: usize, transposed: Transposed, stride: usize| {
            let (rows, columns) = match transposed {
                Transposed::No => (rows, columns),
                Transposed::Yes => (columns, rows),
            };
            lt::create_matrix_layout(TYPE, rows as u64, columns as u64, stride as i64)
        };
        let (a, b) = shape.transposed;
        let plan = Self {
            description: lt::create_matmul_desc(compute, TYPE)?,
            layouts: [
                layout(rows, inner, a, shape.strides.0)?,
                layout(inner, columns, b, shape.strides.1)?,
                layout(rows, columns, Transposed::No, shape.strides.2)?,
            ],
            algorithm: None,
        };
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(a))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(b))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue)?;
        Ok(plan)
    }

    fn set_bias(&self, epilogue: Epilogue) -> Result<(), GpuError> {
        match epilogue.bias() {
            None => Ok(()),
            Some(bias) => self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address()),
        }
    }

    fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), GpuError> {
        let place = std::ptr::from_ref(&value).cast();
        // SAFETY: the value has the attribute's type, and is copied before the call returns.
        Ok(unsafe { lt::set_matmul_desc_attribute(self.description, attribute, place, size_of::<T>()) }?)
    }
}

/// Returns the value of cuBLAS's enum `cublasOperation_t` for a matrix that is read as stored or transposed; the
/// bindings lack that enum.
fn operation(transposed: Transposed) -> i32 {
    match transposed {
        Transposed::No => 0,
        Transposed::Yes => 1,
    }
}
