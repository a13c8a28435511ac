# The search, the exporters and the page on a machine without a GPU:
#   docker build -t parallel-strategy-solver .
#   docker run --rm parallel-strategy-solver
#   docker run --rm -v "$PWD:/data" parallel-strategy-solver search --config 70B_llama3 --cluster h100-sxm \
#       --world_size 64 --global_batch_size 4194304 --report /data/report
FROM python:3.11-slim

# The CPU build of torch; its version satisfies the pin and sorts above it (requirements.txt).
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MPLBACKEND=Agg

WORKDIR /opt/solver
COPY requirements.txt .
RUN pip install -r requirements.txt
COPY . .
RUN pip install --no-deps .

RUN useradd --create-home planner && mkdir /data && chown planner /data
USER planner
WORKDIR /data
ENTRYPOINT ["pss"]
# The main job on the shipped profile.
CMD ["search", "--config", "7B_internlm2", "--model_size", "7", "--world_size", "128", "--global_batch_size", "4194304"]
