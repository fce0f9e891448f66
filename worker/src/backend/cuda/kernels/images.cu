// Kernels for images: unfolding for convolutions, pooling, and reordering to rows. Images are stored by channel, and
// within a channel by sample.

// Unfolds images (im2col): one row for each number under the convolution kernel, one column for each position in each
// sample. One thread unfolds all numbers under the kernel for one position of one channel, because dividing coordinates
// takes longer than copying a number. Template parameters that are 0 stand for sizes that are not known beforehand.
template <u32 KERNEL>
__device__ void unfold_of(const float* __restrict__ x, const ConvGeometry& by, float* __restrict__ unfolded) {
    u32 positions = by.samples * by.rows * by.columns;
    u32 position = blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= positions) {
        return;
    }
    u32 kernel = KERNEL ? KERNEL : by.kernel;
    u32 channel = blockIdx.y;
    u32 line = position / by.columns;
    u32 column = position - line * by.columns;
    u32 sample = line / by.rows;
    u32 row = line - sample * by.rows;
    // Unsigned coordinates outside of the image wrap round to large numbers.
    u32 top = row * by.stride - by.pad;
    u32 left = column * by.stride - by.pad;
    const float* plane = x + u64(channel * by.samples + sample) * by.height * by.width;
    float* to = unfolded + u64(channel * kernel * kernel) * positions + position;
#pragma unroll
    for (u32 down = 0; down < kernel; ++down) {
#pragma unroll
        for (u32 right = 0; right < kernel; ++right) {
            u32 at_y = top + down, at_x = left + right;
            bool inside = at_y < by.height && at_x < by.width;
            to[u64(down * kernel + right) * positions] = inside ? plane[at_y * by.width + at_x] : 0.0f;
        }
    }
}

extern "C" __global__ void unfold(const float* x, ConvGeometry by, float* unfolded) {
    switch (by.kernel) {
    case 3: return unfold_of<3>(x, by, unfolded);
    case 5: return unfold_of<5>(x, by, unfolded);
    default: return unfold_of<0>(x, by, unfolded);
    }
}

// Backward pass of `unfold`: each pixel's gradient is the sum over the unfolded numbers that came from it, in the order
// of the kernel's rows and columns.
template <u32 KERNEL>
__device__ void fold_of(const float* __restrict__ unfolded, const ConvGeometry& by, float* __restrict__ dx) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 plane = by.height * by.width;
    if (at >= by.channels * by.samples * plane) {
        return;
    }
    u32 kernel = KERNEL ? KERNEL : by.kernel;
    u32 line = at / by.width;
    u32 x = at - line * by.width;
    u32 image = line / by.height;
    u32 y = line - image * by.height;
    u32 channel = image / by.samples;
    u32 sample = image - channel * by.samples;
    u32 positions = by.samples * by.rows * by.columns;
    const float* from = unfolded + u64(channel * kernel * kernel) * positions + sample * by.rows * by.columns;
    float sum = 0.0f;
    if (by.stride == 1) {
#pragma unroll
        for (u32 down = 0; down < kernel; ++down) {
#pragma unroll
            for (u32 right = 0; right < kernel; ++right) {
                u32 top = y + by.pad - down, left = x + by.pad - right;
                if (top < by.rows && left < by.columns) {
                    sum += from[u64(down * kernel + right) * positions + top * by.columns + left];
                }
            }
        }
    } else {
        for (u32 down = 0; down < kernel; ++down) {
            u32 top = y + by.pad - down;
            if (top >= by.rows * by.stride || top % by.stride != 0) {
                continue;
            }
            for (u32 right = 0; right < kernel; ++right) {
                u32 left = x + by.pad - right;
                if (left >= by.columns * by.stride || left % by.stride != 0) {
                    continue;
                }
                sum += from[u64(down * kernel + right) * positions + top / by.stride * by.columns + left / by.stride];
            }
        }
    }
    dx[at] = sum;
}

extern "C" __global__ void fold(const float* unfolded, ConvGeometry by, float* dx) {
    switch (by.kernel) {
    case 3: return fold_of<3>(unfolded, by, dx);
    case 5: return fold_of<5>(unfolded, by, dx);
    default: return fold_of<0>(unfolded, by, dx);
    }
}

// Computes the top left pixel of a pooling window; returns false beyond the last window.
__device__ bool corner_of(u32 window, const PoolGeometry& by, u32* corner) {
    u32 rows = by.height / by.tall;
    u32 columns = by.width / by.wide;
    u32 row = window / columns;
    *corner = (row / rows * by.height + row % rows * by.tall) * by.width + window % columns * by.wide;
    return window < by.planes * rows * columns;
}

extern "C" __global__ void max_pool(const float* x, PoolGeometry by, float* y, u32* winners) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 corner;
    if (!corner_of(at, by, &corner)) {
        return;
    }
    u32 winner = corner;
    float best = x[corner];
    for (u32 down = 0; down < by.tall; ++down) {
        for (u32 right = 0; right < by.wide; ++right) {
            u32 place = corner + down * by.width + right;
            if (x[place] > best) {
                best = x[place];
                winner = place;
            }
        }
    }
    y[at] = best;
    winners[at] = winner;
}

// Computes the pooling window that contains a pixel; returns false for pixels at the edges that no window covers.
__device__ bool window_of(u32 at, const PoolGeometry& by, u32* window) {
    u32 rows = by.height / by.tall;
    u32 columns = by.width / by.wide;
    u32 row = at / by.width % by.height / by.tall;
    u32 column = at % by.width / by.wide;
    *window = (at / (by.width * by.height) * rows + row) * columns + column;
    return row < rows && column < columns;
}

// Backward pass of max pooling, a thread for each window, whole or cut off at an edge: those have no winner.
extern "C" __global__ void max_pool_back(const float* __restrict__ dy, const u32* __restrict__ winners, PoolGeometry by,
                                         float* __restrict__ dx) {
    u32 rows = by.height / by.tall, columns = by.width / by.wide;
    u32 down = (by.height + by.tall - 1) / by.tall, across = (by.width + by.wide - 1) / by.wide;
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= by.planes * down * across) {
        return;
    }
    u32 line = at / across, column = at - line * across;
    u32 plane = line / down, row = line - plane * down;
    bool whole = row < rows && column < columns;
    u32 window = (plane * rows + row) * columns + column;
    float gradient = whole ? dy[window] : 0.0f;
    u32 winner = whole ? winners[window] : 0xffffffff;
    for (u32 y = row * by.tall; y < min((row + 1) * by.tall, by.height); ++y) {
        for (u32 x = column * by.wide; x < min((column + 1) * by.wide, by.width); ++x) {
            u32 place = (plane * by.height + y) * by.width + x;
            dx[place] = place == winner ? gradient : 0.0f;
        }
    }
}

extern "C" __global__ void mean_pool(const float* x, PoolGeometry by, float* y) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 corner;
    if (!corner_of(at, by, &corner)) {
        return;
    }
    float sum = 0.0f;
    for (u32 down = 0; down < by.tall; ++down) {
        for (u32 right = 0; right < by.wide; ++right) {
            sum += x[corner + down * by.width + right];
        }
    }
    y[at] = sum / float(by.tall * by.wide);
}

extern "C" __global__ void mean_pool_back(const float* dy, PoolGeometry by, float* dx) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < by.planes * by.height * by.width) {
        u32 window;
        bool covered = window_of(at, by, &window);
        dx[at] = covered ? dy[window] / float(by.tall * by.wide) : 0.0f;
    }
}

// Swaps the two outer dimensions of `outer` by `inner` by `plane` numbers: from channels of samples to samples of
// channels, or back.
extern "C" __global__ void swap_outer(const float* x, u32 outer, u32 inner, u32 plane, float* y) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < outer * inner * plane) {
        u32 within = at % plane;
        u32 second = at / plane % inner;
        u32 first = at / (plane * inner);
        y[(second * outer + first) * plane + within] = x[at];
    }
}
