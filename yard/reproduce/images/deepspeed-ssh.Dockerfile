# Image for the recipe gcp-deepspeed-docker: PyTorch from NGC with DeepSpeed, pdsh and an SSH server. The image contains
# no keys, because yard mounts the keys. Never built. Versions as on PyPI in November 2026.
FROM nvcr.io/nvidia/pytorch:26.01-py3
RUN apt-get update && apt-get install -y --no-install-recommends openssh-server pdsh && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir deepspeed==0.19.8 transformers==5.23.0 accelerate==1.15.0
