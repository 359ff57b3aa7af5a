# Two images from one file: `--target operator` (no torch) and `--target trainer` (no Kubernetes client).
# BASE_IMAGE is any image with python3 (3.11 or newer) and its venv module; TORCH_INDEX another index for torch alone,
# such as https://download.pytorch.org/whl/cpu. The secrets `pip` (a pip.conf) and `ca` (a bundle of certificates) are
# for builds behind a mirror; neither ends up in an image. `make images` runs this with docker or buildah.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /build
RUN python3 -m venv pip
COPY .ci/requirements.py pyproject.toml ./
RUN for part in operator trainer; do python3 requirements.py $part >$part.txt || exit 1; done; \
    grep '^torch' trainer.txt >torch.txt
COPY README.md LICENSE ./
COPY crds/diloco_api crds/diloco_api
COPY operator operator
COPY trainer_image trainer_image
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    pip/bin/pip install --quiet --no-cache-dir --no-deps --target site .

# What both images have: an empty environment whose interpreter is called `python`, a user without a name to rely on.
FROM ${BASE_IMAGE} AS base
RUN python3 -m venv --without-pip /opt/venv \
    && echo /opt/diloco >"$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/diloco.pth"
# HOME and USER: libraries ask for both, and platforms may run the image as a user that is in no passwd.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp USER=diloco PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 65532:65532

FROM base AS operator
LABEL org.opencontainers.image.title="DiLoCo operator" org.opencontainers.image.licenses="Apache-2.0"
USER 0:0
COPY --from=build /build/operator.txt /opt/requirements.txt
RUN --mount=type=bind,from=build,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /build/pip/bin/pip --python /opt/venv/bin/python install --quiet --no-cache-dir -r /opt/requirements.txt
COPY --from=build /build/site /opt/diloco
USER 65532:65532
ENTRYPOINT ["python", "-m", "diloco_operator"]

FROM base AS trainer
LABEL org.opencontainers.image.title="DiLoCo trainer" org.opencontainers.image.licenses="Apache-2.0"
ARG TORCH_INDEX=
USER 0:0
# torch in a layer of its own: it is most of the image, and other requirements change more often.
COPY --from=build /build/torch.txt /opt/torch.txt
RUN --mount=type=bind,from=build,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /build/pip/bin/pip --python /opt/venv/bin/python install --quiet --no-cache-dir \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /opt/torch.txt
COPY --from=build /build/trainer.txt /opt/requirements.txt
RUN --mount=type=bind,from=build,source=/build/pip,target=/build/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /build/pip/bin/pip --python /opt/venv/bin/python install --quiet --no-cache-dir -r /opt/requirements.txt
COPY --from=build /build/site /opt/diloco
USER 65532:65532
CMD ["python", "-m", "diloco_trainer.learner"]
