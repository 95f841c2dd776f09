// The library that onnxruntime loads: one operator, LaplacianAttention, in the domain of this package.
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "onnx/api.h"
#include "onnx/attention.h"
#include "onnx/threads.h"
#include "ops/level_choice.h"

namespace laplacianformer::onnx {
namespace {

constexpr const char* kDomain = "laplacianformer";
enum Input : size_t { kQkv, kSize, kVariance, kGains, kInputs };

// Calls f, and turns what it throws into a status.
template <class F>
Status* guarded(const Api* api, F f) {
  try {
    f();
    return nullptr;
  } catch (const std::invalid_argument& error) {
    return api->create_status(kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    return api->create_status(kFailed, error.what());
  }
}

// The widest instruction set of this CPU, or the one that the environment asks for.
int64_t chosen_level() {
  const int64_t best = best_level();
  const char* given = std::getenv("LAPLACIANFORMER_CPU_LEVEL");
  if (given == nullptr || *given == '\0') return best;
  const std::string names[] = {"baseline", "avx2", "avx512"}, name = given;
  for (int64_t level = 0; level < 3; ++level)
    if (name == names[level] && level <= best) return level;
  throw std::runtime_error("LAPLACIANFORMER_CPU_LEVEL is " + name + ", this machine has instruction sets up to " +
                           names[best]);
}

Attributes attributes_of(const Api& api, const KernelInfo* info) {
  const auto integer = [&](const char* name) {
    int64_t value = 0;
    check(api, api.integer_attribute(info, name, &value));
    return value;
  };
  const auto number = [&](const char* name) {
    float value = 0;
    check(api, api.float_attribute(info, name, &value));
    return static_cast<double>(value);
  };
  size_t axes = 0;
  check(api, api.integers_attribute(info, "grid", nullptr, &axes));
  std::vector<int64_t> grid(axes);
  check(api, api.integers_attribute(info, "grid", grid.data(), &axes));
  return {integer("heads"), integer("prefix"), integer("iterations"),  grid,
          number("scale"),  number("eps"),     number("variance_eps"), number("theta")};
}

struct Array {
  void* data = nullptr;
  std::vector<int64_t> lengths;

  void require(bool condition, const char* expected) const {
    if (condition) return;
    std::string found;
    for (const int64_t length : lengths) found += (found.empty() ? "" : ", ") + std::to_string(length);
    throw std::invalid_argument("LaplacianAttention: expected " + std::string(expected) + ", got (" + found + ")");
  }
};

struct Node {
  const Api& api;
  const Attention attention;

  // An input, or nothing where an optional one was left out.
  Array input(const KernelContext* context, Input index) const {
    size_t count = 0;
    const Value* value = nullptr;
    check(api, api.input_count(context, &count));
    if (index < count) check(api, api.input(context, index, &value));
    Array array;
    if (value == nullptr) return array;
    Shape* shape = nullptr;
    check(api, api.shape(value, &shape));
    size_t axes = 0;
    Status* status = api.axes(shape, &axes);
    array.lengths.resize(axes);
    if (status == nullptr) status = api.lengths(shape, array.lengths.data(), axes);
    api.release_shape(shape);
    check(api, status);
    check(api, api.data(const_cast<Value*>(value), &array.data));
    return array;
  }

  void compute(KernelContext* context) const {
    const Array qkv = input(context, kQkv), size = input(context, kSize);
    const Array variance = input(context, kVariance), gains = input(context, kGains);
    qkv.require(qkv.lengths.size() == 3 && qkv.lengths[2] % 3 == 0, "qkv of shape (batch, tokens, 3 * channels)");
    size.require(size.lengths == std::vector<int64_t>{static_cast<int64_t>(attention.axes())},
                 "a size with one number for each axis of the grid");
    const std::vector<int64_t> by_landmark{attention.heads(), attention.most_landmarks()};
    variance.require(!variance.data || variance.lengths == by_landmark, "a variance of shape (heads, landmarks)");
    gains.require(!gains.data || gains.lengths == std::vector<int64_t>{attention.heads()}, "gains of shape (heads)");

    const auto floats = [](const Array& array) { return static_cast<float*>(array.data); };
    const auto* lengths = static_cast<const int64_t*>(size.data);
    const int64_t batch = qkv.lengths[0], tokens = qkv.lengths[1], channels = qkv.lengths[2] / 3;
    const int64_t shape[] = {batch, tokens, channels};
    Value* value = nullptr;
    void* out = nullptr;
    check(api, api.output(context, 0, shape, 3, &value));
    check(api, api.data(value, &out));
    const SessionThreads threads(api, context);
    attention.evaluate(
        {floats(qkv), batch, tokens, channels, {lengths, lengths + attention.axes()}, floats(variance), floats(gains)},
        static_cast<float*>(out));
  }
};

Operator make_operator() {
  Operator op{};
  op.version = kVersion;
  op.name = [](const Operator*) { return "LaplacianAttention"; };
  op.provider = [](const Operator*) -> const char* { return nullptr; };
  op.inputs = [](const Operator*) -> size_t { return kInputs; };
  op.input_type = [](const Operator*, size_t index) { return index == kSize ? kInt64 : kFloat32; };
  op.input_presence = [](const Operator*, size_t index) { return index <= kSize ? kRequired : kOptional; };
  op.input_memory = [](const Operator*, size_t) { return kDefaultMemory; };
  op.outputs = [](const Operator*) -> size_t { return 1; };
  op.output_type = [](const Operator*, size_t) { return kFloat32; };
  op.output_presence = [](const Operator*, size_t) { return kRequired; };
  op.create_checked = [](const Operator*, const Api* api, const KernelInfo* info, void** kernel) {
    return guarded(api, [&] { *kernel = new Node{*api, {attributes_of(*api, info), chosen_level()}}; });
  };
  op.compute_checked = [](void* kernel, KernelContext* context) {
    const Node* node = static_cast<Node*>(kernel);
    return guarded(&node->api, [&] { node->compute(context); });
  };
  op.destroy = [](void* kernel) { delete static_cast<Node*>(kernel); };
  return op;
}

}  // namespace
}  // namespace laplacianformer::onnx

// What onnxruntime calls when the library is registered in options of a session.
extern "C" LAPLACIANFORMER_EXPORT laplacianformer::onnx::Status* LAPLACIANFORMER_CALL
RegisterCustomOps(laplacianformer::onnx::SessionOptions* options, const laplacianformer::onnx::ApiBase* base) {
  using namespace laplacianformer::onnx;
  static const Operator op = make_operator();
  const Api* api = base->get(kVersion);
  if (api == nullptr) {
    const std::string message = "the operators of laplacianformer need onnxruntime 1.17 or newer, this is ";
    return base->get(1)->create_status(kFailed, (message + base->version()).c_str());
  }
  return guarded(api, [&] {
    Domain* domain = nullptr;  // Sessions use it until they end, which nobody tells: it is never released.
    check(*api, api->create_domain(kDomain, &domain));
    check(*api, api->add_operator(domain, &op));
    check(*api, api->add_domain(options, domain));
  });
}
