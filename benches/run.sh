#!/bin/sh
# What `make bench` measures, one step after the other, and the page that comes of it.
#
#     benches/run.sh                    every step, about ten minutes
#     benches/run.sh switch net-8-500   these steps only
#     STEPS=1 benches/run.sh            names the steps
#
# FANIN names the program (default: the one in .venv, else in target/release). Each step writes benches/results/STEP.json and
# .svg; the end writes benches/RESULTS.md and the numbers in README.md from all files there. Shaped links need root, gloo needs
# PyTorch, Open MPI mpicc and mpirun; what is missing is said and left out. A step that fails or takes too long does not stop
# the others, and makes the exit status 1.
set -u
cd "$(dirname "$0")/.."

fanin=${FANIN:-}
[ -n "$fanin" ] || for file in .venv/bin/fanin target/release/fanin; do
    [ -x "$file" ] && fanin=$file && break
done
[ -n "$fanin" ] || { echo "bench: no fanin; run make setup, or cargo build --release -p fanin-cli, first"; exit 1; }

results=benches/results
wanted=" $* "
failed=""
mkdir -p $results

# step NAME ARGUMENT...: one run of `fanin bench`.
step() {
    name=$1
    shift
    if [ -n "${STEPS:-}" ]; then
        echo "$name: fanin bench $*"
        return
    fi
    case $wanted in "  " | *" $name "*) ;; *) return ;; esac
    echo
    echo "== $name: fanin bench $*"
    # Twice what the slowest step takes on two busy cores; the first signal lets it remove its namespaces.
    timeout -k 20 240 "$fanin" bench "$@" --json "$results/$name.json" --plot "$results/$name.svg" || failed="$failed $name"
}

# shaped NAME ARGUMENT...: the same, on links that only root can build.
shaped() {
    if [ -z "${STEPS:-}" ] && [ "$(id -u)" != 0 ]; then
        case $wanted in "  " | *" $1 "*) echo "== $1 is LEFT OUT: shaped links need root: sudo make bench" ;; esac
        return
    fi
    step "$@"
}

step switch switch
step convert convert --rounds 5
if command -v clang >/dev/null || [ -n "${STEPS:-}" ]; then shaped xdp xdp; else echo "== xdp is LEFT OUT: it needs clang"; fi
step small small --transport shm,udp
step one-host-2 allreduce --ranks 2 --sizes 1MiB,64MiB --transport shm,udp
step one-host-4 allreduce --ranks 4 --sizes 1MiB,64MiB --transport registered,shm,udp
step one-host-8 allreduce --ranks 8 --sizes 1MiB,64MiB --transport registered,shm,udp
step dtypes allreduce --ranks 4 --sizes 16MiB --dtypes float32,float16,bfloat16,int32,int64 --transport shm,udp
step scale scale --transport shm,udp
shaped net-4-500 net --ranks 4 --rate 500mbit
shaped net-8-500 net --ranks 8 --rate 500mbit --element-format int32,float16,int8
shaped net-4-1000 net --ranks 4 --rate 1gbit
shaped net-8-1000 net --ranks 8 --rate 1gbit
shaped net-8-1000-jumbo net --ranks 8 --rate 1gbit --mtu 9000 --sizes 64MiB
shaped loss loss --net 500mbit
shaped goodput goodput
shaped pool pool
shaped ddp ddp --net 1gbit

[ -z "${STEPS:-}" ] || exit 0
echo
"$fanin" bench results $results --out benches/RESULTS.md --summary README.md || failed="$failed results"
echo "bench: wrote benches/RESULTS.md and the numbers in README.md"
[ -z "$failed" ] || { echo "bench: FAILED:$failed"; exit 1; }
