// One client's session: a process and a folder of its own, gone when it ends.
#pragma once

#include <string>

#include "../src/unique_fd.h"

namespace flexcomp::server {

// Serves the client on `connection` until it leaves, or for at most `seconds` (0: without limit), with files in a new
// folder under `work_dir`. Returns how it ended. SIGTERM and SIGINT end it too, and then this process.
// Throws std::system_error if there is no room for the folder or the process.
std::string Serve(UniqueFd connection, const std::string& work_dir, double seconds);

}  // namespace flexcomp::server
