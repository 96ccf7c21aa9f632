# syntax=docker/dockerfile:1
# The service as an image: `docker build -t tenure .`
# Behind a package mirror: --build-arg PIP_INDEX_URL=...   Another Python: --build-arg PYTHON_VERSION=3.12

ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
# What changes seldom comes first. The build tools stay in this stage.
COPY requirements.lock requirements-runtime.lock ./
RUN python -m venv /opt/tenure && /opt/tenure/bin/pip install --require-hashes -r requirements-runtime.lock
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY alembic ./alembic
COPY app ./app
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
 && /opt/tenure/bin/pip install --no-deps /dist/*.whl \
 && /opt/tenure/bin/pip uninstall --yes pip

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="Tenure" \
      org.opencontainers.image.description="Jobs, outbox, schedules, locks, idempotency, cache and gates over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 tenure \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin tenure \
 && install --directory --owner=10001 --group=10001 --mode=0750 /data
COPY --from=build /opt/tenure /opt/tenure
ENV PATH=/opt/tenure/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TENURE_HOST=0.0.0.0 \
    TENURE_PORT=8080 \
    TENURE_DATABASE_URL=sqlite:////data/tenure.db
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --start-interval=1s --retries=3 CMD ["tenure", "healthcheck"]
ENTRYPOINT ["tenure"]
CMD ["serve"]
