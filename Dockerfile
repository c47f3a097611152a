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
# The CUDA variant has a base with the CUDA toolkit to build on and one with its runtime to run on:
#   --build-arg BASE=nvidia/cuda:12.6.3-devel-... --build-arg RUN_BASE=nvidia/cuda:12.6.3-runtime-... \
#   --build-arg MESON_ARGS=-Dcuda=enabled
ARG BASE=debian:bookworm-slim
ARG RUN_BASE=${BASE}

FROM ${BASE} AS build
ARG MESON_ARGS=""
ARG JOBS=""
WORKDIR /src
# packages first: they change less often than the sources
COPY scripts/deps scripts/deps
RUN scripts/deps build && rm -rf /var/lib/apt/lists/*
COPY . .
RUN meson setup build --prefix=/usr --sysconfdir=/etc --localstatedir=/var --strip -Dtests=false ${MESON_ARGS} \
 && ninja -C build ${JOBS:+-j ${JOBS}} \
 && DESTDIR=/out meson install -C build --no-rebuild --quiet \
 && mkdir -p /out/var/lib/tandem \
 && rm -rf /out/usr/lib/systemd /out/usr/lib/sysusers.d /out/usr/lib/tmpfiles.d /out/usr/share/doc /out/usr/share/man \
 && scripts/runtime-packages /out/usr/bin/tandem > /runtime-packages

FROM ${RUN_BASE}
# the libraries it is linked with, as found by the build, and nothing else
COPY --from=build /runtime-packages /tmp/runtime-packages
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive xargs -a /tmp/runtime-packages apt-get install -y -q --no-install-recommends \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /tmp/runtime-packages
COPY --from=build /out/ /
RUN chown 10001:10001 /var/lib/tandem
# a number, so that Kubernetes can see that it is not root
USER 10001:10001
WORKDIR /usr/share/tandem
# every option is a variable: TANDEM_MODEL, TANDEM_QUANTIZE...
ENV TANDEM_HOST=0.0.0.0 TANDEM_PORT=8080 TANDEM_DATA_DIR=/var/lib/tandem
VOLUME /var/lib/tandem
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s CMD ["tandem", "health"]
ENTRYPOINT ["tandem"]
CMD ["serve"]
