// What a decode step does outside of its linear layers. See kernels.py for the contracts, cache.py for the layout of the cache.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr int64_t kBlock = 32;  // positions whose scores are accumulated in registers

// scores[i] = sum over d of query[d] * keys[d][i], for i in [0, count). Whole blocks may be computed past `count`, never past `context`.
void score(const float* query, const float* keys, float* scores, int64_t count, int64_t context, int64_t width, float scale) {
  int64_t first = 0;
  for (; first < count && first + kBlock <= context; first += kBlock) {
    float sums[kBlock] = {};
    for (int64_t d = 0; d < width; ++d) {
      const float q = query[d] * scale;
      const float* __restrict k = keys + d * context + first;
      for (int64_t i = 0; i < kBlock; ++i) sums[i] += q * k[i];
    }
    std::copy(sums, sums + kBlock, scores + first);
  }
  for (int64_t i = first; i < count; ++i) {
    float sum = 0.0f;
    for (int64_t d = 0; d < width; ++d) sum += query[d] * scale * keys[d * context + i];
    scores[i] = sum;
  }
}

float softmax(float* scores, int64_t count) {  // unnormalized; returns the sum
  float top = scores[0];
  for (int64_t i = 1; i < count; ++i) top = std::max(top, scores[i]);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = std::exp(scores[i] - top);
    sum += scores[i];
  }
  return sum;
}

// out[d] = sum over i of weights[i] * values[i][d] / total.
template <int64_t kWidth>
void mix(const float* weights, const float* values, float* out, int64_t count, int64_t width, float total) {
  for (int64_t first = 0; first < width; first += kWidth) {
    float even[kWidth] = {}, odd[kWidth] = {};
    int64_t i = 0;
    for (; i + 1 < count; i += 2) {
      const float* __restrict v = values + i * width + first;
      const float a = weights[i], b = weights[i + 1];
      for (int64_t d = 0; d < kWidth; ++d) {
        even[d] += a * v[d];
        odd[d] += b * v[width + d];
      }
    }
    if (i < count)
      for (int64_t d = 0; d < kWidth; ++d) even[d] += weights[i] * values[i * width + first + d];
    for (int64_t d = 0; d < kWidth; ++d) out[first + d] = (even[d] + odd[d]) / total;
  }
}

at::Tensor slot_attention(
    const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& positions, double scale) {
  const int64_t rows = query.size(0), heads = query.size(1), width = query.size(3);
  const int64_t groups = keys.size(1), context = keys.size(3), breadth = values.size(3), share = heads / groups;
  const auto queries = query.contiguous();
  auto out = query.new_empty({rows, 1, heads, breadth});
  const float *q = queries.const_data_ptr<float>(), *k = keys.const_data_ptr<float>(), *v = values.const_data_ptr<float>();
  const int64_t* last = positions.const_data_ptr<int64_t>();
  float* o = out.mutable_data_ptr<float>();
  const auto mixer = breadth % 64 == 0 ? mix<64> : breadth % 32 == 0 ? mix<32> : breadth % 8 == 0 ? mix<8> : mix<1>;
  at::parallel_for(0, rows * groups, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(context + kBlock);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t count = last[item / groups] + 1;
      for (int64_t head = item * share; head < (item + 1) * share; ++head) {
        score(q + head * width, k + item * width * context, scores.data(), count, context, width, static_cast<float>(scale));
        const float total = softmax(scores.data(), count);
        mixer(scores.data(), v + item * context * breadth, o + head * breadth, count, breadth, total);
      }
    }
  });
  return out;
}

void slot_write(at::Tensor keys, at::Tensor values, const at::Tensor& key, const at::Tensor& value, const at::Tensor& positions) {
  const int64_t rows = key.size(0), groups = keys.size(1), width = keys.size(2), context = keys.size(3), breadth = values.size(3);
  const auto new_keys = key.contiguous(), new_values = value.contiguous();
  const float *from_k = new_keys.const_data_ptr<float>(), *from_v = new_values.const_data_ptr<float>();
  float *k = keys.mutable_data_ptr<float>(), *v = values.mutable_data_ptr<float>();
  const int64_t* place = positions.const_data_ptr<int64_t>();
  for (int64_t item = 0; item < rows * groups; ++item) {
    const int64_t at = place[item / groups];
    for (int64_t d = 0; d < width; ++d) k[(item * width + d) * context + at] = from_k[item * width + d];
    std::copy(from_v + item * breadth, from_v + (item + 1) * breadth, v + (item * context + at) * breadth);
  }
}

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  const auto contiguous = input.contiguous();
  auto out = at::empty_like(contiguous);
  const int64_t width = weight.numel(), rows = contiguous.numel() / width;
  const float *x = contiguous.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
  float* o = out.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 1 + 32768 / width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* __restrict in = x + row * width;
      float* __restrict result = o + row * width;
      float squares = 0.0f;
      for (int64_t i = 0; i < width; ++i) squares += in[i] * in[i];
      const float factor = 1.0f / std::sqrt(squares / width + static_cast<float>(epsilon));
      for (int64_t i = 0; i < width; ++i) result[i] = w[i] * (in[i] * factor);
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(asyncrl, m) {
  m.def("slot_attention(Tensor query, Tensor keys, Tensor values, Tensor positions, float scale) -> Tensor");
  m.def("slot_write(Tensor(a!) keys, Tensor(b!) values, Tensor key, Tensor value, Tensor positions) -> ()");
  m.def("rms_norm(Tensor input, Tensor weight, float epsilon) -> Tensor");
}
TORCH_LIBRARY_IMPL(asyncrl, CPU, m) {
  m.impl("slot_attention", &slot_attention);
  m.impl("slot_write", &slot_write);
  m.impl("rms_norm", &rms_norm);
}
