#include "npy.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "ports.h"

namespace flexcomp::runner {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kPrefix = 10;  // magic, version, u16 header length
constexpr size_t kUnit = 64;    // the data starts at a multiple of kUnit

std::FILE* Open(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  return file;
}

char KindOf(flexcomp_dtype dtype) {
  switch (dtype) {
    case FLEXCOMP_BOOL: return 'b';
    case FLEXCOMP_INT8:
    case FLEXCOMP_INT16:
    case FLEXCOMP_INT32:
    case FLEXCOMP_INT64: return 'i';
    case FLEXCOMP_FLOAT16:
    case FLEXCOMP_FLOAT32:
    case FLEXCOMP_FLOAT64: return 'f';
    case FLEXCOMP_BFLOAT16: return 'V';
    default: return 'u';
  }
}

std::string Descr(flexcomp_dtype dtype) {
  const size_t nbytes = ElementNbytes(dtype);
  return (nbytes == 1 ? "|" : "<") + std::string(1, KindOf(dtype)) + std::to_string(nbytes);
}

std::string Shape(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? " " : "") + std::to_string(shape[i]) + ",";
  if (shape.size() > 1) text.pop_back();  // only a tuple of one keeps its comma
  return text + ")";
}

// The text after `'key':` in the header's dictionary, without blanks in front.
std::string_view Field(std::string_view header, const std::string& key, const std::string& path) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) throw std::runtime_error(path + " is not a .npy file: its header lacks " + key);
  std::string_view rest = header.substr(at + key.size() + 3);
  const size_t start = rest.find_first_not_of(' ');
  return start == std::string_view::npos ? std::string_view{} : rest.substr(start);
}

std::string WithoutBlanks(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != ' ') out += c;
  return out;
}

// The header of a file that is open at its beginning, which is then at the array.
std::string Header(std::FILE* file, const std::string& path) {
  unsigned char prefix[kPrefix];
  if (std::fread(prefix, 1, kPrefix, file) != kPrefix || std::memcmp(prefix, kMagic, 6) != 0)
    throw std::runtime_error(path + " is not a .npy file");
  if (prefix[6] != 1) throw std::runtime_error(path + " is a .npy file of version " + std::to_string(prefix[6]) + ", not 1");
  std::string header(prefix[8] | prefix[9] << 8, '\0');
  if (std::fread(header.data(), 1, header.size(), file) != header.size())
    throw std::runtime_error(path + " is cut short");
  return header;
}

std::string Dims(const std::string& header, const std::string& path) {
  const std::string_view dims = Field(header, "shape", path);
  return WithoutBlanks(dims.substr(0, dims.find(')') + 1));
}

}  // namespace

std::vector<int64_t> NpyFile::ShapeOf(const std::string& path) {
  const std::unique_ptr<std::FILE, CloseFile> file(Open(path, "rbe"));
  const std::string dims = Dims(Header(file.get(), path), path);
  std::vector<int64_t> shape;
  for (const char* at = dims.c_str(); *at != 0;) {
    char* end = nullptr;
    const long long extent = std::strtoll(at, &end, 10);
    if (end == at) ++at;
    else shape.push_back(extent), at = end;
  }
  return shape;
}

NpyFile::NpyFile(const std::string& path, flexcomp_dtype dtype, const std::vector<int64_t>& shape)
    : path_(path), file_(Open(path, "rbe")) {
  const std::string header = Header(file_.get(), path);
  const std::string_view descr = Field(header, "descr", path), order = Field(header, "fortran_order", path);
  const std::string given = Dims(header, path);
  // NumPy has no bfloat16: the type of ml_dtypes is saved as two bytes of anything, and bits may come as uint16.
  const bool bits = dtype == FLEXCOMP_BFLOAT16 && descr.starts_with("'<u2'");
  if (!(bits || descr.starts_with("'" + Descr(dtype) + "'")) || given != WithoutBlanks(Shape(shape)))
    throw std::runtime_error(path + " holds " + std::string(descr.substr(0, descr.find(','))) + " " + given +
                             ", expected '" + Descr(dtype) + "' " + Shape(shape));
  if (!order.starts_with("False") && shape.size() > 1) throw std::runtime_error(path + " is in Fortran order");
  data_at_ = std::ftell(file_.get());
  const auto element = static_cast<int64_t>(ElementNbytes(dtype));
  const int64_t nbytes = std::accumulate(shape.begin(), shape.end(), element, std::multiplies<>());
  if (std::fseek(file_.get(), 0, SEEK_END) != 0 || std::ftell(file_.get()) - data_at_ != nbytes)
    throw std::runtime_error(path + " has not as many bytes as its shape says");
}

void NpyFile::Read(std::byte* data, size_t nbytes) const {
  if (std::fseek(file_.get(), data_at_, SEEK_SET) != 0 || std::fread(data, 1, nbytes, file_.get()) != nbytes ||
      std::fgetc(file_.get()) != EOF)
    throw std::runtime_error(path_ + " has not as many bytes as its shape says");
}

void WriteNpy(const std::string& path, flexcomp_dtype dtype, const std::vector<int64_t>& shape, const std::byte* data,
              size_t nbytes) {
  std::string header = "{'descr': '" + Descr(dtype) + "', 'fortran_order': False, 'shape': " + Shape(shape) + ", }";
  const size_t unpadded = kPrefix + header.size() + 1;
  header.append((kUnit - unpadded % kUnit) % kUnit, ' ');
  header += '\n';
  const unsigned char prefix[kPrefix] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0,
                                         static_cast<unsigned char>(header.size() & 0xFF),
                                         static_cast<unsigned char>(header.size() >> 8)};
  const std::unique_ptr<std::FILE, CloseFile> file(Open(path, "wbe"));
  if (std::fwrite(prefix, 1, kPrefix, file.get()) != kPrefix ||
      std::fwrite(header.data(), 1, header.size(), file.get()) != header.size() ||
      std::fwrite(data, 1, nbytes, file.get()) != nbytes || std::fflush(file.get()) != 0)
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace flexcomp::runner
