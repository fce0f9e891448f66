// Normalisation: shifts each set of numbers to mean 0 and scales it to variance 1. `by.parts` thread blocks share a set
// and handle its numbers in turns; the next kernel adds up their results.

// Index at which a set begins.
__device__ inline u32 begin(u32 set, const NormSets& by) {
    return set / by.inner * by.outer_step + set % by.inner * by.inner_step;
}

// Index of a number of a set.
__device__ inline u32 place(u32 start, u32 member, const NormSets& by) {
    return start + member / by.chunk * by.chunk_step + member % by.chunk;
}

// Index of a set's first gain.
__device__ inline u32 first_gain(u32 set, const NormSets& by) {
    return set / by.gain_sets % by.gain_groups * by.gain_step;
}

// Returns two sums over the thread block to every thread.
__device__ inline double2 both_sums(float one, float other) {
    double first = block_sum(double(one));
    double second = block_sum(double(other));
    return make_double2(first, second);
}

// Adds up the results of all parts of a set.
__device__ inline double2 all_parts(const double* found, u32 set, u32 parts) {
    double2 total = make_double2(0.0, 0.0);
    for (u32 part = 0; part < parts; ++part) {
        total.x += found[(set * parts + part) * 2];
        total.y += found[(set * parts + part) * 2 + 1];
    }
    return total;
}

// Sums of numbers and of their squares, relative to the set's first number: otherwise large means would swallow small
// variances.
extern "C" __global__ void __launch_bounds__(256) norm_sums(const float* x, NormSets by, double* found) {
    u32 set = blockIdx.x / by.parts, part = blockIdx.x % by.parts;
    u32 start = begin(set, by), members = by.chunks * by.chunk;
    float base = x[start];
    float sum = 0.0f, squares = 0.0f;
    for (u32 member = part * blockDim.x + threadIdx.x; member < members; member += by.parts * blockDim.x) {
        float value = x[place(start, member, by)] - base;
        sum += value;
        squares += value * value;
    }
    double2 both = both_sums(sum, squares);
    if (threadIdx.x == 0) {
        found[blockIdx.x * 2] = both.x;
        found[blockIdx.x * 2 + 1] = both.y;
    }
}

__device__ inline void stretch(const float* x, u32 set, u32 part, float mean, float factor, const float* gains,
                               const float* biases, const NormSets& by, float* y) {
    u32 start = begin(set, by), members = by.chunks * by.chunk, first = first_gain(set, by);
    float floor = by.relu ? 0.0f : -HUGE;
    for (u32 member = part * blockDim.x + threadIdx.x; member < members; member += by.parts * blockDim.x) {
        u32 at = place(start, member, by), gain = first + member / by.per_gain;
        y[at] = fmaxf((x[at] - mean) * (factor * gains[gain]) + biases[gain], floor);
    }
}

// Normalises by the statistics of the minibatch, and keeps mean and factor of each set; if `noted`, also writes mean
// and unbiased variance, as PyTorch does.
extern "C" __global__ void __launch_bounds__(256)
    norm_by_sums(const float* x, NormSets by, float epsilon, const double* found, const float* gains,
                 const float* biases, float* y, float* moments, u32 noted, float* means, float* variances) {
    u32 set = blockIdx.x / by.parts, part = blockIdx.x % by.parts;
    double members = double(by.chunks) * by.chunk;
    double2 sums = all_parts(found, set, by.parts);
    double shift = sums.x / members;
    double variance = fmax(sums.y / members - shift * shift, 0.0);
    float mean = float(x[begin(set, by)] + shift);
    float factor = float(1.0 / sqrt(variance + epsilon));
    if (part == 0 && threadIdx.x == 0) {
        moments[set * 2] = mean;
        moments[set * 2 + 1] = factor;
        if (noted) {
            means[set] = mean;
            variances[set] = float(variance * members / fmax(members - 1.0, 1.0));
        }
    }
    stretch(x, set, part, mean, factor, gains, biases, by, y);
}

// Normalises by given means and variances.
extern "C" __global__ void __launch_bounds__(256)
    norm_as_given(const float* x, NormSets by, float epsilon, const float* means, const float* variances,
                  const float* gains, const float* biases, float* y) {
    u32 set = blockIdx.x / by.parts, part = blockIdx.x % by.parts;
    float factor = float(1.0 / sqrt(double(variances[set]) + epsilon));
    stretch(x, set, part, means[set], factor, gains, biases, by, y);
}

// Gradient at a normalised number: zero where relu cut it.
__device__ inline float output_gradient_at(const float* dy, const float* y, u32 at, u32 relu) {
    return !relu || y[at] > 0.0f ? dy[at] : 0.0f;
}

// Sums of output gradients, and of their products with the numbers' distances from the mean. Gradients are multiplied
// by their gains; if the whole set has one gain, `norm_back` multiplies the sums instead.
extern "C" __global__ void __launch_bounds__(256)
    norm_back_sums(const float* dy, const float* y, const float* x, NormSets by, const float* moments,
                   const float* gains, double* found) {
    u32 set = blockIdx.x / by.parts, part = blockIdx.x % by.parts;
    u32 start = begin(set, by), members = by.chunks * by.chunk, first = first_gain(set, by);
    bool one_gain = by.per_gain == members;
    float mean = moments[set * 2];
    float plain = 0.0f, leaning = 0.0f;
    for (u32 member = part * blockDim.x + threadIdx.x; member < members; member += by.parts * blockDim.x) {
        u32 at = place(start, member, by);
        float gradient = output_gradient_at(dy, y, at, by.relu);
        gradient = one_gain ? gradient : gradient * gains[first + member / by.per_gain];
        plain += gradient;
        leaning += gradient * (x[at] - mean);
    }
    double2 both = both_sums(plain, leaning);
    if (threadIdx.x == 0) {
        found[blockIdx.x * 2] = both.x;
        found[blockIdx.x * 2 + 1] = both.y;
    }
}

// Gradient of the input, if wanted; and gradients of gain and bias, if each set has one of each.
extern "C" __global__ void __launch_bounds__(256)
    norm_back(const float* dy, const float* y, const float* x, NormSets by, const float* moments, const float* gains,
              const double* found, u32 wanted, float* dx, float* dgains, float* dbiases) {
    u32 set = blockIdx.x / by.parts, part = blockIdx.x % by.parts;
    u32 start = begin(set, by), members = by.chunks * by.chunk, first = first_gain(set, by);
    bool one_gain = by.per_gain == members;
    float mean = moments[set * 2], factor = moments[set * 2 + 1];
    double2 sums = all_parts(found, set, by.parts);
    if (one_gain && part == 0 && threadIdx.x == 0) {
        dbiases[first] = float(sums.x);
        dgains[first] = float(sums.y * factor);
    }
    if (!wanted) {
        return;
    }
    double share = double(factor) / members * (one_gain ? gains[first] : 1.0f);
    float plain = float(sums.x * share);
    float leaning = float(sums.y * share * factor * factor);
    for (u32 member = part * blockDim.x + threadIdx.x; member < members; member += by.parts * blockDim.x) {
        u32 at = place(start, member, by);
        float gradient = output_gradient_at(dy, y, at, by.relu) * gains[first + member / by.per_gain];
        dx[at] = gradient * factor - plain - (x[at] - mean) * leaning;
    }
}

// Gradients of gains and biases that several sets share: one thread block per gain.
extern "C" __global__ void __launch_bounds__(256)
    norm_gains_back(const float* dy, const float* y, const float* x, NormSets by, const float* moments, float* dgains,
                    float* dbiases) {
    u32 gain = blockIdx.x;
    u32 group = by.gain_step == 0 ? 0 : gain / by.gain_step;
    u32 within = by.gain_step == 0 ? gain : gain % by.gain_step;
    u32 count = by.sets / by.gain_groups * by.per_gain;
    float plain = 0.0f, leaning = 0.0f;
    for (u32 number = threadIdx.x; number < count; number += blockDim.x) {
        u32 turn = number / by.per_gain;
        u32 set = turn / by.gain_sets * (by.gain_sets * by.gain_groups) + group * by.gain_sets + turn % by.gain_sets;
        u32 at = place(begin(set, by), within * by.per_gain + number % by.per_gain, by);
        float gradient = output_gradient_at(dy, y, at, by.relu);
        plain += gradient;
        leaning += gradient * (x[at] - moments[set * 2]) * moments[set * 2 + 1];
    }
    double2 both = both_sums(plain, leaning);
    if (threadIdx.x == 0) {
        dbiases[gain] = float(both.x);
        dgains[gain] = float(both.y);
    }
}
