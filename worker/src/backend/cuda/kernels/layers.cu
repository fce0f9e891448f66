// Layers, forward and backward, without their matrix products.
//
// A dense layer's activations are rows, one per sample. Images are stored by channel, and within a channel by sample:
// so a convolution is one product for the whole minibatch, and its output has the layout of its input.

// Gathers samples of a dataset on the device, with their labels or the bits of their target numbers. If `row`, the
// length of an image's rows, is not 0, each image is augmented by its own view: mirrored or not, and shifted down and
// to the right.
template <typename T>
__device__ void gather_samples(const T* values, const u32* all_labels, const u32* indices, const u32* views, u32 row,
                               Images to, float scale, float* x, u32* labels, u32 width) {
    u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u64 features = u64(to.channels) * to.plane;
    if (at >= features * to.samples) {
        return;
    }
    u32 within = u32(at % to.plane);
    u32 sample = u32(at / to.plane % to.samples);
    u32 channel = u32(at / (u64(to.plane) * to.samples));
    u64 index = indices[sample];
    u32 from = within;
    bool inside = true;
    if (row) {
        u32 view = views[sample];
        int seen_y = int(within / row) + int(view >> 8 & 255) - 128;
        int seen_x = int(within % row);
        seen_x = (view & 1 ? int(row) - 1 - seen_x : seen_x) + int(view >> 16 & 255) - 128;
        inside = seen_y >= 0 && seen_y < int(to.plane / row) && seen_x >= 0 && seen_x < int(row);
        from = u32(seen_y) * row + u32(seen_x);
    }
    x[at] = inside ? float(values[index * features + u64(channel) * to.plane + from]) * scale : 0.0f;
    if (within == 0 && channel == 0) {
        for (u32 each = 0; each < width; ++each) {
            labels[sample * width + each] = all_labels[index * width + each];
        }
    }
}

extern "C" __global__ void gather_bytes(const u8* values, const u32* all_labels, const u32* indices,
                                        const u32* views, u32 row, Images to, float scale, float* x, u32* labels,
                                        u32 width) {
    gather_samples(values, all_labels, indices, views, row, to, scale, x, labels, width);
}

extern "C" __global__ void gather_floats(const float* values, const u32* all_labels, const u32* indices,
                                         const u32* views, u32 row, Images to, float scale, float* x, u32* labels,
                                         u32 width) {
    gather_samples(values, all_labels, indices, views, row, to, scale, x, labels, width);
}

// Adds a bias to every row, one number per column; with relu, cuts at zero. Each thread handles four columns.
extern "C" __global__ void bias_rows4(float4* y, const float* bias, u32 fours, u32 total, u32 relu) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= total) {
        return;
    }
    float4 value = y[at];
    const float* b = bias + at % fours * 4;
    float floor = relu ? 0.0f : -HUGE;
    value.x = fmaxf(value.x + b[0], floor);
    value.y = fmaxf(value.y + b[1], floor);
    value.z = fmaxf(value.z + b[2], floor);
    value.w = fmaxf(value.w + b[3], floor);
    y[at] = value;
}

// Adds a bias for any number of columns, or for planes: `inner` consecutive numbers share a bias. With relu, cuts at
// zero.
extern "C" __global__ void bias(float* y, const float* bias, u32 inner, u32 outputs, u32 total, u32 relu) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        float value = y[at] + bias[at / inner % outputs];
        y[at] = relu ? fmaxf(value, 0.0f) : value;
    }
}

// Backward pass through relu and bias for rows: zeroes the gradient where relu cut the output, and sums up each column,
// in parts. Thread blocks of 32 columns and 8 rows.
extern "C" __global__ void __launch_bounds__(256)
    bias_rows_back(float* dy, const float* y, u32 rows, u32 columns, u32 relu, float* sums) {
    __shared__ float parts[8][33];
    u32 column = blockIdx.x * 32 + threadIdx.x;
    u32 each = (rows + gridDim.y - 1) / gridDim.y;
    u32 to = min((blockIdx.y + 1) * each, rows);
    float sum = 0.0f;
    if (column < columns) {
        for (u32 row = blockIdx.y * each + threadIdx.y; row < to; row += 8) {
            u64 at = u64(row) * columns + column;
            float value = dy[at];
            if (relu) {
                value = y[at] > 0.0f ? value : 0.0f;
                dy[at] = value;
            }
            sum += value;
        }
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (u32 part = 1; part < 8; ++part) {
            sum += parts[part][threadIdx.x];
        }
        sums[blockIdx.y * columns + column] = sum;
    }
}

// `bias_rows_back` for columns in groups of four: thread blocks of 32 groups and 8 rows.
extern "C" __global__ void __launch_bounds__(256)
    bias_rows4_back(float4* dy, const float4* y, u32 rows, u32 fours, u32 relu, float4* sums) {
    __shared__ float4 parts[8][32];
    u32 column = blockIdx.x * 32 + threadIdx.x;
    u32 each = (rows + gridDim.y - 1) / gridDim.y;
    u32 to = min((blockIdx.y + 1) * each, rows);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < fours) {
        for (u32 row = blockIdx.y * each + threadIdx.y; row < to; row += 8) {
            u64 at = u64(row) * fours + column;
            float4 value = dy[at];
            if (relu) {
                float4 output = y[at];
                value.x = output.x > 0.0f ? value.x : 0.0f;
                value.y = output.y > 0.0f ? value.y : 0.0f;
                value.z = output.z > 0.0f ? value.z : 0.0f;
                value.w = output.w > 0.0f ? value.w : 0.0f;
                dy[at] = value;
            }
            sum.x += value.x;
            sum.y += value.y;
            sum.z += value.z;
            sum.w += value.w;
        }
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < fours) {
        for (u32 part = 1; part < 8; ++part) {
            float4 other = parts[part][threadIdx.x];
            sum.x += other.x;
            sum.y += other.y;
            sum.z += other.z;
            sum.w += other.w;
        }
        sums[blockIdx.y * fours + column] = sum;
    }
}

// `bias_rows_back` for planes: thread block (part, channel).
extern "C" __global__ void __launch_bounds__(256)
    bias_planes_back(float* dy, const float* y, u32 plane, u32 relu, float* sums) {
    u32 each = (plane + gridDim.x - 1) / gridDim.x;
    u32 to = min((blockIdx.x + 1) * each, plane);
    u64 start = u64(blockIdx.y) * plane;
    float sum = 0.0f;
    for (u32 within = blockIdx.x * each + threadIdx.x; within < to; within += blockDim.x) {
        u64 at = start + within;
        float value = dy[at];
        if (relu) {
            value = y[at] > 0.0f ? value : 0.0f;
            dy[at] = value;
        }
        sum += value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x * gridDim.y + blockIdx.y] = sum;
    }
}

// Adds up the partial column sums.
extern "C" __global__ void add_parts(const float* sums, u32 parts, u32 columns, float* gradient) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < columns) {
        float sum = 0.0f;
        for (u32 part = 0; part < parts; ++part) {
            sum += sums[part * columns + column];
        }
        gradient[column] = sum;
    }
}

// Softmax and cross-entropy from labels: each sample's loss and the gradient of its logits. Label smoothing spreads
// part of the target over all classes, and classes may have weights. One thread block per sample; if all logits fit,
// each thread keeps KEPT of them in registers.

// Loss of a sample, from the logarithm of the sum of exponentials and, for smoothing, the sum of all logits.
__device__ inline float class_loss(float logarithm, float logit, float all_logits, u32 classes, float smoothing) {
    float sharp = logarithm - logit;
    return smoothing == 0.0f ? sharp : (1.0f - smoothing) * sharp + smoothing * (logarithm - all_logits / float(classes));
}

template <u32 KEPT>
__device__ void softmax_of(const float* logits, const u32* labels, u32 classes, float share, float* losses,
                           float* gradient, float smoothing, const float* weights, u32 weighted) {
    const float* row = logits + u64(blockIdx.x) * classes;
    float* row_gradient = gradient + u64(blockIdx.x) * classes;
    float kept[KEPT];
    float largest = -HUGE, all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        u32 at = threadIdx.x + i * blockDim.x;
        kept[i] = at < classes ? row[at] : -HUGE;
        all += at < classes ? kept[i] : 0.0f;
        largest = fmaxf(largest, kept[i]);
    }
    largest = block_max(largest);
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        kept[i] = expf(kept[i] - largest);
        sum += kept[i];
    }
    sum = block_sum(sum);
    all = smoothing == 0.0f ? 0.0f : block_sum(all);
    u32 label = labels[blockIdx.x];
    float weight = weighted ? weights[label] : 1.0f;
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = weight * class_loss(largest + logf(sum), row[label], all, classes, smoothing);
    }
    share *= weight;
    float scale = share / sum, each = share * smoothing / float(classes), sharp = share * (1.0f - smoothing);
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        u32 at = threadIdx.x + i * blockDim.x;
        if (at < classes) {
            row_gradient[at] = kept[i] * scale - each - (at == label ? sharp : 0.0f);
        }
    }
}

extern "C" __global__ void softmax_few(const float* logits, const u32* labels, u32 classes, float share, float* losses,
                                       float* gradient, float smoothing, const float* weights, u32 weighted) {
    softmax_of<4>(logits, labels, classes, share, losses, gradient, smoothing, weights, weighted);
}

extern "C" __global__ void __launch_bounds__(512)
    softmax_many(const float* logits, const u32* labels, u32 classes, float share, float* losses, float* gradient,
                 float smoothing, const float* weights, u32 weighted) {
    softmax_of<16>(logits, labels, classes, share, losses, gradient, smoothing, weights, weighted);
}

// Softmax and cross-entropy for any number of classes.
extern "C" __global__ void softmax_any(const float* logits, const u32* labels, u32 classes, float share, float* losses,
                                       float* gradient, float smoothing, const float* weights, u32 weighted) {
    const float* row = logits + u64(blockIdx.x) * classes;
    float* row_gradient = gradient + u64(blockIdx.x) * classes;
    float largest = -HUGE, all = 0.0f;
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) {
        largest = fmaxf(largest, row[at]);
        all += row[at];
    }
    largest = block_max(largest);
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) {
        sum += expf(row[at] - largest);
    }
    sum = block_sum(sum);
    all = block_sum(all);
    u32 label = labels[blockIdx.x];
    float weight = weighted ? weights[label] : 1.0f;
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = weight * class_loss(largest + logf(sum), row[label], all, classes, smoothing);
    }
    share *= weight;
    float scale = share / sum, each = share * smoothing / float(classes), sharp = share * (1.0f - smoothing);
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) {
        row_gradient[at] = expf(row[at] - largest) * scale - each - (at == label ? sharp : 0.0f);
    }
}

// Loss of a single output: the logit of the second of two classes.
extern "C" __global__ void single_loss(const float* logits, const u32* labels, u32 samples, float share, float* losses,
                                       float* gradient, float smoothing, const float* weights, u32 weighted) {
    u32 sample = blockIdx.x * blockDim.x + threadIdx.x;
    if (sample < samples) {
        u32 label = labels[sample];
        float logit = logits[sample];
        float weight = weighted ? weights[label] : 1.0f;
        float wanted = (1.0f - smoothing) * float(label) + 0.5f * smoothing;
        losses[sample] = weight * (fmaxf(logit, 0.0f) + log1pf(expf(-fabsf(logit))) - wanted * logit);
        gradient[sample] = weight * share * (1.0f / (1.0f + expf(-logit)) - wanted);
    }
}

// Losses of predicted numbers: squared distance, absolute distance, or Huber (half the square up to 1, linear beyond).
extern "C" __global__ void number_loss(const float* found, const u32* wanted, u32 width, u32 samples, u32 kind,
                                       float share, float* losses, float* gradient) {
    u32 sample = blockIdx.x * blockDim.x + threadIdx.x;
    if (sample >= samples) {
        return;
    }
    float total = 0.0f, part = 1.0f / float(width);
    for (u32 each = 0; each < width; ++each) {
        u64 at = u64(sample) * width + each;
        float off = found[at] - __uint_as_float(wanted[at]);
        float size = fabsf(off), way = off > 0.0f ? 1.0f : (off < 0.0f ? -1.0f : off);
        bool near = kind == 2 && size <= 1.0f;
        float loss = kind == 0 ? off * off : (near ? 0.5f * off * off : (kind == 1 ? size : size - 0.5f));
        float derivative = kind == 0 ? 2.0f * off : (near ? off : way);
        total += loss * part;
        gradient[at] = derivative * part * share;
    }
    losses[sample] = total;
}

// Activations that are layers of their own.

constexpr float ROOT_HALF = 0.70710678118654752440f;
constexpr float DENSITY_OF_ZERO = 0.39894228040143267794f;

__device__ float share_of_one(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ float normal_below(float x) { return 0.5f * (1.0f + erff(x * ROOT_HALF)); }

__device__ float activation_of(u32 kind, float x, float leak) {
    switch (kind) {
    case ACTIVATION_relu: return fmaxf(x, 0.0f);
    case ACTIVATION_leakyrelu: return x > 0.0f ? x : leak * x;
    case ACTIVATION_silu: return x / (1.0f + expf(-x));
    case ACTIVATION_gelu: return x * normal_below(x);
    case ACTIVATION_tanh: return tanhf(x);
    case ACTIVATION_sigmoid: return share_of_one(x);
    }
    __trap();
    return 0.0f;
}

__device__ float slope_of(u32 kind, float x, float y, float leak) {
    switch (kind) {
    case ACTIVATION_relu: return y > 0.0f ? 1.0f : 0.0f;
    case ACTIVATION_leakyrelu: return x > 0.0f ? 1.0f : leak;
    case ACTIVATION_silu: return share_of_one(x) * (1.0f + x * (1.0f - share_of_one(x)));
    case ACTIVATION_gelu: return normal_below(x) + x * DENSITY_OF_ZERO * expf(-0.5f * x * x);
    case ACTIVATION_tanh: return 1.0f - y * y;
    case ACTIVATION_sigmoid: return y * (1.0f - y);
    }
    __trap();
    return 0.0f;
}

extern "C" __global__ void activate(const float* x, float* y, u32 total, u32 kind, float slope) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        y[at] = activation_of(kind, x[at], slope);
    }
}

extern "C" __global__ void activate_back(const float* x, const float* y, const float* dy, float* dx, u32 total, u32 kind,
                                         float slope) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        dx[at] = dy[at] * slope_of(kind, x[at], y[at], slope);
    }
}

// Adds the results of a residual block's two paths; with relu, cuts at zero.
extern "C" __global__ void add_ways(const float* one, const float* other, float* y, u32 total, u32 relu) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        float sum = one[at] + other[at];
        y[at] = relu ? fmaxf(sum, 0.0f) : sum;
    }
}

// Backward pass through such a sum: zeroes the gradient where relu cut the output. Writes it twice if a path will
// overwrite its copy.
extern "C" __global__ void cut_ways(const float* dy, const float* y, u32 total, u32 relu, u32 twice, float* one,
                                    float* other) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        float value = !relu || y[at] > 0.0f ? dy[at] : 0.0f;
        one[at] = value;
        if (twice) {
            other[at] = value;
        }
    }
}

// Drops each number with a probability and scales the others up; the backward pass is the same. The decision is a pure
// function of the key and the number's index. The key of the step may lie in device memory.
extern "C" __global__ void dropout(const float* x, float* y, u32 total, u32 border, float kept, u64 key,
                                   const u64* step) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < total) {
        u64 word = (key ^ (step ? *step : 0) ^ u64(at / 4)) * 0x9e3779b97f4a7c15;
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
        word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
        word ^= word >> 31;
        u32 drawn = u32(word >> (16 * (at % 4))) & 0xffff;
        y[at] = drawn < border ? 0.0f : x[at] * kept;
    }
}
