# The daemon on a slim Debian, as a user without rights; docs/operations.md, "Container".
#
#   docker build -t tandem .          # or podman, or buildah bud
#   docker build -t tandem-mpi --target mpi --build-arg MPI=1 .         # with Open MPI and sshd, for several ranks
#   docker run --rm -p 127.0.0.1:8080:8080 -v /path/to/model:/model:ro \
#     -e TANDEM_MODEL=/model -e TANDEM_ALLOW_OPEN=true tandem           # for this machine; keys: docs/operations.md
#
# Options go in as variables, not as flags after the image's name: those the health check would not see.
#
# BASE       what it is built and run on: Debian 12 or 13
# MESON_ARGS further options of the build
# JOBS       compilers at once; default: one per core, and two
# MPI        1: with the module for several ranks, which the target mpi needs (docs/ranks.md, docs/divided-models.md)
# CUDA       1: with the device cuda.  The compiler comes from NVIDIA's wheels on PyPI; the image gets cuBLASLt of the same
#            origin (half a gigabyte), and is run with `docker run --gpus all` on a machine with NVIDIA's container toolkit
ARG BASE=debian:bookworm-slim
ARG RUN_BASE=${BASE}

FROM ${BASE} AS build
ARG MESON_ARGS=""
ARG JOBS=""
ARG MPI=""
ARG CUDA=""
WORKDIR /src
# packages first: they change less often than the sources
COPY scripts/deps scripts/deps
RUN scripts/deps build \
 && if [ -n "${MPI}" ]; then apt-get install -y -q --no-install-recommends libopenmpi-dev; fi \
 && if [ -n "${CUDA}" ]; then \
      apt-get install -y -q --no-install-recommends g++ python3-venv ca-certificates \
      && scripts/deps cuda && build-cuda/bin/pip install -q --no-deps --target /cublas nvidia-cublas==13.1.0.3; \
    fi \
 && rm -rf /var/lib/apt/lists/*
COPY . .
RUN meson setup build --prefix=/usr --sysconfdir=/etc --localstatedir=/var --strip -Dtests=false ${MPI:+-Dmpi=enabled} ${CUDA:+-Dcuda=enabled} ${MESON_ARGS} \
 && ninja -C build ${JOBS:+-j ${JOBS}} \
 && DESTDIR=/out meson install -C build --no-rebuild --quiet \
 && mkdir -p /out/var/lib/tandem \
 && rm -rf /out/usr/lib/systemd /out/usr/lib/sysusers.d /out/usr/lib/tmpfiles.d /out/usr/share/doc /out/usr/share/man \
 && for file in /out/usr/bin/tandem /out/usr/lib/*/tandem/libtandem_zmq.so; do \
      [ ! -e "${file}" ] || scripts/runtime-packages "${file}" || exit 1; \
    done > /runtime-packages \
 && if [ -n "${CUDA}" ]; then install -D -m 644 -t "/out/usr/lib/$(uname -m)-linux-gnu" /cublas/nvidia/cu13/lib/libcublasLt.so.13; fi

FROM ${RUN_BASE} AS run
# the libraries it is linked with, as found by the build, and the certificates of the hub that models come from
COPY --from=build /runtime-packages /tmp/runtime-packages
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive xargs -a /tmp/runtime-packages apt-get install -y -q --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /tmp/runtime-packages
COPY --from=build /out/ /
RUN chown 10001:10001 /var/lib/tandem
# a number, so that Kubernetes can see that it is not root
USER 10001:10001
WORKDIR /usr/share/tandem
# every option is a variable: TANDEM_MODEL, TANDEM_QUANTIZE...
# what NVIDIA's container toolkit is to bring in: the driver's library, and nvidia-smi's
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV TANDEM_HOST=0.0.0.0 TANDEM_PORT=8080 TANDEM_DATA_DIR=/var/lib/tandem
# models by name are downloaded into the volume
ENV HF_HOME=/var/lib/tandem/huggingface
VOLUME /var/lib/tandem
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s CMD ["tandem", "health"]
ENTRYPOINT ["tandem"]
CMD ["serve"]

# Ranks in several containers, which mpirun starts over ssh: conf/kubernetes/train.yaml, conf/kubernetes/tensor-parallel.yaml.
# Keys come from a secret at /home/tandem/.ssh; those that the package makes are not for everybody.
FROM run AS mpi
USER 0:0
RUN ls /usr/lib/*/tandem/libtandem_mpi.so || { echo "the target mpi needs --build-arg MPI=1" >&2; exit 1; }
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openmpi-bin openssh-client openssh-server \
 && rm -rf /etc/ssh/ssh_host_* /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
 && groupadd --gid 10001 tandem \
 && useradd --uid 10001 --gid 10001 --create-home --shell /bin/sh tandem
COPY conf/mpi/sshd_config /etc/tandem/sshd_config
COPY conf/mpi/ssh_config /etc/ssh/ssh_config.d/tandem.conf
COPY conf/mpi/tandem-group /usr/bin/tandem-group
USER 10001:10001

# What is built without a target.
FROM run
