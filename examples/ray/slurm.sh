#!/bin/bash
#SBATCH --job-name=patchline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
# Starts Ray on the nodes of this job, trains on all of them, and ends Ray with the job.
# Submit it in the working directory, on a file system that all nodes mount:
#
#     sbatch slurm.sh flowers --training.processes 8
#
# Without one, put --workspace s3://… in place of --launcher.shared-folder below, and submit with
# the credentials of the store in the environment, which srun passes on.
set -euo pipefail

export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_address="$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')"
port=$((20000 + SLURM_JOB_ID % 20000))
cpus="$SLURM_CPUS_ON_NODE"

# Ray opens its own folder to all users of a node, so the one above is closed to them.
private="/tmp/ray-$SLURM_JOB_ID"
srun --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" --overlap mkdir -m 700 "$private"

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap \
  ray start --block --head --node-ip-address="$head_address" --port="$port" \
  --num-cpus="$cpus" --temp-dir="$private/ray" --include-dashboard=false --disable-usage-stats &
sleep 15
if ((${#nodes[@]} > 1)); then
  others="$(IFS=,; echo "${nodes[*]:1}")"
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --nodelist="$others" --overlap \
    ray start --block --address="$head_address:$port" --num-cpus="$cpus" --temp-dir="$private/ray" --disable-usage-stats &
fi
sleep 15

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap \
  patchline run "$@" --launcher.name ray --launcher.address "$head_address:$port" \
  --launcher.nodes "${#nodes[@]}" --launcher.shared-folder
