// Orthogonal updates: the gradient becomes the direction that all weights are moved along.
//
// A block is some rows of a matrix, `size` of them by `length`, of which size is the smaller: the kernels look at what is
// taller than wide from its side. It is cut into chunks of SIDE along its length. `muon_gather` moves each chunk's
// velocity and multiplies it by itself; `muon_iterate` adds these products up to the block's Gram matrix and finds the
// matrix that makes the block orthogonal; `muon_turn` multiplies each chunk by that. The host's `ops/orthogonal.rs` says
// why. Everything small is filled up with zeros to SIDE by SIDE, and all threads do the same.

// A thread has a square of EDGE by EDGE numbers of a product.
constexpr u32 EDGE = 4;
constexpr u32 THREADS = SIDE / EDGE * (SIDE / EDGE);
// Rows of chunks are a little apart, so that columns lie in different banks.
constexpr u32 PITCH = SIDE + EDGE;

struct Square {
    float at[EDGE][EDGE];
};

__device__ bool has_turn(u32 block, const Turns& turns) {
    return (block + turns.step) % turns.every == 0;
}

// Where a thread's square begins.
__device__ u32 row_of_thread() {
    return threadIdx.x / (SIDE / EDGE) * EDGE;
}

__device__ u32 column_of_thread() {
    return threadIdx.x % (SIDE / EDGE) * EDGE;
}

__device__ Square zeros() {
    return Square{};
}

__device__ const float4& four(const float* values) {
    return *reinterpret_cast<const float4*>(values);
}

// Adds the products of EDGE numbers by EDGE others.
__device__ void add_products(Square& sums, const float4& a, const float4& b) {
    float rows[EDGE] = {a.x, a.y, a.z, a.w};
    float columns[EDGE] = {b.x, b.y, b.z, b.w};
    for (u32 i = 0; i < EDGE; ++i) {
        for (u32 j = 0; j < EDGE; ++j) {
            sums.at[i][j] = __fmaf_rn(rows[i], columns[j], sums.at[i][j]);
        }
    }
}

// The thread's square of aᵀ b. What is symmetric is its own transpose.
template <u32 PITCH_A, u32 PITCH_B>
__device__ Square product(const float* a, const float* b) {
    Square sums = zeros();
    a += row_of_thread();
    b += column_of_thread();
#pragma unroll 8
    for (u32 k = 0; k < SIDE; ++k) {
        add_products(sums, four(a + k * PITCH_A), four(b + k * PITCH_B));
    }
    return sums;
}

__device__ void store(float* values, const Square& square) {
    values += row_of_thread() * SIDE + column_of_thread();
    for (u32 i = 0; i < EDGE; ++i) {
        const float* row = square.at[i];
        *reinterpret_cast<float4*>(values + i * SIDE) = make_float4(row[0], row[1], row[2], row[3]);
    }
}

// The places of a chunk, one after the other as they lie in memory: calls with where each is among all weights, its row
// and its column.
template <typename Visit>
__device__ void each_of(const Block& block, u32 first, Visit visit) {
    bool wide = block.along == 1;
    for (u32 at = threadIdx.x; at < SIDE * SIDE; at += THREADS) {
        u32 row = wide ? at / SIDE : at % SIDE;
        u32 column = wide ? at % SIDE : at / SIDE;
        bool is_there = row < block.size && first + column < block.length;
        visit(is_there, block.offset + u64(row) * block.across + u64(first + column) * block.along, row, column);
    }
}

// Moves the velocity of each chunk. Where a block has its turn, the gradient becomes what is to be made orthogonal, and
// its products with itself are kept; elsewhere nothing moves.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_gather(const Chunk* chunks, const Block* blocks, Turns turns, float momentum, const Report* report,
                float* gradient, float* velocity, float* products) {
    __shared__ __align__(16) float tile[SIDE * PITCH];
    Chunk chunk = chunks[blockIdx.x];
    Block block = blocks[chunk.block];
    bool turn = has_turn(chunk.block, turns);
    float clip = report->clip;
    each_of(block, chunk.first, [&](bool is_there, u64 at, u32 row, u32 column) {
        float ahead = 0.0f;
        if (is_there) {
            float g = clip * gradient[at];
            float v = kept(momentum * velocity[at] + g);
            velocity[at] = v;
            ahead = turn ? g + momentum * v : 0.0f;
            gradient[at] = ahead;
        }
        tile[column * PITCH + row] = ahead;
    });
    if (turn) {
        __syncthreads();
        store(products + u64(blockIdx.x) * SIDE * SIDE, product<PITCH, PITCH>(tile, tile));
    }
}

// The sum over all threads, for every thread; `room` has a place for each.
__device__ double sum_of_threads(double value, double* room) {
    room[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            room[threadIdx.x] += room[threadIdx.x + half];
        }
        __syncthreads();
    }
    double sum = room[0];
    __syncthreads();
    return sum;
}

// The Gram matrix of a block, divided by its norm, which is returned. `room` is for the threads' own sums.
__device__ float normalised(const Block& block, const float* products, float* gram, double* room) {
    u32 chunks = (block.length + SIDE - 1) / SIDE;
    const float* first = products + u64(block.first_chunk) * SIDE * SIDE;
    double squares = 0.0;
    for (u32 at = threadIdx.x * 4; at < SIDE * SIDE; at += THREADS * 4) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 chunk = 0; chunk < chunks; ++chunk) {
            float4 part = four(first + u64(chunk) * SIDE * SIDE + at);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        *reinterpret_cast<float4*>(gram + at) = sum;
        squares += double(sum.x) * sum.x + double(sum.y) * sum.y + double(sum.z) * sum.z + double(sum.w) * sum.w;
    }
    float norm = float(sqrt(sum_of_threads(squares, room))) + MUON_EPSILON;
    for (u32 at = threadIdx.x; at < SIDE * SIDE; at += THREADS) {
        gram[at] /= norm;
    }
    return norm;
}

// The thread's square of the polynomial of a Gram matrix.
__device__ Square polynomial_of(const float* gram) {
    Square found = product<SIDE, SIDE>(gram, gram);
    for (u32 i = 0; i < EDGE; ++i) {
        for (u32 j = 0; j < EDGE; ++j) {
            u32 row = row_of_thread() + i;
            u32 column = column_of_thread() + j;
            float diagonal = row == column ? MUON_A : 0.0f;
            found.at[i][j] = diagonal + MUON_B * gram[row * SIDE + column] + MUON_C * found.at[i][j];
        }
    }
    return found;
}

// Finds, for each block that has its turn, the matrix that makes it orthogonal. The three matrices here take all the
// memory that a block of threads has without asking for more.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_iterate(const Block* blocks, u32 block_count, Turns turns, u32 iterations, const float* products,
                 float* factors) {
    __shared__ __align__(16) float gram[SIDE * SIDE];
    __shared__ __align__(16) float polynomial[SIDE * SIDE];
    __shared__ __align__(16) float collected[SIDE * SIDE];
    u32 number = blockIdx.x * turns.every + (turns.every - turns.step) % turns.every;
    if (number >= block_count) {
        return;
    }
    Block block = blocks[number];
    float norm = normalised(block, products, gram, reinterpret_cast<double*>(polynomial));
    float scale = block.scale / sqrtf(norm);
    for (u32 at = threadIdx.x; at < SIDE * SIDE; at += THREADS) {
        collected[at] = at % (SIDE + 1) == 0 ? scale : 0.0f;
    }
    __syncthreads();
    for (u32 iteration = 1; iteration < iterations; ++iteration) {
        store(polynomial, polynomial_of(gram));
        __syncthreads();
        // The polynomial is multiplied by both at once: it is read once.
        Square more_collected = zeros();
        Square half_way = zeros();
#pragma unroll 4
        for (u32 k = 0; k < SIDE; ++k) {
            float4 row = four(polynomial + k * SIDE + row_of_thread());
            add_products(more_collected, row, four(collected + k * SIDE + column_of_thread()));
            add_products(half_way, row, four(gram + k * SIDE + column_of_thread()));
        }
        __syncthreads();
        store(collected, more_collected);
        store(gram, half_way);
        __syncthreads();
        Square next = product<SIDE, SIDE>(polynomial, gram);
        __syncthreads();
        store(gram, next);
        __syncthreads();
    }
    store(polynomial, polynomial_of(gram));
    __syncthreads();
    store(factors + u64(number) * SIDE * SIDE, product<SIDE, SIDE>(polynomial, collected));
}

// Multiplies each chunk of the blocks that have their turn by the matrix that was found.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_turn(const Chunk* chunks, const Block* blocks, Turns turns, const float* factors, float* gradient) {
    __shared__ __align__(16) float factor[SIDE * SIDE];
    __shared__ __align__(16) float tile[SIDE * PITCH];
    Chunk chunk = chunks[blockIdx.x];
    if (!has_turn(chunk.block, turns)) {
        return;
    }
    Block block = blocks[chunk.block];
    for (u32 at = threadIdx.x; at < SIDE * SIDE; at += THREADS) {
        factor[at] = factors[u64(chunk.block) * SIDE * SIDE + at];
    }
    each_of(block, chunk.first, [&](bool is_there, u64 at, u32 row, u32 column) {
        tile[row * PITCH + column] = is_there ? gradient[at] : 0.0f;
    });
    __syncthreads();
    Square turned = product<SIDE, PITCH>(factor, tile);
    __syncthreads();
    for (u32 i = 0; i < EDGE; ++i) {
        for (u32 j = 0; j < EDGE; ++j) {
            tile[(row_of_thread() + i) * PITCH + column_of_thread() + j] = turned.at[i][j];
        }
    }
    __syncthreads();
    each_of(block, chunk.first, [&](bool is_there, u64 at, u32 row, u32 column) {
        if (is_there) {
            gradient[at] = tile[row * PITCH + column];
        }
    });
}
