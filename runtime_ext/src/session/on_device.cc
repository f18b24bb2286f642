#include "session/on_device.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <span>

#include "base/error.h"
#include "base/json_text.h"
#include "base/unique_fd.h"
#include "session/describe.h"
#include "threads/cpu_features.h"
#include "threads/cpu_set.h"

namespace flexcomp {
namespace {

namespace json = tvm::ffi::json;

[[noreturn]] void RaiseWriteError(const std::string& path) {
  RaiseError("StorageError", "cannot write ", path, " on the device: ", ErrnoText(errno));
}

// A line "NAME:   123 kB" of /proc/meminfo, in bytes.
std::optional<int64_t> MemoryInfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string word, unit;
  int64_t number;
  while (file >> word) {
    if (word == name + ":" && file >> number >> unit && unit == "kB") return number * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

json::Value OrNull(const std::optional<int64_t>& number) { return number ? json::Value(*number) : json::Value(nullptr); }

// Uniform in [-1, 1), the same every time.
void FillInputs(std::span<DLTensor> inputs) {
  std::minstd_rand random;
  for (const DLTensor& input : inputs) {
    const size_t nbytes = tvm::ffi::GetDataSize(input);
    if (input.dtype.code != kDLFloat || input.dtype.bits != 32) {
      std::memset(input.data, 0, nbytes);
      continue;
    }
    for (float& value : std::span(static_cast<float*>(input.data), nbytes / sizeof(float)))
      value = static_cast<float>(random() % 65536) / 32768.f - 1.f;
  }
}

int64_t AllowedCpus() {
  const auto allowed = CpuSet::OfThisThread();
  return allowed ? allowed->count() : ::sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

void WritePiece(const std::string& path, uint64_t offset, std::string_view bytes) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (offset == 0 ? O_TRUNC : 0), 0644));
  if (file.get() < 0) RaiseWriteError(path);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) RaiseWriteError(path);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void SettleFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || ::fdatasync(file.get()) != 0) RaiseWriteError(path);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

std::string DescribeMachine(const Program& program) {
  utsname names{};
  ::uname(&names);
  json::Array missing;
  for (const std::string& feature : MissingCpuFeatures(program.features)) missing.push_back(tvm::ffi::String(feature));
  return std::string(JsonText(json::Object{
      {"machine", tvm::ffi::String(names.machine)},
      {"cpus", AllowedCpus()},
      {"memory_bytes", OrNull(MemoryInfo("MemTotal"))},
      {"memory_available_bytes", OrNull(MemoryInfo("MemAvailable"))},
      {"missing_features", missing},
  }));
}

std::string RunRepeatedly(Session& session, const Repetition& repetition) {
  if (repetition.fewest < 1 || repetition.most < repetition.fewest)
    RaiseError("InputError", "cannot repeat ", repetition.fewest, " to ", repetition.most, " times");
  const auto start = std::chrono::steady_clock::now();
  const auto enough = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= repetition.seconds;
  };
  std::string runs, traces;
  for (int64_t done = 0; done < repetition.fewest || (done < repetition.most && !enough()); ++done) {
    session.ResetStates();  // each does the same, however many there were
    session.RunInPlace(FillInputs, {});
    const char* separator = done == 0 ? "" : ",";
    runs += separator + DescribeState(session.shapes(), session.state());
    if (session.traces()) traces += separator + DescribeTrace(session.trace());
  }
  return R"({"runs":[)" + runs + R"(],"traces":[)" + traces + "]}";
}

}  // namespace flexcomp
