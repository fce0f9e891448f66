// After a gradient: the optimiser's update, and the emission of changes in the order of their indices.
//
// Weights are divided into tiles, one per thread block. `update` moves the own weights and counts the changes that are
// due in each compared tile and in groups of tiles; `emit` adds up the counts before a tile, writes the tile's changes
// at their index and moves the shared weights. Nothing here is contracted to fused operations, so a CPU computes the
// same bits.

// Moves weights along a gradient that Muon has replaced by a direction; the clip is in it already.
struct Along {
    static __device__ float update(float g, float& first, float& second, float clip, const Factors& by) {
        return -by.rate * g;
    }
};

struct Sgd {
    static __device__ float update(float g, float& first, float& second, float clip, const Factors& by) {
        return -by.rate * clip * g;
    }
};

struct Velocity {
    static __device__ float update(float g, float& first, float& second, float clip, const Factors& by) {
        g = clip * g;
        float before = first;
        first = kept(by.momentum * before + g);
        return by.ahead_before * before - (by.of_gradient * g + by.of_velocity * first);
    }
};

struct Squares {
    static __device__ float update(float g, float& first, float& second, float clip, const Factors& by) {
        g = clip * g;
        first = kept(by.keep * first + by.take * (g * g));
        return -by.rate * g / (sqrtf(first) + by.epsilon);
    }
};

struct Adam {
    static __device__ float update(float g, float& first, float& second, float clip, const Factors& by) {
        g = clip * g;
        first = kept(by.momentum * first + (1.0f - by.momentum) * g);
        second = kept(by.keep * second + (1.0f - by.keep) * (g * g));
        return -by.rate * first / (sqrtf(second) * by.spread + by.epsilon);
    }
};

__device__ bool is_compared(const Compare& compare, const u32* eager, u32 tile) {
    bool turn = compare.turn_from <= tile && tile < compare.turn_to;
    return compare.tau > 0.0f && (turn || (eager[tile / 32] >> (tile % 32) & 1));
}

// Returns the residual of a weight: own copy, without look-ahead, minus shared copy.
__device__ float residual_of(float own, float velocity, float shared, const Compare& compare) {
    float come_to = compare.ahead == 0.0f ? own : own + compare.ahead * velocity;
    return come_to - shared;
}

// Returns the number of changes of a weight that are due.
__device__ u32 due(float residual, const Compare& compare) {
    float size = fabsf(residual);
    u32 repeats = 0;
    while (size >= compare.tau && repeats < compare.repeats) {
        size -= compare.tau;
        ++repeats;
    }
    return repeats;
}

// Returns the number of due changes, and notes in the report if the residual is not finite or the weight would leave
// the range: then nothing is emitted.
__device__ u32 count_of(float residual, float shared, const Compare& compare, Report* report) {
    if (!isfinite(residual)) {
        report->not_finite = 1;
        return 0;
    }
    u32 count = due(residual, compare);
    if (count > 0 && fabsf(shared + (residual > 0.0f ? compare.tau : -compare.tau) * float(count)) >= RANGE_ERROR) {
        report->left_range = 1;
    }
    return count;
}

__device__ float& lane(float4& four, u32 at) {
    return reinterpret_cast<float*>(&four)[at];
}

__device__ void keep_count(u32 count, u32 tile, u32* counts, u32* groups) {
    if (threadIdx.x == 0) {
        counts[tile] = count;
        if (count > 0) {
            atomicAdd(groups + tile / GROUP, count);
        }
    }
}

template <typename Rule, bool FIRST, bool SECOND>
__device__ void update_tile(const float4* gradient, float4* own, float4* first, float4* second, const float4* shared,
                            const u32* eager, Factors by, Compare compare, Report* report, u32* counts, u32* groups) {
    u32 tile = blockIdx.x;
    u64 at = u64(tile) * TILE_THREADS + threadIdx.x;
    float clip = report->clip;
    float4 g = gradient[at];
    float4 w = own[at];
    float4 v = FIRST ? first[at] : make_float4(0, 0, 0, 0);
    float4 s = SECOND ? second[at] : make_float4(0, 0, 0, 0);
    for (u32 i = 0; i < 4; ++i) {
        float update = Rule::update(lane(g, i), lane(v, i), lane(s, i), clip, by);
        lane(w, i) += update - by.shrink * lane(w, i);
    }
    own[at] = w;
    if (FIRST) {
        first[at] = v;
    }
    if (SECOND) {
        second[at] = s;
    }
    if (compare.tau <= 0.0f) {
        return;
    }
    u32 count = 0;
    if (is_compared(compare, eager, tile)) {
        float4 kept = shared[at];
        for (u32 i = 0; i < 4; ++i) {
            float residual = residual_of(lane(w, i), lane(v, i), lane(kept, i), compare);
            count += count_of(residual, lane(kept, i), compare, report);
        }
        count = block_sum(count);
    }
    keep_count(count, tile, counts, groups);
}

#define UPDATE(NAME, RULE, FIRST, SECOND)                                                                              \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS)                                                         \
        NAME(const float4* gradient, float4* own, float4* first, float4* second, const float4* shared,                 \
             const u32* eager, Factors by, Compare compare, Report* report, u32* counts, u32* groups) {                \
        update_tile<RULE, FIRST, SECOND>(gradient, own, first, second, shared, eager, by, compare, report, counts,     \
                                         groups);                                                                      \
    }

UPDATE(update_along, Along, false, false)
UPDATE(update_sgd, Sgd, false, false)
UPDATE(update_velocity, Velocity, true, false)
UPDATE(update_squares, Squares, true, false)
UPDATE(update_adam, Adam, true, true)

// Adam's direction for weights outside of matrices, in steps in which Muon moves the matrices.
extern "C" __global__ void direct_others(const u32* others, u32 count, Factors by, const Report* report, float* gradient,
                                         float* first, float* second) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        u32 weight = others[at];
        gradient[weight] = Adam::update(gradient[weight], first[weight], second[weight], report->clip, by);
    }
}

// Counts the changes that are due at the present weights, without an update.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    count_due(const float4* own, const float4* velocity, const float4* shared, Compare compare, Report* report,
              u32* counts, u32* groups) {
    u32 tile = blockIdx.x;
    u64 at = u64(tile) * TILE_THREADS + threadIdx.x;
    float4 w = own[at];
    float4 v = compare.ahead == 0.0f ? w : velocity[at];
    float4 kept = shared[at];
    u32 count = 0;
    for (u32 i = 0; i < 4; ++i) {
        float residual = residual_of(lane(w, i), lane(v, i), lane(kept, i), compare);
        count += count_of(residual, lane(kept, i), compare, report);
    }
    count = block_sum(count);
    keep_count(count, tile, counts, groups);
}

// Number of changes before a tile, and of all changes.
struct Place {
    u32 before;
    u32 all;
};

// Computes the place of a tile's changes if each tile may emit at most `allowed`.
__device__ Place place_of(u32 tile, u32 tiles, const u32* counts, u32 allowed) {
    u32 before = 0;
    u32 all = 0;
    for (u32 other = threadIdx.x; other < tiles; other += blockDim.x) {
        u32 count = min(counts[other], allowed);
        before += other < tile ? count : 0;
        all += count;
    }
    return Place{block_sum(before), block_sum(all)};
}

// Computes the place of a tile's changes if all may leave: adds up groups, and single tiles only within the tile's own
// group.
__device__ Place place_by_groups(u32 tile, u32 tiles, const u32* counts, const u32* groups) {
    u32 before = 0;
    u32 all = 0;
    for (u32 group = threadIdx.x; group < (tiles + GROUP - 1) / GROUP; group += blockDim.x) {
        u32 count = groups[group];
        before += group < tile / GROUP ? count : 0;
        all += count;
    }
    u32 other = tile / GROUP * GROUP + threadIdx.x;
    before += other < tile ? counts[other] : 0;
    return Place{block_sum(before), block_sum(all)};
}

// Writes the changes of each tile to their places and moves the shared weights by them. If more are due than fit into a
// batch, every tile may emit the same number, so that no part of a model waits for ever behind another.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    emit(const float4* own, const float4* velocity, float4* shared, Compare compare, const u32* tile_counts,
         const u32* groups, u32 words_max, Report* report, u32* words) {
    u32 tile = blockIdx.x;
    u32 tiles = gridDim.x;
    u32 here = tile_counts[tile];
    bool reports = tile == tiles - 1;
    if ((here == 0 && !reports) || report->not_finite || report->left_range) {
        return;
    }
    Place place = place_by_groups(tile, tiles, tile_counts, groups);
    if (place.all > words_max) {
        u32 allowed = words_max / tiles;
        place = place_of(tile, tiles, tile_counts, allowed);
        here = min(here, allowed);
    }
    if (reports && threadIdx.x == 0) {
        report->words = place.all;
    }
    u32 from = place.before;
    u32 to = from + here;
    u64 at = u64(tile) * TILE_THREADS + threadIdx.x;
    float4 w = own[at];
    float4 v = compare.ahead == 0.0f ? w : velocity[at];
    float4 kept = shared[at];
    u32 counts[4];
    u32 count = 0;
    for (u32 i = 0; i < 4; ++i) {
        counts[i] = due(residual_of(lane(w, i), lane(v, i), lane(kept, i), compare), compare);
        count += counts[i];
    }
    u32 next = from + block_sum_before(count);
    u32 largest = 0;
    if (count > 0) {
        for (u32 i = 0; i < 4; ++i) {
            bool plus = residual_of(lane(w, i), lane(v, i), lane(kept, i), compare) > 0.0f;
            u32 word = u32(at * 4 + i) << 1 | u32(plus);
            u32 leave = next < to ? min(counts[i], to - next) : 0;
            for (u32 repeat = 0; repeat < leave; ++repeat) {
                words[next + repeat] = word;
            }
            next += counts[i];
            // Sums of whole lattice steps within the exact range: one addition gives the same as several.
            float moved = lane(kept, i) + (plus ? compare.tau : -compare.tau) * float(leave);
            if (leave > 0) {
                lane(kept, i) = moved;
                largest = max(largest, __float_as_uint(fabsf(moved)));
            }
        }
        shared[at] = kept;
    }
    keep_largest(&report->largest, largest);
}

// Sums up the squares of a gradient, one sum per thread block.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    sum_squares(const float4* gradient, u64 fours, double* sums) {
    double sum = 0.0;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < fours; at += u64(gridDim.x) * blockDim.x) {
        float4 g = gradient[at];
        sum += double(g.x * g.x + g.y * g.y) + double(g.z * g.z + g.w * g.w);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
    }
}

// Computes the mean loss and the clip factor of a step before its update. Clears the counts that the update adds to,
// and the next step's report. Runs as one thread block.
extern "C" __global__ void __launch_bounds__(256)
    loss_and_clip(const float* losses, u32 samples, const double* sums, u32 parts, double norm_max, Report* report,
          Report* next, u32* groups, u32 group_count) {
    for (u32 group = threadIdx.x; group < group_count; group += blockDim.x) {
        groups[group] = 0;
    }
    double loss = 0.0;
    for (u32 at = threadIdx.x; at < samples; at += blockDim.x) {
        loss += double(losses[at]);
    }
    loss = block_sum(loss) / double(samples);
    double norm = 0.0;
    for (u32 at = threadIdx.x; at < parts; at += blockDim.x) {
        norm += sums[at];
    }
    norm = sqrt(block_sum(norm));
    if (threadIdx.x == 0) {
        report->loss = float(loss);
        report->words = 0;
        report->left_range = 0;
        report->not_finite = !(isfinite(loss) && isfinite(norm));
        report->clip = norm_max > 0.0 && norm > norm_max ? float(norm_max / norm) : 1.0f;
        next->largest = 0;
    }
}
