// The part of onnxruntime's C interface that the operator uses. Packages of onnxruntime come without headers; this
// interface is a table of functions whose positions never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(_WIN32)
#define LAPLACIANFORMER_CALL __stdcall
#define LAPLACIANFORMER_EXPORT __declspec(dllexport)
#else
#define LAPLACIANFORMER_CALL
#define LAPLACIANFORMER_EXPORT __attribute__((visibility("default")))
#endif

namespace laplacianformer::onnx {

// The first version of the interface that has everything below: that of onnxruntime 1.17.
constexpr uint32_t kVersion = 17;

// Objects of onnxruntime.
struct Domain;
struct KernelContext;
struct KernelInfo;
struct SessionOptions;
struct Shape;
struct ShapeContext;
struct Status;
struct Value;

enum ErrorCode : int { kFailed = 1, kInvalidArgument = 2 };
enum ElementType : int { kFloat32 = 1, kInt64 = 7 };
enum Presence : int { kRequired = 0, kOptional = 1 };
enum MemoryType : int { kDefaultMemory = 0 };

struct Operator;

// A null status is success; any other belongs to who gets it.
struct Api {
  template <class Result, class... Arguments>
  using Function = Result(LAPLACIANFORMER_CALL*)(Arguments...);
  template <class... Arguments>
  using Checked = Function<Status*, Arguments...>;
  using Unused = Function<void>;

  Function<Status*, ErrorCode, const char*> create_status;
  Unused unused_1[1];
  Function<const char*, const Status*> error_message;
  Unused unused_3[23];
  Checked<const char*, Domain**> create_domain;
  Checked<Domain*, const Operator*> add_operator;
  Checked<SessionOptions*, Domain*> add_domain;
  Unused unused_29[22];
  Checked<Value*, void**> data;
  Unused unused_52[9];
  Checked<const Shape*, size_t*> axes;
  Checked<const Shape*, int64_t*, size_t> lengths;
  Unused unused_63[2];
  Checked<const Value*, Shape**> shape;
  Unused unused_66[19];
  Checked<const KernelInfo*, const char*, float*> float_attribute;
  Checked<const KernelInfo*, const char*, int64_t*> integer_attribute;
  Unused unused_87[1];
  Checked<const KernelContext*, size_t*> input_count;
  Unused unused_89[1];
  Checked<const KernelContext*, size_t, const Value**> input;
  Checked<KernelContext*, size_t, const int64_t*, size_t, Value**> output;
  Unused unused_92[1];
  Function<void, Status*> release_status;
  Unused unused_94[5];
  Function<void, Shape*> release_shape;
  Unused unused_100[63];
  Checked<const KernelInfo*, const char*, int64_t*, size_t*> integers_attribute;
  Unused unused_164[110];
  Checked<const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*> parallel_for;
};

constexpr size_t position(size_t offset) { return offset / sizeof(Api::Unused); }
static_assert(position(offsetof(Api, create_domain)) == 26 && position(offsetof(Api, data)) == 51);
static_assert(position(offsetof(Api, axes)) == 61 && position(offsetof(Api, shape)) == 65);
static_assert(position(offsetof(Api, float_attribute)) == 85 && position(offsetof(Api, input)) == 90);
static_assert(position(offsetof(Api, release_status)) == 93 && position(offsetof(Api, release_shape)) == 99);
static_assert(position(offsetof(Api, integers_attribute)) == 163 && position(offsetof(Api, parallel_for)) == 274);

struct ApiBase {
  const Api*(LAPLACIANFORMER_CALL* get)(uint32_t version);  // Null where the version is newer than onnxruntime.
  const char*(LAPLACIANFORMER_CALL* version)();
};

// What onnxruntime asks an operator, in its order, up to kVersion. What is null is not asked.
struct Operator {
  template <class Result, class... Arguments>
  using Function = Api::Function<Result, Arguments...>;
  using Self = const Operator*;

  uint32_t version;
  Function<void*, Self, const Api*, const KernelInfo*> create;
  Function<const char*, Self> name;
  Function<const char*, Self> provider;  // A null result stands for the CPU.
  Function<ElementType, Self, size_t> input_type;
  Function<size_t, Self> inputs;
  Function<ElementType, Self, size_t> output_type;
  Function<size_t, Self> outputs;
  Function<void, void*, KernelContext*> compute;
  Function<void, void*> destroy;
  Function<Presence, Self, size_t> input_presence, output_presence;
  Function<MemoryType, Self, size_t> input_memory;
  Function<int, Self> least_inputs, alike_inputs, least_outputs, alike_outputs;  // Where their number varies.
  Function<Status*, Self, const Api*, const KernelInfo*, void**> create_checked;
  Function<Status*, void*, KernelContext*> compute_checked;
  Function<Status*, Self, ShapeContext*> infer_shape;
  Function<int, Self> first_version, last_version;
};

// Throws what a status says.
inline void check(const Api& api, Status* status) {
  if (status == nullptr) return;
  const std::string message = api.error_message(status);
  api.release_status(status);
  throw std::runtime_error(message);
}

}  // namespace laplacianformer::onnx
