"""Runs a recipe for Spack with stand-ins for Spack's words, and prints what it says as JSON."""

import json
import sys
import types

said = []


def note(word):
    return lambda *a, **k: said.append([word, [str(text) for text in a], k])


def module(name, **words):
    sys.modules[name] = made = types.ModuleType(name)
    made.__dict__.update(words)


directives = {word: note(word) for word in ("version", "depends_on", "license")}
module("spack")
module("spack.package", make=note("make"), join_path=lambda *parts: "/".join(parts), **directives)
for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
    module(name)
module("spack_repo.builtin.build_systems.generic", Package=object)

recipe = {"__file__": sys.argv[1], "__name__": "recipe"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), recipe)
package = recipe["NvshmemLibfabric"]()
package.install(None, "/prefix")
libfabric = types.SimpleNamespace(prefix=types.SimpleNamespace(lib="/libfabric/lib"))
package.spec = {"libfabric": libfabric}
package.setup_run_environment(types.SimpleNamespace(set=note("set")))
print(json.dumps({"said": said, "git": package.git}))
