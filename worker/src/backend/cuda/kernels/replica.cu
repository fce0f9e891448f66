// Operations on both copies of the weights: applying other workers' changes, reporting to the host, digest and
// residual.

// Copies words from one address to another; either may be in host memory.
//
// The device's copy engines could do this, too. But with six processes on one GPU, a copy by an engine followed by a
// kernel cost half a millisecond per step, presumably because copy engines and kernels take turns separately.
extern "C" __global__ void copy_words(const u32* from, u32* to, u32 count) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at];
    }
}

// Copies a step's report and the emitted changes to the host.
extern "C" __global__ void tell_host(const Report* report, const u32* words, Report* to_report, u32* to_words) {
    u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    if (first == 0) {
        *to_report = *report;
    }
    u32 count = report->not_finite || report->left_range ? 0 : report->words;
    for (u32 at = first; at < count; at += gridDim.x * blockDim.x) {
        to_words[at] = words[at];
    }
}

// Returns the first entry of a segment that names weight `index` or a later one.
__device__ u32 first_of(const Segment& segment, const u32* words, u32 index) {
    u32 from = 0;
    u32 to = segment.count;
    while (from < to) {
        u32 middle = (from + to) / 2;
        if (words[segment.from + middle] >> 1 < index) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

__device__ bool names(const Segment& segment, const u32* words, u32 entry, u32 index) {
    return entry < segment.count && words[segment.from + entry] >> 1 == index;
}

// Adds other workers' changes to both copies: segments of entries sorted by weight, in the order of the segments. The
// thread of the first entry that names a weight applies all entries of that weight. So no two threads touch one weight,
// and its changes are applied in the order of their arrival.
extern "C" __global__ void apply_waiting(const Segment* waiting, u32 segment_count, const u32* words, u32 entries,
                                         float* shared, float* own, Report* report) {
    __shared__ Segment segments[SEGMENTS_MAX];
    if (threadIdx.x < segment_count) {
        segments[threadIdx.x] = waiting[threadIdx.x];
    }
    __syncthreads();
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 largest = 0;
    if (at < entries) {
        u32 mine = 0;
        while (mine + 1 < segment_count && segments[mine + 1].entries_before <= at) {
            ++mine;
        }
        u32 entry = at - segments[mine].entries_before;
        u32 index = words[segments[mine].from + entry] >> 1;
        bool first = entry == 0 || !names(segments[mine], words, entry - 1, index);
        for (u32 before = 0; first && before < mine; ++before) {
            first = !names(segments[before], words, first_of(segments[before], words, index), index);
        }
        if (first) {
            float kept = shared[index];
            float moved = own[index];
            for (u32 next = mine; next < segment_count; ++next) {
                const Segment& segment = segments[next];
                for (u32 place = next == mine ? entry : first_of(segment, words, index);
                     names(segment, words, place, index); ++place) {
                    if (segment.tau > 0.0f) {
                        float change = words[segment.from + place] & 1 ? segment.tau : -segment.tau;
                        kept += change;
                        moved += change;
                    } else {
                        // Whole lattice steps, stored after the entries. A sum that does not fit becomes infinite, and
                        // so out of range.
                        int steps = int(words[segment.from + segment.count + place]);
                        kept = float(double(kept) + double(steps) * double(LATTICE_STEP));
                        moved += float(steps) * LATTICE_STEP;
                    }
                }
                largest = max(largest, __float_as_uint(fabsf(kept)));
            }
            shared[index] = kept;
            own[index] = moved;
        }
    }
    keep_largest(&report->largest, largest);
}

__device__ u64 splitmix64(u64 state) {
    state += 0x9e3779b97f4a7c15;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    return state ^ (state >> 31);
}

// Adds the digest of the shared weights to `sums[0]`, and the number of weights off the lattice to `sums[1]`.
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

// Computes the residual of every `step`-th weight.
extern "C" __global__ void sample_residual(const float* own, const float* velocity, float ahead, const float* shared,
                                           u64 step, u32 count, float* sample) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        u64 index = u64(at) * step;
        float come_to = ahead == 0.0f ? own[index] : own[index] + ahead * velocity[index];
        sample[at] = come_to - shared[index];
    }
}
