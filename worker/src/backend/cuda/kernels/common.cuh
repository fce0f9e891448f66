// What all kernels share. The host writes the types, numbers and structs that it shares with them in front of this file,
// and this file in front of each of the others.

// Infinite.
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

// The sum over a block of whole warps, for every thread, always in the same order.
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

// The sum over the threads before this one.
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

// The larger of two magnitudes as bits, into global memory, once a warp.
__device__ inline void keep_largest(u32* largest, u32 bits) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        bits = max(bits, __shfl_xor_sync(ALL, bits, distance));
    }
    if (threadIdx.x % WARP == 0 && bits > 0) {
        atomicMax(largest, bits);
    }
}

// An optimiser's state as it is kept.
__device__ inline float kept(float state) {
    return fabsf(state) < NEGLIGIBLE ? 0.0f : state;
}
