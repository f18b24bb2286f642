#include "say.h"

#include <iostream>

namespace flexcomp::server {

void Say(const std::string& text) {
  std::cout.clear();
  std::cout << text << std::endl;
}

}  // namespace flexcomp::server
