#!/usr/bin/env python3
"""Installs PyTorch for machines without a GPU: 1.2 GB on disk instead of 5.3 GB.

The wheels that PyPI offers for Linux are built for CUDA and depend on some four gigabytes of NVIDIA libraries that a
program on the CPU never calls. This script installs the wheel without those and puts a small stub beside it for every
shared library that is then missing. A stub has the name, the symbol versions and the functions that PyTorch's own
libraries ask the loader for; each function returns 100, which is cudaErrorNoDevice, so `torch.cuda.is_available()` is
false, as it is with the real libraries on such a machine.

Never use it where a GPU is to be used: `scripts/setup.sh` does not, and FANIN_FULL_TORCH=1 prevents it everywhere.

    .venv/bin/python scripts/lean_torch.py          (needs uv in the environment, a C compiler and binutils)
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.15.0"
# What `import torch` needs besides the CUDA libraries; the rest of its dependencies serve the GPU compiler.
SMALL_DEPENDENCIES = ["filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec"]
SMALL_DEPENDENCIES += ["numpy", "setuptools"]
CUDA_ERROR_NO_DEVICE = 100
# Functions of the CUDA family; a missing symbol with another name would be a fault that a stub must not hide.
CUDA_FUNCTION = re.compile(r"(cu|nccl|nvrtc|nvshmem|nvJit|__cuda|nvtx)\w*")


@dataclass
class Wanted:
    """What a set of shared libraries asks the loader for and does not hold itself."""

    libraries: list[str] = field(default_factory=list)
    """File names of the missing libraries, in the order in which they were met."""
    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Symbol versions asked of each library."""
    functions: set[tuple[str, str]] = field(default_factory=set)
    """Undefined functions, each with its symbol version or ""."""


def main() -> int:
    """Installs, stubs and tries the import. Exit status 0 when `import torch` works."""
    install()
    lib = Path(sysconfig.get_path("purelib")) / "torch" / "lib"
    wanted = find_wanted(lib)
    for name, source, script in stub_sources(wanted):
        compile_stub(lib / name, source, script)
    print(f"torch: {len(wanted.libraries)} stub libraries in {lib}")
    return try_import()


def install() -> None:
    """Puts the wheel and its small dependencies into this interpreter's environment."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    subprocess.run([*uv, "--no-deps", TORCH, *SMALL_DEPENDENCIES], check=True, stdin=subprocess.DEVNULL)


def find_wanted(lib: Path) -> Wanted:
    """Reads the dynamic sections of every library in `lib`."""
    paths = sorted(lib.glob("*.so*"))
    present = {path.name for path in paths} | system_libraries()
    wanted, defined = Wanted(), set()
    for path in paths:
        read_needed(path, present, wanted)
        read_symbols(path, defined, wanted)
    wanted.functions = {(name, version) for name, version in wanted.functions if name not in defined}
    return wanted


def system_libraries() -> set[str]:
    """Names that the loader finds by itself: libz and the like must not be stubbed."""
    ldconfig = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.path.exists(path)), "ldconfig")
    return set(re.findall(r"^\s+(\S+)", output(ldconfig, "-p"), re.MULTILINE))


def read_needed(path: Path, present: set[str], wanted: Wanted) -> None:
    """Adds the libraries that `path` needs, and the symbol versions that it needs of each."""
    library = None
    for line in output("objdump", "-p", str(path)).splitlines():
        if match := re.match(r"\s+NEEDED\s+(\S+)", line):
            if match[1] not in present and match[1] not in wanted.libraries:
                wanted.libraries.append(match[1])
        elif match := re.match(r"\s+required from (\S+):", line):
            library = match[1]
        elif library and (match := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line)):
            wanted.versions[library].add(match[1])
        elif not line.strip():
            library = None


def read_symbols(path: Path, defined: set[str], wanted: Wanted) -> None:
    """Adds the functions that `path` defines to `defined` and the CUDA functions that it lacks to `wanted`."""
    for line in output("readelf", "--dyn-syms", "--wide", str(path)).splitlines():
        columns = line.split()
        if len(columns) < 8 or not columns[0].rstrip(":").isdigit():
            continue
        name, _, version = columns[7].partition("@")
        binding, section = columns[4], columns[6]
        if section != "UND":
            defined.add(name)
        elif binding != "WEAK" and CUDA_FUNCTION.fullmatch(name):
            wanted.functions.add((name, version.strip("@")))


def stub_sources(wanted: Wanted):
    """Yields for each missing library its name, its C source and its linker version script ("" for none)."""
    owner = {version: library for library, versions in wanted.versions.items() for version in versions}
    for index, library in enumerate(wanted.libraries):
        # Functions without a version could be anybody's: any library of the process may define them, so the first does.
        mine = sorted(
            (name, version)
            for name, version in wanted.functions
            if owner.get(version) == library or (index == 0 and version not in owner)
        )
        source = "".join(f"int {name}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}\n" for name, _ in mine)
        yield library, source, version_script(sorted(wanted.versions[library]), mine)


def version_script(versions: list[str], functions: list[tuple[str, str]]) -> str:
    """The linker's script that gives each function its symbol version."""
    nodes = []
    for version in versions:
        names = "".join(f" {name};" for name, its_version in functions if its_version == version)
        nodes.append(f"{version} {{{' global:' + names if names else ''} }};\n")
    return "".join(nodes)


def compile_stub(path: Path, source: str, script: str) -> None:
    """Builds one stub library at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        c_file, script_file = Path(folder, "stub.c"), Path(folder, "versions")
        c_file.write_text(source)
        script_file.write_text(script)
        command = [os.environ.get("CC", "cc"), "-shared", "-nostdlib", "-fPIC", "-w", "-fno-builtin", "-O1"]
        command += ["-o", str(path), str(c_file), f"-Wl,-soname,{path.name}"]
        subprocess.run(command + ([f"-Wl,--version-script,{script_file}"] if script else []), check=True)


def try_import() -> int:
    """Imports torch in a fresh process and asks it for gloo, which the tests and the demo compare with."""
    check = "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()"
    if subprocess.run([sys.executable, "-c", check], stdin=subprocess.DEVNULL).returncode == 0:
        return 0
    print("torch does not load with stub libraries; install it in full: make setup FANIN_FULL_TORCH=1", file=sys.stderr)
    return 1


def output(*command: str) -> str:
    """Standard output of a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


if __name__ == "__main__":
    sys.exit(main())
