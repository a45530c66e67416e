# One image for the API, the worker and the migrations: docker-compose.yml says which one to run.
FROM python:3.13-slim AS build
RUN python -m venv /venv
COPY requirements/service.lock /
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r /service.lock
COPY . /app
# A checkout has the permissions of whoever made it, and the image runs as another user.
RUN chmod -R u=rwX,go=rX /app

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /venv /venv
COPY --from=build /app /app
WORKDIR /app
# This user owns nothing, so whatever serves requests cannot change its own code.
USER 10001:10001
