#!/usr/bin/env bash
# From a profile to a verified plan on this machine: measures a profile if there is none, searches, trains the best plans for
# a few steps, compares each with its prediction, calibrates and, if factors explain the steps, searches again.
#
#   scripts/check_plans.sh --config configs/7B_internlm2.py --nproc 8 --global_batch_size 4194304 --profile prof_data/mine.pt --out checked
#
# It searches only plans that run_workload.py train can run (mode mtp). Files in the folder of --out: answer.json and, for each
# plan, step_K.json; steps.csv; calibration.toml; calibrated.json.
set -euo pipefail

usage="usage: $0 --config FILE --global_batch_size TOKENS --profile FILE --out FOLDER [--nproc N] [--top N] [--device cpu|cuda] [--minutes M]"
fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

config="" batch="" profile="" out="" nproc=8 top=3 device=cuda minutes=""
while (($#)); do
    case "$1" in
        --config) config="${2-}" && shift 2 || fail "$usage" ;;
        --global_batch_size) batch="${2-}" && shift 2 || fail "$usage" ;;
        --profile) profile="${2-}" && shift 2 || fail "$usage" ;;
        --out) out="${2-}" && shift 2 || fail "$usage" ;;
        --nproc) nproc="${2-}" && shift 2 || fail "$usage" ;;
        --top) top="${2-}" && shift 2 || fail "$usage" ;;
        --device) device="${2-}" && shift 2 || fail "$usage" ;;
        --minutes) minutes="${2-}" && shift 2 || fail "$usage" ;;
        *) fail "$usage" ;;
    esac
done
[[ -n $config && -n $batch && -n $profile && -n $out ]] || fail "$usage"
[[ -f $config ]] || fail "--config: $config is not a file"
[[ $batch =~ ^[1-9][0-9]*$ ]] || fail "--global_batch_size: tokens of a step, not $batch"
[[ $nproc =~ ^[1-9][0-9]{0,3}$ ]] || fail "--nproc: a number of processes, not $nproc"
[[ $top =~ ^[2-9]$ ]] || fail "--top: 2 to 9 plans (factors need two measured steps), not $top"
[[ $device == cpu || $device == cuda ]] || fail "--device: cpu or cuda, not $device"
[[ -z $minutes || $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--minutes: minutes of measuring, not $minutes"

absolute() { case "$1" in /*) printf %s "$1" ;; *) printf %s "$PWD/$1" ;; esac }
config="$(absolute "$config")" profile="$(absolute "$profile")" out="$(absolute "$out")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$out"

if [[ ! -f $profile ]]; then
    torchrun --nproc-per-node="$nproc" gen_profiler_data.py --device "$device" --output "$profile" \
        ${minutes:+--budget_minutes "$minutes"}
fi

times=(--config "$config" --pre_profiling_data_path "$profile" --missing modelled)
question=("${times[@]}" --world_size "$nproc" --global_batch_size "$batch" --run_all_solu --modes mtp --top_k "$top")
python simulation_train_formulaic.py "${question[@]}" --json "$out/answer.json"

# One plan per line, in the form of --plan.
print_plans='
import json, sys
words = ("strategy", "tp", "pp", "cp", "ep", "vpp", "zero_stage", "zero_size", "micro_batch", "recompute")
for plan in (one["plan"] for one in json.load(open(sys.argv[1], encoding="utf-8"))["best"]):
    print(",".join(f"{word}={plan[word]}" for word in words))
'
rm -f "$out/steps.csv"
number=0
python -c "$print_plans" "$out/answer.json" >"$out/plans.txt"
while IFS= read -r plan <&3; do
    number=$((number + 1))
    printf '\nplan %s: %s\n' "$number" "$plan"
    torchrun --nproc-per-node="$nproc" run_workload.py train --config "$config" --plan "$plan" --device "$device" \
        --global_batch_size "$batch" --json "$out/step_$number.json"
    python run_workload.py compare "$out/step_$number.json" "${times[@]}" --append "$out/steps.csv"
done 3<"$out/plans.txt"

# Steps that no factors explain, as on a busy machine, are an answer too: calibrate says why.
if ! python -m solver.calibrate --steps "$out/steps.csv" --pre_profiling_data_path "$profile" --missing modelled \
    --out "$out/calibration.toml"; then
    printf '\nno calibration: the comparisons above stand\n'
    exit 0
fi
python simulation_train_formulaic.py "${question[@]}" --calibration "$out/calibration.toml" --json "$out/calibrated.json"
