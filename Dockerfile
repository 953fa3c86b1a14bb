# The experiment as an image. Classic builder subset (no RUN --mount, no here-documents), so that Docker Engine 20.10,
# BuildKit and podman can all build it, and no architecture is named.
#   docker build -t prefix-replay .
ARG BASE_IMAGE=debian:bookworm-20260918-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

# --- base: Debian with its packages pinned to the snapshot it was made from
FROM ${BASE_IMAGE} AS base
ARG APT_SNAPSHOT=1
COPY docker/apt-snapshot /usr/local/sbin/apt-snapshot
RUN sh /usr/local/sbin/apt-snapshot "$APT_SNAPSHOT" \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 libgomp1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/local/sbin/apt-snapshot

# --- tools: what the next two stages install with
FROM base AS tools
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/*
# A proxy's certificate, where the build was given one. The file that is always there makes the optional one allowed.
COPY docker/pip-install ca-bundle.cr[t] /ca/
COPY requirements/run.txt requirements/build.txt /requirements/

# --- venv: the locked requirements, by hash, without what only installing, testing and compiling against them needs,
# languages to highlight and pictures of a kind that no trace has; with the charts' library in place of the large package
# that puts it together
FROM tools AS venv
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv \
    && sh /ca/pip-install /opt/venv /requirements/run.txt
COPY experiment/__init__.py experiment/html_page.py /src/experiment/
RUN cd /src \
    && /opt/venv/bin/python -c 'from experiment import html_page; print(html_page.make_library(), end="")' >/opt/library.js \
    && /opt/venv/bin/pip uninstall -q -y vl-convert-python pip setuptools \
    && find /opt/venv/lib -depth -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/distutils' -o -path '*/numpy/*/include' \) -exec rm -r {} + \
    && find /opt/venv/lib -type f \( -name '*.a' -o -name '*.pyi' -o -path '*/pygments/lexers/[a-z]*' -o -name '*[_b]avif[.-]*.so*' \) -delete \
    && strip --strip-unneeded /opt/venv/lib/python3*/site-packages/PIL/*.so /opt/venv/lib/python3*/site-packages/rpds/*.so \
        /opt/venv/lib/python3*/site-packages/yaml/*.so

# --- compile: the pinned llama.cpp, patched with zero fuzz, for every CPU of the architecture
FROM tools AS compile
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ patch \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/build-venv \
    && sh /ca/pip-install /opt/build-venv /requirements/run.txt /requirements/build.txt
# Only the modules that compiling needs, so that a change of any other does not compile anew.
COPY docker/pins.toml docker/compile.py /src/docker/
COPY patches /src/patches
COPY experiment/__init__.py experiment/build.py experiment/errors.py experiment/host.py experiment/llama_tuning.cmake \
    experiment/ninja_progress.py experiment/patches.py experiment/paths.py experiment/pins.py experiment/progress.py \
    experiment/settings.py experiment/settings_sources.py experiment/source.py experiment/toolchain.py experiment/trees.py \
    experiment/whole_file.py \
    /src/experiment/
ARG PIN=sdist
RUN sh /ca/pip-install --environment \
    /opt/build-venv/bin/python /src/docker/compile.py --pin "$PIN" --to /opt/llama

# --- the image: no compiler, no package installer, not root
FROM base
COPY --from=venv /opt/venv /opt/venv
COPY --from=compile /opt/llama /opt/llama
COPY LICENSE tasks.py /opt/app/
COPY docker/pins.toml /opt/app/docker/pins.toml
COPY patches /opt/app/patches
COPY schemas /opt/app/schemas
COPY data /opt/app/data
COPY experiment /opt/app/experiment
COPY --from=venv /opt/library.js /opt/app/experiment/templates/library.js
# Compiled without time stamps, so that the same files give the same bytes; but for packages that a run does not import.
RUN /opt/venv/bin/python -m compileall -q -x '/site-packages/(docker|pygments)/' --invalidation-mode unchecked-hash /opt/venv/lib /opt/app \
    && useradd --uid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin experiment \
    && install -d -o 10001 -g 10001 /results
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PREFIX_REPLAY_IMAGE=unknown \
    EXPERIMENT_ENGINE=native \
    EXPERIMENT_BUILD__PREBUILT=/opt/llama \
    EXPERIMENT_CACHE_DIR=/tmp/cache \
    EXPERIMENT_RESULTS_DIR=/results
ARG REVISION=unknown
ARG PATCH_DIGEST=unknown
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="prefix-replay" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    prefix-replay.patch-digest="$PATCH_DIGEST"
# What a run writes down as the state of the project that made it.
ENV PREFIX_REPLAY_REVISION=$REVISION
USER 10001:10001
WORKDIR /results
ENTRYPOINT ["python", "/opt/app/tasks.py"]
CMD ["run", "--trace"]
