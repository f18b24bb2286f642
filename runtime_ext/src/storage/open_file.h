// Files that are open for reading, each once however many sources read it.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace flexcomp {

// Opens `path` to read it, with more `flags` of open(2), or shares the descriptor of a source that did so with the same file:
// models with one weights file need one. `status` is the file's. nullptr: it cannot be opened, which errno says why. Any thread
// may call it.
std::shared_ptr<const UniqueFd> OpenFile(const std::string& path, int flags, struct stat* status);

}  // namespace flexcomp
