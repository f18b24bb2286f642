// The file of --trace.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace flexcomp::runner {

// Written as the inferences end, so that the trace takes no memory. All throw std::runtime_error.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w"), &std::fclose) {
    if (!file_) Fail();
  }
  void Append(const std::string& line) {
    if (std::fprintf(file_.get(), "%s\n", line.c_str()) < 0 || std::fflush(file_.get()) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() const { throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno)); }

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace flexcomp::runner
