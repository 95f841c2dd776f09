// Registrations with torch, for a library without it: none takes place.
#pragma once

namespace torch::stable {

struct Library {
  void def(const char*) {}
  void impl(const char*, int) {}
};

}  // namespace torch::stable

#define TORCH_BOX(function) ((void)(function), 0)
#define STABLE_TORCH_LIBRARY_FRAGMENT(name, m) [[maybe_unused]] static void define_##name(torch::stable::Library& m)
#define STABLE_TORCH_LIBRARY_IMPL(name, key, m) \
  [[maybe_unused]] static void implement_##name##_##key(torch::stable::Library& m)
