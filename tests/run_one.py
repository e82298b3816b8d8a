#!/usr/bin/env python3
"""Runs one test method of a unittest file for ctest, or lists them all.

run_one.py --list FILE            prints Class.method, one a line (parsed, nothing is imported)
run_one.py FILE Class.method      exit 0 passed, 77 skipped (the reason is printed), 1 failed
"""
import ast
import importlib.util
import pathlib
import sys
import unittest

SKIPPED = 77


def methods(path):
    tree = ast.parse(pathlib.Path(path).read_text(), path)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name.startswith("test"):
                    yield f"{node.name}.{item.name}"


def main():
    if sys.argv[1] == "--list":
        print("\n".join(methods(sys.argv[2])))
        return 0
    path, name = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.path[:0] = [str(path.parent), str(pathlib.Path(__file__).resolve().parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromName(name, module)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if result.skipped and not result.failures and not result.errors:
        print(f"SKIPPED {name}: {result.skipped[0][1]}")
        return SKIPPED
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
