// Kernels for images: unfolding for convolutions, pooling, and reordering to rows. Images are stored by channel, and
// within a channel by sample.

// Unfolds images (im2col): one row for each number under the convolution kernel, one column for each position in each
// sample.
extern "C" __global__ void unfold(const float* x, ConvGeometry by, float* unfolded) {
    u32 positions = by.samples * by.rows * by.columns;
    u32 position = blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= positions) {
        return;
    }
    u32 column = position % by.columns;
    u32 row = position / by.columns % by.rows;
    u32 sample = position / (by.columns * by.rows);
    u32 window = blockIdx.y;
    u32 right = window % by.kernel;
    u32 down = window / by.kernel % by.kernel;
    u32 channel = window / (by.kernel * by.kernel);
    // Unsigned coordinates outside of the image wrap round to large numbers.
    u32 at_y = row * by.stride + down - by.pad;
    u32 at_x = column * by.stride + right - by.pad;
    float value = 0.0f;
    if (at_y < by.height && at_x < by.width) {
        value = x[(u64(channel * by.samples + sample) * by.height + at_y) * by.width + at_x];
    }
    unfolded[u64(window) * positions + position] = value;
}

// Backward pass of `unfold`: each pixel's gradient is the sum over the unfolded numbers that came from it.
extern "C" __global__ void fold(const float* unfolded, ConvGeometry by, float* dx) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 plane = by.height * by.width;
    if (at >= by.channels * by.samples * plane) {
        return;
    }
    u32 x = at % by.width;
    u32 y = at / by.width % by.height;
    u32 sample = at / plane % by.samples;
    u32 channel = at / (plane * by.samples);
    u32 positions = by.samples * by.rows * by.columns;
    float sum = 0.0f;
    for (u32 down = 0; down < by.kernel; ++down) {
        u32 top = y + by.pad - down;
        if (top >= by.rows * by.stride || top % by.stride != 0) {
            continue;
        }
        for (u32 right = 0; right < by.kernel; ++right) {
            u32 left = x + by.pad - right;
            if (left >= by.columns * by.stride || left % by.stride != 0) {
                continue;
            }
            u32 window = (channel * by.kernel + down) * by.kernel + right;
            u32 position = (sample * by.rows + top / by.stride) * by.columns + left / by.stride;
            sum += unfolded[u64(window) * positions + position];
        }
    }
    dx[at] = sum;
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

extern "C" __global__ void max_pool_back(const float* dy, const u32* winners, PoolGeometry by, float* dx) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < by.planes * by.height * by.width) {
        u32 window;
        bool covered = window_of(at, by, &window);
        dx[at] = covered && winners[window] == at ? dy[window] : 0.0f;
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
