#include "storage/read_errors.h"

#include <cerrno>

#include "base/error.h"
#include "storage/byte_source.h"
#include "storage/weights_file.h"

namespace flexcomp {

std::string ReadErrorText(int error) {
  return error == ByteSource::kOverrun ? "more bytes were returned than were asked for" : ErrnoText(error);
}

void RaiseReadCancelled() { Raise("CancelledError", "the reader of the weights cancelled"); }

void WeightsFile::RequireUnchanged() const {
  const int error = Check();
  if (error == ByteSource::kChanged) RaiseError("StorageError", name_, " was changed while the session had it open: open the model again");
  if (error != 0) RaiseError("StorageError", "cannot look at ", name_, ": ", ErrnoText(error));
}

void WeightsFile::RaiseReadError(uint64_t offset, int error, const std::string& of) const {
  RequireUnchanged();  // the better reason
  if (error == ECANCELED) RaiseReadCancelled();
  if (error == ByteSource::kChanged)
    RaiseError("StorageError", name_, " no longer holds what was verified when it was opened, at byte ", offset,
               " of the data section or after it (", of, "): open the model again");
  RaiseError("StorageError", "reading ", name_, " failed at byte ", offset, " of the data section (", of, "): ", ReadErrorText(error));
}

}  // namespace flexcomp
