# syntax=docker/dockerfile:1
# A small image of one broker, in place of apache/kafka, confluentinc/cp-kafka or bitnami/kafka (docs/containers.md):
#   docker build -t kbroker . && docker run -p 9092:9092 -v kbroker:/var/lib/kbroker kbroker
# Both linux/amd64 and linux/arm64: docker buildx build --platform linux/amd64,linux/arm64 .
# Settings: KAFKA_* variables, or a server.properties of your own at /etc/kbroker. Options go to `kbroker start`; other
# arguments are a command. A folder of the host in place of a volume has to belong to user 1000.
# The official image's Python is optimised (profile and link time), a tenth faster than one that is not.

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY protocol protocol
COPY kbroker kbroker
# The same path in both stages: a virtual environment cannot be moved. Without pip, for nothing is installed later.
RUN python -m venv --without-pip /opt/kbroker \
 && pip --python /opt/kbroker/bin/python install --no-cache-dir --disable-pip-version-check -c constraints.txt \
      '.[cli,security,zookeeper-login]' \
 && /opt/kbroker/bin/python -I -c "from kbroker.protocol.records import walker_kind as k; assert k() == 'compiled', k()" \
 && find /opt/kbroker -name tests -type d -prune -exec rm -r {} + \
 && find /opt/kbroker -name '*.so*' -exec strip --strip-unneeded {} + \
 && /opt/kbroker/bin/python -I -m compileall -q /opt/kbroker/lib

FROM python:3.12-slim
COPY docker/install /tmp/install
COPY docker/etc /tmp/etc
COPY docker/bin /tmp/bin
RUN bash /tmp/install && rm -r /tmp/install /tmp/etc /tmp/bin
COPY --from=build /opt/kbroker /opt/kbroker
ENV PATH=/opt/kbroker/bin:/opt/kafka/bin:$PATH PYTHONUNBUFFERED=1
USER kbroker
WORKDIR /var/lib/kbroker
VOLUME /var/lib/kbroker
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/usr/local/bin/kbroker-health"]
ENTRYPOINT ["/usr/local/bin/kbroker-entrypoint"]
CMD []
