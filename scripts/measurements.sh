#!/usr/bin/env bash
# Measures the tables of docs/measurements on this machine: each benchmark writes a JSON file, of which the pages are made.
#
#   scripts/measurements.sh VENV [--quick] [PART …]
#
# Parts: compare ladder cold soak accuracy. All take some 20 minutes on two quiet cores; engines to compare with are installed at
# their first use. --quick tries every part once with tiny settings and writes to build/measurements/quick only.
set -euo pipefail
python=$(realpath -s "$1")/bin/python
shift
cd "$(dirname "$0")/.."
models=build/measurements out=docs/measurements
compare=(--threads 1 --rounds 3 --seconds 0.6)
ladder=(mobilenet_v2 resnet50_v15) points=(--storage disk --strategies best,flexnn --budgets 8 --seconds 4)
cold=(--networks mobilenet_v2 resnet50_v15 resnet18 --threads 1 --rounds 3)
soak=(--minutes 2)
accuracy=(squeezenet1_1 mobilenet_v2 resnet50_v15)
if [ "${1:-}" = --quick ]; then
    shift
    models=build/measurements/quick out=build/measurements/quick
    compare=(squeezenet --engines flexcomp onnxruntime --threads 1 --rounds 1 --seconds 0.1)
    ladder=(squeezenet1_1) points=(--storage disk --strategies best --budgets 2 --seconds 0.2)
    cold=(--networks squeezenet1_1 --only flexcomp onnxruntime --threads 1 --rounds 1)
    soak=(--minutes 0.1)
    accuracy=(squeezenet1_1)
fi
parts=("$@")
[ $# -gt 0 ] || parts=(compare ladder cold soak accuracy)
mkdir -p "$models" "$out"
status=0
measure() { "$python" -m "$@" || { echo "benchmarks: $1 failed" >&2; status=1; }; }
for part in "${parts[@]}"; do
    case $part in
    compare) measure benchmarks.compare "${compare[@]}" --dir "$models" --json "$out/compare.json" ;;
    ladder)
        for network in "${ladder[@]}"; do
            measure benchmarks.ladder "$network" all "$models/ladder" "${points[@]}" --json "$out/ladder_$network.json"
        done
        ;;
    cold) measure benchmarks.cold "$models/cold" "${cold[@]}" --json "$out/cold.json" ;;
    soak) measure benchmarks.soak "${soak[@]}" --json "$out/soak.json" ;;
    accuracy) measure benchmarks.accuracy "${accuracy[@]}" --json "$out/accuracy.json" ;;
    *)
        echo "no part $part; there are compare ladder cold soak accuracy" >&2
        exit 2
        ;;
    esac
done
"$python" -m benchmarks.results "$out"
exit $status
