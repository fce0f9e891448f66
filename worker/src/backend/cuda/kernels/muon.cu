// Muon's orthogonal updates: replaces the gradient by the direction in which the optimiser moves the weights.
//
// A block is a part of a matrix, seen as `size` rows by `length` columns with `size` at most `length`: blocks that are
// taller than wide are read transposed. Its columns are cut into runs, which are processed in chunks of SIDE columns.
// `muon_gather` updates each run's velocity and computes the run's product with its own transpose; `muon_iterate` adds
// these products up to the block's Gram matrix and computes the matrix that makes the block orthogonal; `muon_turn`
// multiplies each run by that matrix. `ops/orthogonal.rs` on the host explains the method. Small matrices are padded
// with zeros to SIDE by SIDE, so that all threads do the same work.

// Rows and columns of the square tile of a product that one thread computes.
constexpr u32 EDGE = 4;
constexpr u32 SQUARES = SIDE / EDGE;
// Squares on and above the diagonal; by symmetry they determine a symmetric product.
constexpr u32 TRIANGLE = SQUARES * (SQUARES + 1) / 2;
// Threads that compute a whole product.
constexpr u32 THREADS = SQUARES * SQUARES;
// Lanes that share one square in `muon_iterate`, where a thread block has a multiprocessor to itself.
constexpr u32 LANES = 2;
constexpr u32 ITERATING_THREADS = (TRIANGLE * LANES + WARP - 1) / WARP * WARP;

// Number of rows with different rotations in shared memory.
constexpr u32 TURNS = 8;

struct Place {
    u32 row;
    u32 column;
};

struct Square {
    float at[EDGE * EDGE];
};

__device__ bool has_turn(const Block& block, const Turns& turns) {
    return (block.number + turns.step) % turns.every == 0;
}

// Index of a number of a small matrix in shared memory. Rows are rotated against each other, so that the numbers of a
// column lie in different banks; groups of four adjacent numbers stay together. Reads of these matrices limit the
// kernel's speed.
__device__ u32 place(u32 row, u32 column) {
    return row * SIDE + (column ^ row % TURNS * 4);
}

__device__ const float4& four(const float* values) {
    return *reinterpret_cast<const float4*>(values);
}

__device__ float4& four(float* values) {
    return *reinterpret_cast<float4*>(values);
}

// Returns the first number of a square of the triangle; numbers beyond the last square give the last.
__device__ Place of_triangle(u32 number) {
    u32 row = 0;
    u32 rest = min(number, TRIANGLE - 1);
    while (rest >= SQUARES - row) {
        rest -= SQUARES - row;
        ++row;
    }
    return Place{row * EDGE, (row + rest) * EDGE};
}

// Adds one lane's part of a square of aᵀ b; SHARING lanes divide the rows of the sum so that they read different banks.
// For symmetric matrices aᵀ is a.
template <u32 SHARING>
__device__ void add_products(Square& sums, const float* a, const float* b, const Place& square) {
    constexpr u32 EACH = TURNS / SHARING;
    u32 first = threadIdx.x % SHARING * EACH;
    // Rows that are TURNS apart have the same rotation, so the addresses in the inner loop are known at compile time.
#pragma unroll 1
    for (u32 turn = first; turn < first + EACH; ++turn) {
        const float* x = a + place(turn, square.row);
        const float* y = b + place(turn, square.column);
#pragma unroll
        for (u32 k = 0; k < SIDE; k += TURNS) {
            float4 row = four(x + k * SIDE);
            float4 column = four(y + k * SIDE);
            float rows[EDGE] = {row.x, row.y, row.z, row.w};
            float columns[EDGE] = {column.x, column.y, column.z, column.w};
#pragma unroll
            for (u32 i = 0; i < EDGE; ++i) {
#pragma unroll
                for (u32 j = 0; j < EDGE; ++j) {
                    sums.at[i * EDGE + j] = __fmaf_rn(rows[i], columns[j], sums.at[i * EDGE + j]);
                }
            }
        }
    }
}

// Stores a square and, if `mirrored`, its transpose on the other side of the diagonal.
__device__ void store(float* values, const Square& square, const Place& at, bool mirrored) {
#pragma unroll
    for (u32 i = 0; i < EDGE; ++i) {
        const float* s = square.at;
        four(values + place(at.row + i, at.column)) =
            make_float4(s[i * EDGE], s[i * EDGE + 1], s[i * EDGE + 2], s[i * EDGE + 3]);
        if (mirrored) {
            four(values + place(at.column + i, at.row)) = make_float4(s[i], s[EDGE + i], s[2 * EDGE + i], s[3 * EDGE + i]);
        }
    }
}

// Numbers of a chunk that one thread handles.
constexpr u32 PLACES = SIDE * SIDE / THREADS;

// Visits the numbers of a chunk that this thread handles, in the order of memory: calls `visit` with their count, the
// weight's index, its row, its column, and true if it lies within the block.
template <typename Visit>
__device__ void each_of(const Block& block, u32 first, Visit visit) {
    bool wide = block.along == 1;
#pragma unroll
    for (u32 i = 0; i < PLACES; ++i) {
        u32 at = threadIdx.x + i * THREADS;
        u32 row = wide ? at / SIDE : at % SIDE;
        u32 column = wide ? at % SIDE : at / SIDE;
        u32 weight = block.offset + row * block.across + (first + column) * block.along;
        visit(i, weight, row, column, row < block.size && first + column < block.length);
    }
}

// Updates the velocity of a run whose block has no turn, in the order of memory, and zeroes its gradient.
__device__ void move_velocity(const Run& run, const Block& block, float momentum, float clip, float* gradient,
                              float* velocity) {
    bool wide = block.along == 1;
    u32 width = run.end - run.first;
    u32 side_by_side = wide ? width : block.size;
    for (u32 first = threadIdx.x; first < block.size * width; first += PLACES * THREADS) {
        float g[PLACES], v[PLACES];
        u32 weights[PLACES];
#pragma unroll
        for (u32 i = 0; i < PLACES; ++i) {
            u32 at = first + i * THREADS;
            u32 row = wide ? at / side_by_side : at % side_by_side;
            u32 column = run.first + (wide ? at % side_by_side : at / side_by_side);
            weights[i] = block.offset + row * block.across + column * block.along;
            bool is_there = at < block.size * width;
            g[i] = is_there ? gradient[weights[i]] : 0.0f;
            v[i] = is_there ? velocity[weights[i]] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PLACES; ++i) {
            if (first + i * THREADS < block.size * width) {
                velocity[weights[i]] = kept(momentum * v[i] + clip * g[i]);
                gradient[weights[i]] = 0.0f;
            }
        }
    }
}

// Updates the velocity of each run. If its block has its turn, replaces the gradient by the matrix to be made
// orthogonal and stores the product with its own transpose; else zeroes the gradient.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_gather(const Run* runs, const Block* blocks, Turns turns, float momentum, const Report* report, float* gradient,
                float* velocity, float* products) {
    __shared__ __align__(16) float chunk[SIDE * SIDE];
    Run run = runs[blockIdx.x];
    Block block = blocks[run.block];
    float clip = report->clip;
    if (!has_turn(block, turns)) {
        move_velocity(run, block, momentum, clip, gradient, velocity);
        return;
    }
    bool multiplies = threadIdx.x < TRIANGLE;
    Place square = of_triangle(threadIdx.x);
    Square sums = {};
    for (u32 first = run.first; first < run.end; first += SIDE) {
        // All loads are issued before the first value is used.
        float g[PLACES], v[PLACES];
        each_of(block, first, [&](u32 i, u32 weight, u32 row, u32 column, bool is_there) {
            g[i] = is_there ? gradient[weight] : 0.0f;
            v[i] = is_there ? velocity[weight] : 0.0f;
        });
        each_of(block, first, [&](u32 i, u32 weight, u32 row, u32 column, bool is_there) {
            float clipped = clip * g[i];
            float moved = kept(momentum * v[i] + clipped);
            float ahead = clipped + momentum * moved;
            if (is_there) {
                velocity[weight] = moved;
                gradient[weight] = ahead;
            }
            chunk[place(column, row)] = ahead;
        });
        __syncthreads();
        if (multiplies) {
            add_products<1>(sums, chunk, chunk, square);
        }
        __syncthreads();
    }
    if (multiplies) {
        store(products + u64(blockIdx.x) * SIDE * SIDE, sums, square, square.row != square.column);
    }
}

// Returns the sum over all threads to every thread. `room` needs one number per warp, because all other shared memory
// is in use.
__device__ double sum_of_threads(double value, double* room) {
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) {
        room[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    double sum = 0.0;
    for (u32 warp = 0; warp < ITERATING_THREADS / WARP; ++warp) {
        sum += room[warp];
    }
    __syncthreads();
    return sum;
}

// Computes the Gram matrix of a block, divided by its norm, and returns the norm. `room` is for sums of warps.
__device__ float normalised(const Block& block, const float* products, float* gram, double* room) {
    constexpr u32 FOURS = SIDE * SIDE / 4;
    constexpr u32 EACH = (FOURS + ITERATING_THREADS - 1) / ITERATING_THREADS;
    const float* first = products + u64(block.first_run) * SIDE * SIDE;
    float4 sums[EACH] = {};
#pragma unroll 4
    for (u32 run = 0; run < block.runs; ++run) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            u32 at = threadIdx.x + i * ITERATING_THREADS;
            if (at < FOURS) {
                float4 part = four(first + (u64(run) * FOURS + at) * 4);
                sums[i] = make_float4(sums[i].x + part.x, sums[i].y + part.y, sums[i].z + part.z, sums[i].w + part.w);
            }
        }
    }
    double squares = 0.0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        float4 sum = sums[i];
        squares += double(sum.x) * sum.x + double(sum.y) * sum.y + double(sum.z) * sum.z + double(sum.w) * sum.w;
    }
    float norm = float(sqrt(sum_of_threads(squares, room))) + MUON_EPSILON;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 at = threadIdx.x + i * ITERATING_THREADS;
        if (at < FOURS) {
            four(gram + at * 4) = make_float4(sums[i].x / norm, sums[i].y / norm, sums[i].z / norm, sums[i].w / norm);
        }
    }
    return norm;
}

// Computes one square of a symmetric product, for all lanes that share the square.
__device__ Square symmetric_product(const float* a, const float* b, const Place& square) {
    Square sums = {};
    add_products<LANES>(sums, a, b, square);
#pragma unroll
    for (u32 i = 0; i < EDGE * EDGE; ++i) {
#pragma unroll
        for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
            sums.at[i] += __shfl_xor_sync(ALL, sums.at[i], distance);
        }
    }
    return sums;
}

// Computes one square of the polynomial of a Gram matrix.
__device__ Square polynomial_of(const float* gram, const Place& square) {
    Square found = symmetric_product(gram, gram, square);
#pragma unroll
    for (u32 i = 0; i < EDGE; ++i) {
#pragma unroll
        for (u32 j = 0; j < EDGE; ++j) {
            u32 row = square.row + i;
            u32 column = square.column + j;
            float diagonal = row == column ? MUON_A : 0.0f;
            float& at = found.at[i * EDGE + j];
            at = diagonal + MUON_B * gram[place(row, column)] + MUON_C * at;
        }
    }
    return found;
}

// Stores a square and its mirror image, by the first of the lanes that share the square.
__device__ void store_symmetric(float* values, const Square& square, const Place& at) {
    if (threadIdx.x < TRIANGLE * LANES && threadIdx.x % LANES == 0) {
        store(values, square, at, at.row != at.column);
    }
}

// Computes, for each block that has its turn, the matrix that makes it orthogonal. All matrices here are polynomials of
// the block's Gram matrix, and so symmetric. The three shared arrays fill the static limit of shared memory.
extern "C" __global__ void __launch_bounds__(ITERATING_THREADS)
    muon_iterate(const Block* blocks, Turns turns, u32 iterations, const float* products, float* factors) {
    __shared__ __align__(16) float gram[SIDE * SIDE];
    __shared__ __align__(16) float polynomial[SIDE * SIDE];
    __shared__ __align__(16) float collected[SIDE * SIDE];
    Block block = blocks[blockIdx.x];
    if (!has_turn(block, turns)) {
        return;
    }
    Place square = of_triangle(threadIdx.x / LANES);
    float norm = normalised(block, products, gram, reinterpret_cast<double*>(polynomial));
    __syncthreads();
    for (u32 iteration = 1;; ++iteration) {
        Square found = polynomial_of(gram, square);
        store_symmetric(polynomial, found, square);
        __syncthreads();
        if (iteration > 1) {
            found = symmetric_product(polynomial, collected, square);
        }
        if (iteration == iterations) {
            float scale = block.scale / sqrtf(norm);
#pragma unroll
            for (u32 i = 0; i < EDGE * EDGE; ++i) {
                found.at[i] *= scale;
            }
            store_symmetric(factors + u64(blockIdx.x) * SIDE * SIDE, found, square);
            return;
        }
        Square half_way = symmetric_product(polynomial, gram, square);
        __syncthreads();
        store_symmetric(collected, found, square);
        store_symmetric(gram, half_way, square);
        __syncthreads();
        Square next = symmetric_product(polynomial, gram, square);
        __syncthreads();
        store_symmetric(gram, next, square);
        __syncthreads();
    }
}

// Multiplies each run of the blocks that have their turn by the matrix that makes the block orthogonal.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_turn(const Run* runs, const Block* blocks, Turns turns, const float* factors, float* gradient) {
    __shared__ __align__(16) float factor[SIDE * SIDE];
    __shared__ __align__(16) float chunk[SIDE * SIDE];
    Run run = runs[blockIdx.x];
    Block block = blocks[run.block];
    if (!has_turn(block, turns)) {
        return;
    }
#pragma unroll
    for (u32 at = threadIdx.x * 4; at < SIDE * SIDE; at += THREADS * 4) {
        four(factor + at) = four(factors + u64(run.block) * SIDE * SIDE + at);
    }
    Place square = {threadIdx.x / SQUARES * EDGE, threadIdx.x % SQUARES * EDGE};
    for (u32 first = run.first; first < run.end; first += SIDE) {
        float values[PLACES];
        each_of(block, first, [&](u32 i, u32 weight, u32 row, u32 column, bool is_there) {
            values[i] = is_there ? gradient[weight] : 0.0f;
        });
        each_of(block, first, [&](u32 i, u32 weight, u32 row, u32 column, bool is_there) {
            chunk[place(row, column)] = values[i];
        });
        __syncthreads();
        Square turned = {};
        add_products<1>(turned, factor, chunk, square);
        __syncthreads();
        store(chunk, turned, square, false);
        __syncthreads();
        each_of(block, first, [&](u32 i, u32 weight, u32 row, u32 column, bool is_there) {
            if (is_there) {
                gradient[weight] = chunk[place(row, column)];
            }
        });
        __syncthreads();
    }
}
