// The shared weights: changes that others made, and what they all come to.

// Adds another origin's changes, sorted by index, to both copies. A weight that is named several times belongs to the
// thread of its first word, so that no two threads touch one weight.
extern "C" __global__ void apply(const u32* words, u32 count, float tau, float* shared, float* own, Report* report) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 largest = 0;
    if (at < count) {
        u32 word = words[at];
        if (at == 0 || words[at - 1] >> 1 != word >> 1) {
            u32 index = word >> 1;
            float change = word & 1 ? tau : -tau;
            float kept = shared[index];
            float moved = own[index];
            for (u32 next = at; next < count && words[next] == word; ++next) {
                kept += change;
                moved += change;
            }
            shared[index] = kept;
            own[index] = moved;
            largest = __float_as_uint(fabsf(kept));
        }
    }
    keep_largest(&report->largest, largest);
}

// Moves weights by whole steps of the grid: pairs of an index and a number of steps, each index once.
extern "C" __global__ void shift(const u32* entries, u32 count, float* shared, float* own, Report* report) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 largest = 0;
    if (at < count) {
        u32 index = entries[2 * at];
        int steps = int(entries[2 * at + 1]);
        // A sum that does not fit is infinitely far out of the range.
        double moved = double(shared[index]) + double(steps) * double(GRID);
        shared[index] = float(moved);
        own[index] += float(steps) * GRID;
        largest = __float_as_uint(fabsf(float(moved)));
    }
    keep_largest(&report->largest, largest);
}

__device__ u64 splitmix64(u64 state) {
    state += 0x9e3779b97f4a7c15;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    return state ^ (state >> 31);
}

// Adds the digest of the shared weights to `sums[0]`; `sums[1]` counts those that are not on the lattice.
extern "C" __global__ void digest(const float* shared, u64 weights, u64* sums) {
    u64 sum = 0;
    u64 astray = 0;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < weights; at += u64(gridDim.x) * blockDim.x) {
        float count = shared[at] * STEPS_PER_UNIT;
        bool lies = count == rintf(count) && fabsf(count) <= RANGE_ERROR * STEPS_PER_UNIT && __float_as_uint(shared[at]) != 0x80000000;
        sum += lies ? (splitmix64(at) | 1) * u64((long long)count) : 0;
        astray += !lies;
    }
    sum = block_sum(sum);
    astray = block_sum(astray);
    if (threadIdx.x == 0) {
        atomicAdd(sums, sum);
        atomicAdd(sums + 1, astray);
    }
}

// What has not been emitted, of every so many-th weight.
extern "C" __global__ void sample_residual(const float* own, const float* velocity, float ahead, const float* shared,
                                           u64 step, u32 count, float* sample) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        u64 index = u64(at) * step;
        float come_to = ahead == 0.0f ? own[index] : own[index] + ahead * velocity[index];
        sample[at] = come_to - shared[index];
    }
}
