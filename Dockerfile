# docker build -t suwi .
# docker run --rm -p 127.0.0.1:9092:9092 -v suwi:/var/lib/suwi suwi --insecure
#
# A container must listen beyond its own loopback to be reached at all. Suwi does that in plain
# text only when told to, hence `--insecure`; the port above is published on this machine only.

FROM python:3.13-slim AS build
WORKDIR /source
COPY requirements.lock ./
RUN grep -E '^(build|hatchling|packaging|pathspec|pluggy|pyproject_hooks|trove-classifiers)==' \
        requirements.lock >build.lock \
    && pip install --no-cache-dir --requirement build.lock --constraint requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m build --wheel --no-isolation --outdir /wheels

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.lock,target=/requirements.lock \
    pip install --no-cache-dir --constraint /requirements.lock "$(ls /wheels/*.whl)[oauth]"
RUN useradd --system --uid 9092 --no-create-home suwi \
    && install -d -o suwi -g suwi /var/lib/suwi
USER suwi
WORKDIR /var/lib/suwi
VOLUME /var/lib/suwi
ENV SUWI_LOG_DIRS=/var/lib/suwi \
    SUWI_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    SUWI_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092
EXPOSE 9092
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9092), 2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["suwi", "serve"]
