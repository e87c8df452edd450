# An image that serves exports of dragoman; it has no torch, so it cannot train and takes no run folders.
#   docker build --tag dragoman-serve --file docker/serve.Dockerfile .
# from the folder with pyproject.toml. Then mount an export, which `dragoman export RUN --format ctranslate2` wrote.
FROM python:3.11-slim
# Where pip finds packages; set it with --build-arg to use a mirror.
ARG PIP_INDEX_URL
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin dragoman
WORKDIR /opt/dragoman
# The packages first: the layer is reused when only dragoman changes.
COPY constraints.txt docker/serve-requirements.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt --requirement serve-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY dragoman ./dragoman
# Without dependencies: those in serve-requirements.txt are all that serving needs.
RUN pip install --no-cache-dir --no-deps .
USER 10001
EXPOSE 5000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:5000/health', timeout=4)"]
# Beyond the container the key is required: mount it, as compose.yaml does, or set DRAGOMAN_API_KEY.
ENTRYPOINT ["dragoman", "serve", "--host", "0.0.0.0", "--port", "5000"]
CMD ["/models/model"]
