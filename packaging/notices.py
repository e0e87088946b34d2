#!/usr/bin/env python3
"""Prints the licences of the crates that are linked into what is installed, and lists them in a file, by CycloneDX:

    cargo metadata --format-version 1 ... | packaging/notices.py FILE CRATE...

Each CRATE is one whose library or program is installed. A crate that may be had under the Apache License, which is this
project's own, is named. Of all others the texts follow, as their licences ask for.
"""

import json
import re
import sys
from pathlib import Path

metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

wanted = [package["id"] for package in packages.values() if package["name"] in sys.argv[2:]]
if len(wanted) != len(sys.argv) - 2:
    sys.exit(f"not all of these are crates of the workspace: {' '.join(sys.argv[2:])}")
linked = set()
while wanted:
    crate = wanted.pop()
    if crate in linked:
        continue
    linked.add(crate)
    for dependency in nodes[crate]["deps"]:
        # Neither what only tests or the build need, nor macros, which leave none of their own code.
        kinds = [kind["kind"] for kind in dependency["dep_kinds"]]
        macros = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
        if None in kinds and not macros:
            wanted.append(dependency["pkg"])

# What has a source comes from a registry; the rest is this project's own.
crates = sorted(
    (packages[crate] for crate in linked if packages[crate]["source"]),
    key=lambda crate: (crate["name"], crate["version"]),
)
apache, others, components = [], [], []
for crate in crates:
    name, version, choices = crate["name"], crate["version"], re.split(r" OR |/", crate["license"] or "")
    (apache if "Apache-2.0" in choices else others).append(crate)
    component = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
    components.append(component | {"licenses": [{"expression": " OR ".join(choices)}]})
Path(sys.argv[1]).write_text(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": components}))

print("The libraries and the program of this package contain, beside this project's own code and Rust's standard library,")
print("the following crates. Under the Apache License, version 2.0, as this project:\n")
print(*(f"  {crate['name']} {crate['version']}" for crate in apache), sep="\n")
print("\nUnder other licences:\n")
print(*(f"  {crate['name']} {crate['version']}: {crate['license']}" for crate in others), sep="\n")
for crate in others:
    texts = sorted(file for file in Path(crate["manifest_path"]).parent.iterdir() if re.match(r"(?i)(licen[cs]e|copying)", file.name))
    if not texts:
        sys.exit(f"{crate['name']} {crate['version']} is under {crate['license']} and has no text of it")
    for text in texts:
        print(f"\n{'-' * 78}\n{crate['name']} {crate['version']}, {text.name}\n")
        print(text.read_text().strip())
