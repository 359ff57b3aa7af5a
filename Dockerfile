# Two images from one file: `--target operator` (no torch) and `--target trainer` (no Kubernetes client).
# BASE_IMAGE is any image with python3 (3.11 or newer) and its venv module. What is installed is pinned with hashes by
# .ci/lock; TORCH_INDEX takes the same version of torch from another index, such as
# https://download.pytorch.org/whl/cpu, whose files the lock does not know. The secrets `pip` (a pip.conf) and `ca` (a
# bundle of certificates) are for builds behind a mirror; neither ends up in an image. `make images` runs this.
ARG BASE_IMAGE=python:3.12-slim

# pip of the build, which no image has.
FROM ${BASE_IMAGE} AS pip
WORKDIR /build
RUN python3 -m venv pip/venv
COPY .ci/image-install pip/install

FROM pip AS build
COPY .ci/lock/build.txt ./
RUN --mount=type=secret,id=pip,target=/run/secrets/pip --mount=type=secret,id=ca,target=/run/secrets/ca \
    pip/install --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY crds/diloco_api crds/diloco_api
COPY operator operator
COPY trainer_image trainer_image
RUN pip/install --no-index --no-deps --no-build-isolation --target site .

# What both images have: an empty environment whose interpreter is called `python`, a user without a name to rely on.
FROM ${BASE_IMAGE} AS base
RUN python3 -m venv --without-pip /opt/venv \
    && echo /opt/diloco >"$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/diloco.pth"
# HOME and USER: libraries ask for both, and platforms may run the image as a user that is in no passwd.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp USER=diloco PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 65532:65532

FROM base AS operator
USER 0:0
COPY .ci/lock/operator.txt /opt/operator.txt
RUN --mount=type=bind,from=pip,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/run/secrets/pip --mount=type=secret,id=ca,target=/run/secrets/ca \
    IMAGE_PYTHON=/opt/venv/bin/python /build/pip/install --require-hashes -r /opt/operator.txt
COPY --from=build /build/site /opt/diloco
USER 65532:65532
ENTRYPOINT ["python", "-m", "diloco_operator"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="DiLoCo operator" \
      org.opencontainers.image.description="Operator of fault-tolerant low-communication training over several clusters" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM base AS trainer
ARG TORCH_INDEX=
USER 0:0
# torch in a layer of its own: it is most of the image, and the others change more often. What it needs besides CUDA's
# libraries is in trainer.txt.
COPY .ci/lock/torch.txt /opt/torch.txt
RUN --mount=type=bind,from=pip,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/run/secrets/pip --mount=type=secret,id=ca,target=/run/secrets/ca \
    export IMAGE_PYTHON=/opt/venv/bin/python; \
    if [ -z "$TORCH_INDEX" ]; then /build/pip/install --no-deps --require-hashes -r /opt/torch.txt; \
    else /build/pip/install --index-url "$TORCH_INDEX" "$(grep -o '^torch==[^ ;]*' /opt/torch.txt)"; fi
COPY .ci/lock/trainer.txt /opt/trainer.txt
RUN --mount=type=bind,from=pip,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/run/secrets/pip --mount=type=secret,id=ca,target=/run/secrets/ca \
    IMAGE_PYTHON=/opt/venv/bin/python /build/pip/install --require-hashes -r /opt/trainer.txt
COPY --from=build /build/site /opt/diloco
USER 65532:65532
CMD ["python", "-m", "diloco_trainer.learner"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="DiLoCo trainer" \
      org.opencontainers.image.description="Learner and Synchronizer of fault-tolerant low-communication training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
