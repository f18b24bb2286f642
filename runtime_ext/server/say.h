// The server's log.
#pragma once

#include <string>

namespace flexcomp::server {

// A line on standard output, if anybody still reads there.
void Say(const std::string& text);

}  // namespace flexcomp::server
