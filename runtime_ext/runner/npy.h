// NumPy's .npy files: contiguous little-endian arrays in C order.
#pragma once

#include <flexcomp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace flexcomp::runner {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// A file whose array must have exactly this type and shape; may be read any number of times.
class NpyFile {
 public:
  // Throws std::runtime_error, also for an array of another type or shape.
  NpyFile(const std::string& path, flexcomp_dtype dtype, const std::vector<int64_t>& shape);

  // The extents of the array in a file. Throws std::runtime_error.
  static std::vector<int64_t> ShapeOf(const std::string& path);

  // Fills `data` with the whole array. Throws std::runtime_error.
  void Read(std::byte* data, size_t nbytes) const;

 private:
  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  long data_at_;
};

void WriteNpy(const std::string& path, flexcomp_dtype dtype, const std::vector<int64_t>& shape, const std::byte* data,
              size_t nbytes);

}  // namespace flexcomp::runner
