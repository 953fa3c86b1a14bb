"""A project of a few lines with llama.cpp's file names and targets, for tests of whole builds."""

import subprocess
from pathlib import Path

CMAKE = """\
cmake_minimum_required(VERSION 3.24)
project(fake C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_subdirectory(tools)
"""
# As in llama.cpp, no target is made at the top: `cmake --fresh` removes the objects of those.
TOOLS_CMAKE = """\
add_custom_command(OUTPUT slow.cpp COMMAND ${CMAKE_COMMAND} -E sleep $ENV{FAKE_SLEEP_S}
    COMMAND ${CMAKE_COMMAND} -E touch slow.cpp VERBATIM)
add_executable(llama-server server/server-context.cpp ../other.cpp slow.cpp)
add_executable(llama-bench ../other.cpp ../bench.c)
"""
SERVER = """\
#include <cassert>
#include <vector>
int answer();
int main(int argc, char **) {
    std::vector<int> values(1);
    assert(argc < 2);
    return answer() - (argc > 5 ? values[argc] : 0);
}
"""
OTHER = "int answer() {\n    return 7;\n}\n"
PATCH_DIFF = """\
diff --git a/other.cpp b/other.cpp
--- a/other.cpp
+++ b/other.cpp
@@ -1,3 +1,3 @@
 int answer() {
-    return 7;
+    return 8;
 }
"""


def make_checkout(folder: Path) -> Path:
    """Write the project, commit it, and return its folder."""
    files = {
        "CMakeLists.txt": CMAKE,
        "tools/CMakeLists.txt": TOOLS_CMAKE,
        "src/llama-memory.h": "",
        "tools/server/server-context.cpp": SERVER,
        "other.cpp": OTHER,
        "bench.c": "int main(void) { return 0; }\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=no"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "fake"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder
