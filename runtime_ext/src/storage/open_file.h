// Files that are open for reading, each once for any number of sources.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace flexcomp {

// Opens `path` to read it, with more `flags` of open(2), or shares the descriptor of a source that did so with the same file:
// models with one weights file need one. `status` is the file's. nullptr: opening failed, and errno says why. Any thread may
// call this.
std::shared_ptr<const UniqueFd> OpenFile(const std::string& path, int flags, struct stat* status);

// The same for a file that is open under `descriptor`, whose own flags stay; without `flags`, the same description if the system does
// not let this process open the file.
std::shared_ptr<const UniqueFd> OpenAgain(int descriptor, int flags, struct stat* status);

}  // namespace flexcomp
