"""generated/*.map: linker version scripts that export exactly the library's names.

The one version node is anonymous, so the symbols carry no version.
"""


def generate(library):
    return ["{", "  global:", *[f"    {f.symbol};" for f in library.functions],
            "  local:", "    *;", "};"]
