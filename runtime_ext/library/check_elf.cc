#include "library/check_elf.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/unique_fd.h"

namespace flexcomp {
namespace {

// Of this program, and so of the libraries that the program can map; the linker defines the symbol.
extern "C" __attribute__((visibility("hidden"))) const ElfW(Ehdr) __ehdr_start;

class File {
 public:
  explicit File(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status;
    if (fd_.get() < 0 || ::fstat(fd_.get(), &status) != 0)
      RaiseError("ArtifactError", "cannot open ", path, ": ", ErrnoText(errno));
    if (!S_ISREG(status.st_mode)) RaiseError("ArtifactError", path, " is not a shared library, nor a file");
    nbytes_ = static_cast<uint64_t>(status.st_size);
  }

  uint64_t nbytes() const { return nbytes_; }

  // Mapped pages would be read one by one on first touch. 0 bytes: to the end.
  void ReadAhead(uint64_t offset, uint64_t nbytes) const {
    ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(nbytes), POSIX_FADV_WILLNEED);
  }

  void RequireRange(uint64_t offset, uint64_t nbytes) const {
    if (offset <= nbytes_ && nbytes <= nbytes_ - offset) return;
    const std::string wanted = offset > UINT64_MAX - nbytes ? "more than there can be" : std::to_string(offset + nbytes);
    RaiseError("ArtifactError", path_, " is cut short: ", nbytes_, " bytes instead of ", wanted);
  }

  template <typename T>
  T Read(uint64_t offset) const {
    RequireRange(offset, sizeof(T));
    T value;
    for (size_t got = 0; got < sizeof(T);) {
      const ssize_t n =
          ::pread(fd_.get(), reinterpret_cast<char*>(&value) + got, sizeof(T) - got, static_cast<off_t>(offset + got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) RaiseError("ArtifactError", "cannot read ", path_, ": ", ErrnoText(errno));
      if (n == 0) RaiseError("ArtifactError", path_, " became shorter while it was read");
      got += static_cast<size_t>(n);
    }
    return value;
  }

 private:
  const std::string& path_;
  const UniqueFd fd_;
  uint64_t nbytes_ = 0;
};

}  // namespace

void CheckElf(const std::string& path) {
  const File file(path);
  ElfW(Ehdr) head{};
  if (file.nbytes() >= sizeof(head)) head = file.Read<ElfW(Ehdr)>(0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) RaiseError("ArtifactError", path, " is not a shared library");
  if (head.e_ident[EI_CLASS] != __ehdr_start.e_ident[EI_CLASS] || head.e_machine != __ehdr_start.e_machine)
    RaiseError("ArtifactError", path, " was compiled for another machine");
  file.RequireRange(head.e_phoff, uint64_t{head.e_phentsize} * head.e_phnum);
  for (uint64_t i = 0; i < head.e_phnum; ++i) {
    const auto segment = file.Read<ElfW(Phdr)>(head.e_phoff + i * head.e_phentsize);
    if (segment.p_type == PT_LOAD) file.RequireRange(segment.p_offset, segment.p_filesz);
  }
  // At the end of the files that linkers write.
  file.RequireRange(head.e_shoff, uint64_t{head.e_shentsize} * head.e_shnum);
  // The dynamic loader and the program's reader want the parts other than code, most of which stand after the code.
  // Code is read meanwhile.
  for (uint64_t i = 0; i < head.e_shnum; ++i) {
    const auto section = file.Read<ElfW(Shdr)>(head.e_shoff + i * head.e_shentsize);
    const bool in_file = section.sh_type != SHT_NOBITS && section.sh_size > 0;
    if (in_file && (section.sh_flags & (SHF_ALLOC | SHF_EXECINSTR)) == SHF_ALLOC) file.ReadAhead(section.sh_offset, section.sh_size);
  }
  file.ReadAhead(0, 0);
}

}  // namespace flexcomp
