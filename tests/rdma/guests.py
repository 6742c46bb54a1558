"""Two guests under qemu, joined by a wire, each with rdma_rxe (Soft-RoCE) on it. Plain software emulation, no KVM.

The kernel is Debian's, taken out of its package and never installed. The root file system is an archive made here:
busybox, the programs named by the caller with the libraries they need, and a handful of kernel modules. Guest and host
share a folder through 9p. What is downloaded stays in the cache folder; a second run needs no network.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "linux-image-amd64"  # the cloud kernel has no rdma_rxe
MODULES = "crc32_generic rdma_rxe rdma_ucm ib_uverbs virtio_net virtio_pci 9p 9pnet_virtio sch_netem".split()
KEPT = ("./boot/vmlinuz-*", "./lib/modules/*/modules.*", "./lib/modules/*/kernel/[!s]*")  # without sound
PROGRAMS = {  # program: Debian package
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "depmod": "kmod",
    "modprobe": "kmod",
    "ip": "iproute2",
    "tc": "iproute2",
    "rdma": "iproute2",
}
LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libibverbs/librxe-rdmav34.so": "ibverbs-providers"}
FOLDERS = "/usr/sbin:/sbin"
LIBRARY_FOLDERS = [Path("/usr/lib/x86_64-linux-gnu"), Path("/lib/x86_64-linux-gnu"), Path("/usr/lib64")]


class CannotRunError(Exception):
    """One line: what is missing and how to get it."""


class NotHereError(Exception):
    """One line: why this machine is none that the guests can run on. Not an error of the project."""


def program(name: str) -> Path:
    """Where a program is. Raises CannotRunError."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{FOLDERS}")
    if not found:
        raise CannotRunError(f"{name} is missing")
    return Path(found)


def library(name: str) -> Path | None:
    """Where a shared library is."""
    return next((folder / name for folder in LIBRARY_FOLDERS if (folder / name).exists()), None)


def rxe_provider() -> Path | None:
    """The library that drives rdma_rxe; its name holds the version of its interface."""
    return next((path for folder in LIBRARY_FOLDERS for path in folder.glob("libibverbs/librxe-rdmav*.so")), None)


def require_host(cache: Path) -> None:
    """Raises NotHereError or CannotRunError."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotHereError("the guests are x86-64 Linux, as is what runs in them")
    path = f"{os.environ.get('PATH', os.defpath)}:{FOLDERS}"
    missing = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)}
    missing |= set() if library("libibverbs.so.1") else {"libibverbs1"}
    missing |= set() if rxe_provider() else {"ibverbs-providers"}
    if missing:
        packages = " ".join(sorted(missing))
        raise CannotRunError(f"missing {packages}; apt-get install --no-install-recommends {packages}")
    if not (cache / "kernel" / "boot").exists() and not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotHereError("the guests' kernel is Debian's, and there is no apt-get or dpkg-deb to get it with")


def kernel(cache: Path) -> tuple[Path, str]:
    """The folder of the unpacked kernel and its version; downloaded when it is not in the cache."""
    folder = cache / "kernel"
    if not folder.exists():
        shown = subprocess.run(["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False).stdout
        names = re.findall(r"Depends: (linux-image-[0-9]\S+)", shown)
        if not names:
            raise NotHereError(f"apt-get here offers no {PACKAGE}, Debian's kernel with rdma_rxe")
        print(f"test-rdma: downloading {names[0]} (70 MB, kept in {cache})", flush=True)
        downloads = cache / "download"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        got = subprocess.run(
            ["apt-get", "download", names[0]], cwd=downloads, capture_output=True, text=True, check=False
        )
        packages = list(downloads.glob("*.deb"))
        if got.returncode or not packages:
            raise CannotRunError(
                f"cannot download {names[0]}: {got.stderr.strip().splitlines()[-1:]}; try apt-get update"
            )
        fresh = cache / "kernel.part"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", packages[0]], stdout=subprocess.PIPE) as tar:
            subprocess.run(["tar", "-x", "-C", fresh, "--wildcards", *KEPT], stdin=tar.stdout, check=True)
        (version,) = (path.name for path in (fresh / "lib/modules").iterdir())
        subprocess.run([program("depmod"), "-b", fresh, version], check=True)
        fresh.rename(folder)
        shutil.rmtree(downloads)
    (version,) = (path.name for path in (folder / "lib/modules").iterdir())
    return folder, version


def needed_libraries(binary: Path) -> set[Path]:
    """The shared libraries that a program needs, the loader among them."""
    shown = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> )?(/\S+) \(0x", shown)}


def put(root: Path, source: Path, target: str | None = None) -> None:
    """A copy of a file at the same place (or at `target`) below `root`."""
    place = root / (target or str(source)).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        shutil.copy(source, place)


INIT = """#!/bin/busybox sh
export PATH=/bin:/sbin
/bin/busybox mkdir -p /proc /sys /dev /tmp /share
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
for module in MODULES; do /bin/busybox modprobe $module || echo "no module $module"; done
box=$(/bin/busybox sed 's/.*box=\\([0-9]*\\).*/\\1/' /proc/cmdline)
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share
/sbin/ip link set lo up
/sbin/ip link set eth0 mtu 4200
/sbin/ip addr add 10.9.0.$((box + 1))/24 dev eth0
/sbin/ip link set eth0 up
/bin/rdma link add rxe0 type rxe netdev eth0 || echo "no rxe"
/bin/busybox sleep 1
/bin/busybox sh /share/run.sh $box
/bin/busybox sync
/bin/busybox poweroff -f
"""


def archive(cache: Path, programs: list[Path]) -> Path:
    """The root file system, as the kernel wants it: a compressed cpio archive."""
    folder, version = kernel(cache)
    root = cache / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "lib64", "etc/libibverbs.d"):
        (root / name).mkdir(parents=True)
    put(root, program("busybox"), "/bin/busybox")
    for applet in ("sh", "modprobe", "insmod", "timeout", "sleep", "cat", "grep"):
        (root / "bin" / applet).symlink_to("busybox")
    tools = {"ip": "/sbin/ip", "tc": "/sbin/tc", "rdma": "/bin/rdma"}
    copied = [(program(name), target) for name, target in tools.items()]
    copied += [(path, f"/bin/{path.name}") for path in programs]
    loaded = [library("libibverbs.so.1"), rxe_provider()]
    for path, target in copied:
        put(root, path, target)
    for path in {each for source in [*[path for path, _ in copied], *loaded] for each in needed_libraries(source)}:
        put(root, path)
    for path in loaded:
        put(root, path)
    (root / "etc/libibverbs.d/rxe.driver").write_text("driver rxe\n")
    modprobe = [program("modprobe"), "-d", folder, "-S", version, "--show-depends"]
    for module in MODULES:
        shown = subprocess.run([*modprobe, module], capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"^insmod (\S+)", shown, flags=re.MULTILINE):
            put(root, Path(path), "/" + str(Path(path).relative_to(folder)))
    for path in (folder / "lib/modules" / version).glob("modules.*"):
        put(root, path, "/" + str(path.relative_to(folder)))
    subprocess.run([program("depmod"), "-b", root, version], check=True)
    init = root / "init"
    init.write_text(INIT.replace("MODULES", " ".join(MODULES)))
    init.chmod(0o755)
    names = subprocess.run(["find", ".", "-print0"], cwd=root, capture_output=True, check=True).stdout
    packed = subprocess.run(
        [program("cpio"), "--null", "-o", "-H", "newc", "--quiet"],
        cwd=root,
        input=names,
        capture_output=True,
        check=True,
    )
    out = cache / "initrd.gz"
    out.write_bytes(gzip.compress(packed.stdout, compresslevel=1))
    return out


def boot(cache: Path, share: Path, programs: list[Path], seconds: float) -> dict[int, str]:
    """Boots both guests, each runs `share/run.sh BOX`; returns their consoles' text. Raises TimeoutError."""
    folder, version = kernel(cache)
    initrd = archive(cache, programs)
    wire = cache / "wire"
    wire.unlink(missing_ok=True)
    machine = ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "384", "-nodefaults"]
    machine += ["-nographic", "-serial", "stdio", "-no-reboot", "-kernel", folder / "boot" / f"vmlinuz-{version}"]
    machine += ["-initrd", initrd, "-virtfs", f"local,path={share},mount_tag=share,security_model=none"]
    guests, consoles = {}, {}
    try:
        for box in (0, 1):
            net = f"stream,id=wire,server={'on' if box == 0 else 'off'},addr.type=unix,addr.path={wire}"
            card = f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{box + 1},host_mtu=4200"
            line = f"console=ttyS0 panic=-1 quiet box={box}"
            words = [program("qemu-system-x86_64"), *machine, "-append", line, "-netdev", net, "-device", card]
            console = (cache / f"console.{box}.txt").open("w+")
            consoles[box] = console
            guests[box] = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )
            for _ in range(100):
                if box == 1 or wire.exists():
                    break
                subprocess.run(["sleep", "0.1"], check=True)
        for guest in guests.values():
            guest.wait(seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the guests were not done within {seconds:.0f} s") from None
    finally:
        for guest in guests.values():
            guest.kill()
            guest.wait()
        for console in consoles.values():
            console.close()
    return {box: (cache / f"console.{box}.txt").read_text(errors="replace") for box in guests}
