#include "threads/cpu_features.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#if defined(__aarch64__) || defined(__arm__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flexcomp {
namespace {

#if defined(__aarch64__) || defined(__arm__)

// The kernel's own bits rather than /proc/cpuinfo: emulators show the host's file.
struct Feature {
  const char* name;
  unsigned long word;  // AT_HWCAP or AT_HWCAP2
  int bit;
};
// clang-format off
constexpr Feature kFeatures[] = {
#if defined(__aarch64__)
    {"fp", AT_HWCAP, 0},       {"asimd", AT_HWCAP, 1},    {"aes", AT_HWCAP, 3},      {"crc32", AT_HWCAP, 7},
    {"atomics", AT_HWCAP, 8},  {"fphp", AT_HWCAP, 9},     {"asimdhp", AT_HWCAP, 10}, {"asimdrdm", AT_HWCAP, 12},
    {"jscvt", AT_HWCAP, 13},   {"fcma", AT_HWCAP, 14},    {"asimddp", AT_HWCAP, 20}, {"sve", AT_HWCAP, 22},     {"asimdfhm", AT_HWCAP, 23},
    {"sve2", AT_HWCAP2, 1},    {"svei8mm", AT_HWCAP2, 9}, {"svebf16", AT_HWCAP2, 12}, {"i8mm", AT_HWCAP2, 13},
    {"bf16", AT_HWCAP2, 14},   {"sme", AT_HWCAP2, 23},
#else
    {"vfp", AT_HWCAP, 6},      {"neon", AT_HWCAP, 12},    {"vfpv3", AT_HWCAP, 13},   {"vfpv4", AT_HWCAP, 16},
    {"idiva", AT_HWCAP, 17},   {"vfpd32", AT_HWCAP, 19},  {"asimdhp", AT_HWCAP, 23}, {"asimddp", AT_HWCAP, 24},
#endif
};
// clang-format on

std::set<std::string> CpuFeatures() {
  std::set<std::string> present;
  for (const Feature& feature : kFeatures)
    if (::getauxval(feature.word) >> feature.bit & 1) present.insert(feature.name);
  return present;
}

#else

// Words of the first line of /proc/cpuinfo that starts with "flags".
std::set<std::string> CpuFeatures() {
  std::set<std::string> present;
  std::FILE* file = std::fopen("/proc/cpuinfo", "re");
  if (file == nullptr) return present;
  std::string line;
  for (int c; (c = std::fgetc(file)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    if (line.starts_with("flags")) break;
    line.clear();
  }
  std::fclose(file);
  for (size_t at = 0; at < line.size();) {
    const size_t end = line.find_first_of(" \t:", at);
    if (end != at) present.insert(line.substr(at, end - at));
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return present;
}

#endif

}  // namespace

std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>& wanted) {
  std::vector<std::string> missing;
  if (wanted.empty()) return missing;
  const std::set<std::string> present = CpuFeatures();
  for (const std::string& feature : wanted)
    if (!present.contains(feature)) missing.push_back(feature);
  return missing;
}

int RequestTiles(const std::vector<std::string>& wanted) {
  if (std::find(wanted.begin(), wanted.end(), "amx_tile") == wanted.end()) return 0;
#if defined(__x86_64__)
  // ARCH_REQ_XCOMP_PERM, for the state component of tile data: headers of older kernels lack the names.
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return ENOSYS;
#endif
}

}  // namespace flexcomp
