#!/usr/bin/env python3
"""Counts what the tree weighs, prints it as a table, and fails where a ceiling is passed.

    scripts/budgets.py

Generated files are left out. Product code is what src and crates hold without crates/dev, comments,
blank lines and what is compiled for tests alone. Lower a ceiling when a change makes room. The last
rows are about language: functions that are not public, and comments that are no documentation.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

CEILINGS = {
    "product code, lines": 34_133,
    "main workspace, lines of Rust": 97_471,
    "laboratories, lines of Rust": 9_850,
    "documentation, words": 28_000,
    "scripts, lines": 2_200,
    "make targets": 25,
    "crates of the main workspace": 20,
    "documented private functions, %": 35,
    "code per line of comment in it": 25,
    "tests named in over six words": 0,
}

GENERATED = re.compile(r"(^|/)generated(/|\.rs$)")
TEST_ITEM = re.compile(r"#\[cfg\(test\)\]|#!\[cfg\(test\)\]")


def files(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        check=True, capture_output=True, text=True,
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and Path(name).is_file()]


def without_literals(line):
    """Drops strings, characters and comments, so that the braces that remain are the code's."""
    line = re.sub(r"b?'(\\.[^']*|[^\\'])'", "", line)
    line = re.sub(r'b?c?"(\\.|[^"\\])*"', "", line)
    return line.split("//")[0]


def item_end(lines, start):
    """Returns the index behind the item that begins at `start`: at its `;`, or its closing brace."""
    depth = 0
    for index in range(start, len(lines)):
        code = without_literals(lines[index])
        depth += code.count("{") + code.count("(") + code.count("[")
        depth -= code.count("}") + code.count(")") + code.count("]")
        attribute = code.strip().startswith("#[")
        if depth <= 0 and not attribute and re.search(r"[;},]\s*$", code):
            return index + 1
    return len(lines)


def tests_by_declaration(paths):
    """Returns the files and folders of modules declared as `#[cfg(test)] mod NAME;`."""
    found = set()
    for path in paths:
        text = path.read_text()
        for name in re.findall(r"#\[cfg\((?:all\()?test[^\n]*\]\s*(?:pub(?:\(\w+\))? )?mod (\w+);", text):
            folder = path.parent if path.name in ("lib.rs", "mod.rs", "main.rs") else path.with_suffix("")
            found |= {folder / f"{name}.rs", folder / name}
    return found


def count(path, is_test):
    """Counts the lines of a file as code, comments, blank lines and tests."""
    lines = path.read_text().splitlines()
    if is_test or any(line.startswith("#![cfg(test)]") for line in lines[:40]):
        return Counter(tests=len(lines))
    kinds, index, in_comment = Counter(), 0, False
    while index < len(lines):
        line = lines[index].strip()
        if line.startswith("#[cfg(test)]"):
            end = item_end(lines, index + 1)
            kinds["tests"] += end - index
            index = end
            continue
        if in_comment or line.startswith(("//", "/*")):
            kinds["comments"] += 1
            in_comment = (in_comment or line.startswith("/*")) and "*/" not in line
        else:
            kinds["code" if line else "blank"] += 1
        index += 1
    return kinds


def language(path, is_product):
    """Counts what a reader meets: documented private functions, comments in code, tests' names."""
    text = path.read_text()
    names = re.findall(r"#\[test\]\n(?:\s*(?://|#\[).*\n)*\s*fn (\w+)", text)
    kinds = Counter(long_names=sum(name.count("_") > 5 for name in names))
    if is_product:
        private = r"(?:const |async |unsafe |extern \"\w+\" )*fn \w"
        functions = re.findall(rf"^((?:\s*///.*\n)*)(?:\s*#\[(?!test).*\n)*\s*{private}", text, re.MULTILINE)
        kinds.update(private=len(functions), documented=sum(map(bool, functions)))
        kinds["remarks"] = len(re.findall(r"^\s*//(?![/!])", text, re.MULTILINE))
    return kinds


def rust():
    """Returns the counts by class of all hand-written Rust, and those of its language."""
    paths = [path for path in files("*.rs") if not GENERATED.search(str(path))]
    words = Counter()
    declared = tests_by_declaration(paths)
    classes = {name: Counter() for name in ("product", "fakes", "tests", "tools", "laboratories")}
    for path in paths:
        first, name = path.parts[0], str(path)
        if name.startswith("tools/labs/"):
            kind = "laboratories"
        elif first == "tools":
            kind = "tools"
        elif first == "tests":
            kind = "tests"
        elif name.startswith("crates/dev/") or (first == "crates" and "tests" in path.parts):
            kind = "fakes"
        else:
            kind = "product"
        is_test = path in declared or any(parent in declared for parent in path.parents)
        classes[kind] += count(path, is_test)
        words += language(path, kind == "product" and not is_test)
    return classes, words


def main():
    classes, words = rust()
    columns = ("code", "comments", "blank", "tests")
    print(f"{'class':14}" + "".join(f"{column:>10}" for column in (*columns, "all")))
    for name, kinds in classes.items():
        print(f"{name:14}" + "".join(f"{kinds[column]:10}" for column in columns) + f"{kinds.total():10}")
    scripts = files("*.sh", "scripts/*.py", "packaging/notices.py", "scripts/cargo", ".ci/run")
    targets = re.findall(r"^[a-z0-9-]+:.*## ", Path("Makefile").read_text(), re.MULTILINE)
    members = re.search(r"^members = \[(.*?)\]", Path("Cargo.toml").read_text(), re.DOTALL | re.MULTILINE)
    found = {
        "product code, lines": classes["product"]["code"],
        "main workspace, lines of Rust": sum(
            kinds.total() for name, kinds in classes.items() if name != "laboratories"
        ),
        "laboratories, lines of Rust": classes["laboratories"].total(),
        "documentation, words": sum(len(path.read_text().split()) for path in files("*.md")),
        "scripts, lines": sum(len(path.read_text().splitlines()) for path in scripts),
        "make targets": len(targets),
        "crates of the main workspace": members[1].count('"') // 2,
        "documented private functions, %": round(100 * words["documented"] / words["private"], 1),
        "code per line of comment in it": round(classes["product"]["code"] / words["remarks"], 1),
        "tests named in over six words": words["long_names"],
    }
    print()
    over = 0
    for name, ceiling in CEILINGS.items():
        mark = "" if found[name] <= ceiling else "  over"
        over += bool(mark)
        print(f"{name:32}{found[name]:10} of at most {ceiling}{mark}")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
