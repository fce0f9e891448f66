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
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::address::DeviceAddress;
use super::error::GpuError;
use crate::backend::device::Precision;

/// Memory that a product may use for itself: as much as PyTorch gives it on such devices.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Proposals that are tried, at most, and how often each.
const PROPOSALS: usize = 16;
const TRIALS: u32 = 8;
/// The largest alignment that makes a difference.
const ALIGNMENT_MAX: u64 = 256;

const TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_32F;

/// Whether a matrix is read as it lies, in columns, or transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transposed {
    No,
    Yes,
}

/// A matrix on the device, in columns as the library counts: one in rows is its own transposed one.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    at: DeviceAddress<f32>,
    /// From one column to the next.
    stride: usize,
    transposed: Transposed,
}

impl Matrix {
    /// A matrix as it lies.
    pub(super) fn plain(at: DeviceAddress<f32>, stride: usize) -> Self {
        Self {
            at,
            stride,
            transposed: Transposed::No,
        }
    }

    /// The transpose of what lies there.
    pub(super) fn transposed(at: DeviceAddress<f32>, stride: usize) -> Self {
        Self {
            transposed: Transposed::Yes,
            ..Self::plain(at, stride)
        }
    }
}

/// What is done with a product before it is written.
#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    Nothing,
    /// A bias is added to each column.
    Bias(DeviceAddress<f32>),
    /// And what is below zero is cut.
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

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The length of its sums.
    pub(super) inner: usize,
}

/// `out = a · b`, all in columns, and what comes after.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) sizes: Sizes,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) out: Matrix,
    pub(super) epilogue: Epilogue,
}

/// All that decides which algorithm is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    sizes: Sizes,
    transposed: (Transposed, Transposed),
    strides: (usize, usize, usize),
    /// Of both factors, the product, and the bias.
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

/// A product that is ready to run.
struct Plan {
    description: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 3],
    /// `None` if the library knows none.
    algorithm: Option<cublasLtMatmulAlgo_t>,
}

/// What was found out, for all workers of this process: the same shape is always computed in the same way.
static FOUND: LazyLock<Mutex<HashMap<Shape, Option<cublasLtMatmulAlgo_t>>>> = LazyLock::new(Mutex::default);

pub(super) struct Products {
    handle: cublasLtHandle_t,
    stream: Arc<CudaStream>,
    workspace: CudaSlice<u8>,
    precision: Cell<Precision>,
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
            precision: Cell::new(precision),
            compete: Cell::new(true),
            plans: RefCell::default(),
        })
    }

    /// Says whether the products that follow are worth finding the fastest way for.
    pub(super) fn compete(&self, compete: bool) {
        self.compete.set(compete);
    }

    /// Multiplies in full meanwhile.
    pub(super) fn in_full<T>(&self, compute: impl FnOnce() -> T) -> T {
        let before = self.precision.replace(Precision::F32);
        let computed = compute();
        self.precision.set(before);
        computed
    }

    /// Computes a product.
    ///
    /// # Safety
    /// As for [`Products::try_multiply`].
    pub(super) unsafe fn multiply(&self, product: Product) -> Result<(), GpuError> {
        // SAFETY: as the caller has promised.
        if unsafe { self.try_multiply(product)? } {
            Ok(())
        } else {
            let Sizes { rows, columns, inner } = product.sizes;
            Err(GpuError::NoProduct((rows, columns, inner)))
        }
    }

    /// Computes a product, if the library can do that in one go.
    ///
    /// # Safety
    /// The matrices and the bias must lie within arrays of this device, with the sizes and strides that are said, and
    /// `out` must overlap with none of the others.
    pub(super) unsafe fn try_multiply(&self, product: Product) -> Result<bool, GpuError> {
        let shape = Shape::new(&product, self.precision.get());
        let mut plans = self.plans.borrow_mut();
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(plan) => plan.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut plan = Plan::new(&shape)?;
                plan.set_bias(product.epilogue)?;
                // SAFETY: as the caller has promised; trying a product writes where it is to be.
                plan.algorithm = unsafe { self.find(&shape, &plan, &product)? };
                place.insert(plan)
            }
        };
        let Some(algorithm) = plan.algorithm else {
            return Ok(false);
        };
        plan.set_bias(product.epilogue)?;
        // SAFETY: as the caller has promised.
        unsafe { self.run(plan, &algorithm, &product)? };
        Ok(true)
    }

    /// # Safety
    /// As for [`Products::try_multiply`], with the plan of such a product.
    unsafe fn run(&self, plan: &Plan, algorithm: &cublasLtMatmulAlgo_t, product: &Product) -> Result<(), CublasError> {
        let (one, zero) = (1f32, 0f32);
        let [of_a, of_b, of_out] = plan.layouts;
        let (workspace, _held) = self.workspace.device_ptr(&self.stream);
        let out = product.out.at.address();
        // SAFETY: as the caller has promised; the two factors are read before the call returns.
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
                self.stream.cu_stream().cast(),
            )
        }
    }

    /// The fastest algorithm that the library proposes and that works.
    ///
    /// # Safety
    /// As for [`Products::try_multiply`], with the plan of such a product.
    unsafe fn find(
        &self,
        shape: &Shape,
        plan: &Plan,
        product: &Product,
    ) -> Result<Option<cublasLtMatmulAlgo_t>, GpuError> {
        // Held while it looks: others would look for the same at the same time, and disturb it.
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&algorithm) = found.get(shape) {
            return Ok(algorithm);
        }
        let mut best: Option<(Duration, cublasLtMatmulAlgo_t)> = None;
        for algorithm in self.proposals(shape, plan)? {
            // SAFETY: as the caller has promised.
            if unsafe { self.run(plan, &algorithm, product) }.is_err() {
                continue;
            }
            if !self.compete.get() {
                // Not told to others: who needs it often shall look for a faster one.
                return Ok(Some(algorithm));
            }
            self.stream.synchronize()?;
            let start = Instant::now();
            for _ in 0..TRIALS {
                // SAFETY: as the caller has promised.
                unsafe { self.run(plan, &algorithm, product)? };
            }
            self.stream.synchronize()?;
            let time = start.elapsed();
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
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
        // SAFETY: the value is of the attribute's type, and is copied before the call returns.
        Ok(unsafe { lt::set_matmul_desc_attribute(self.description, attribute, place, size_of::<T>()) }?)
    }
}

/// `cublasOperation_t`, which the bindings of this library leave out.
fn operation(transposed: Transposed) -> i32 {
    match transposed {
        Transposed::No => 0,
        Transposed::Yes => 1,
    }
}
