# The daemon on a slim Debian, as a user without rights; docs/operations.md, "Container".
#
#   docker build -t tandem .          # or podman, or buildah bud
#   docker run --rm -p 127.0.0.1:8080:8080 -v /path/to/model:/model:ro \
#     -e TANDEM_MODEL=/model -e TANDEM_ALLOW_OPEN=true tandem           # for this machine; keys: docs/operations.md
#
# Options go in as variables, not as flags after the image's name: those the health check would not see.
#
# BASE       what it is built and run on: Debian 12 or 13
# MESON_ARGS further options of the build
# JOBS       compilers at once; default: one per core, and two
# CUDA       1: with the device cuda.  The compiler comes from NVIDIA's wheels on PyPI; the image gets cuBLASLt of the same
#            origin (half a gigabyte), and is run with `docker run --gpus all` on a machine with NVIDIA's container toolkit
ARG BASE=debian:bookworm-slim
ARG RUN_BASE=${BASE}

FROM ${BASE} AS build
ARG MESON_ARGS=""
ARG JOBS=""
ARG CUDA=""
WORKDIR /src
# packages first: they change less often than the sources
COPY scripts/deps scripts/deps
RUN scripts/deps build \
 && if [ -n "${CUDA}" ]; then \
      apt-get install -y -q --no-install-recommends g++ python3-venv ca-certificates \
      && scripts/deps cuda && build-cuda/bin/pip install -q --no-deps --target /cublas nvidia-cublas==13.1.0.3; \
    fi \
 && rm -rf /var/lib/apt/lists/*
COPY . .
RUN meson setup build --prefix=/usr --sysconfdir=/etc --localstatedir=/var --strip -Dtests=false ${CUDA:+-Dcuda=enabled} ${MESON_ARGS} \
 && ninja -C build ${JOBS:+-j ${JOBS}} \
 && DESTDIR=/out meson install -C build --no-rebuild --quiet \
 && mkdir -p /out/var/lib/tandem \
 && rm -rf /out/usr/lib/systemd /out/usr/lib/sysusers.d /out/usr/lib/tmpfiles.d /out/usr/share/doc /out/usr/share/man \
 && scripts/runtime-packages /out/usr/bin/tandem > /runtime-packages \
 && if [ -n "${CUDA}" ]; then install -D -m 644 -t "/out/usr/lib/$(uname -m)-linux-gnu" /cublas/nvidia/cu13/lib/libcublasLt.so.13; fi

FROM ${RUN_BASE}
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
