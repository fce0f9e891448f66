// Functions that all kernels share. The host writes the shared types, constants and structs in front of this file, and
// this file in front of each kernel file.

// Positive infinity.
#define HUGE __int_as_float(0x7f800000)

constexpr u32 WARP = 32;
constexpr u32 ALL = 0xffffffff;

template <typename T>
__device__ T warp_sum(T value) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL, value, distance);
    }
    return value;
}

__device__ inline float warp_max(float value) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL, value, distance));
    }
    return value;
}

// Returns the sum over a thread block of whole warps to every thread, always added in the same order.
template <typename T>
__device__ T block_sum(T value) {
    __shared__ T sums[WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) {
        sums[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    T total = T();
    for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) {
        total += sums[warp];
    }
    __syncthreads();
    return total;
}

__device__ inline float block_max(float value) {
    __shared__ float largest[WARP];
    value = warp_max(value);
    if (threadIdx.x % WARP == 0) {
        largest[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    value = largest[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; ++warp) {
        value = fmaxf(value, largest[warp]);
    }
    __syncthreads();
    return value;
}

// Returns the sum over the threads of the block before this one.
__device__ inline u32 block_sum_before(u32 value) {
    __shared__ u32 sums[WARP];
    u32 lane = threadIdx.x % WARP;
    u32 before = value;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u32 other = __shfl_up_sync(ALL, before, distance);
        before += lane >= distance ? other : 0;
    }
    if (lane == WARP - 1) {
        sums[threadIdx.x / WARP] = before;
    }
    __syncthreads();
    u32 warps_before = 0;
    for (u32 warp = 0; warp < threadIdx.x / WARP; ++warp) {
        warps_before += sums[warp];
    }
    __syncthreads();
    return warps_before + before - value;
}

// Updates a maximum in global memory, of magnitudes as bits, with one atomic operation per warp.
__device__ inline void keep_largest(u32* largest, u32 bits) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        bits = max(bits, __shfl_xor_sync(ALL, bits, distance));
    }
    if (threadIdx.x % WARP == 0 && bits > 0) {
        atomicMax(largest, bits);
    }
}

// Returns an optimiser's state, with negligible values replaced by zero.
__device__ inline float kept(float state) {
    return fabsf(state) < NEGLIGIBLE ? 0.0f : state;
}
