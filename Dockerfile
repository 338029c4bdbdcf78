# A small image of one broker: docker build -t kbroker . && docker run -p 9092:9092 -v kbroker:/var/lib/kbroker kbroker
# Settings: KAFKA_* variables (docs/containers.md), or a server.properties of your own mounted over /etc/kbroker/server.properties. Arguments go to `kbroker start`.
# A folder of the host in place of the volume has to belong to user 1000. There is no HEALTHCHECK: settings choose names
# and ports of listeners, so whoever runs the container knows which one to try.
# The official image's Python is optimised (profile and link time), a tenth faster than one that is not.

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY protocol protocol
COPY kbroker kbroker
# The same path in both stages: a virtual environment cannot be moved. Without pip, for nobody installs anything later.
RUN python -m venv --without-pip /opt/kbroker \
 && pip --python /opt/kbroker/bin/python install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[zookeeper-login]' \
 && /opt/kbroker/bin/python -I -c "from kbroker.protocol.records import walker_kind as k; assert k() == 'compiled', k()" \
 && /opt/kbroker/bin/python -I -m compileall -q /opt/kbroker/lib

FROM python:3.12-slim
RUN useradd --uid 1000 --home-dir /var/lib/kbroker --create-home --shell /usr/sbin/nologin kbroker
COPY --from=build /opt/kbroker /opt/kbroker
COPY docker.properties /etc/kbroker/server.properties
ENV PATH=/opt/kbroker/bin:$PATH PYTHONUNBUFFERED=1
USER kbroker
WORKDIR /var/lib/kbroker
VOLUME /var/lib/kbroker
EXPOSE 9092
STOPSIGNAL SIGTERM
ENTRYPOINT ["kbroker", "start", "/etc/kbroker/server.properties"]
