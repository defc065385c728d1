# The image of both commands, made from nothing but them: no shell, no libc.
#
#     docker buildx build --build-arg VERSION=v1.2.3 --platform linux/amd64,linux/arm64 .
#
# "make image" builds from this file too, with buildah, and puts files made on the
# machine itself in place of the stage "build".

FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG TARGETARCH
RUN make image-root VERSION="$VERSION" ARCH="$TARGETARCH" ROOT="/root-$TARGETARCH"

FROM scratch
ARG TARGETARCH
ARG VERSION=devel
ARG REVISION=unknown
COPY --from=build /root-${TARGETARCH}/ /
LABEL org.opencontainers.image.title="Beeline" \
      org.opencontainers.image.description="eBPF service load balancing for Kubernetes with the CNI your cluster already runs" \
      org.opencontainers.image.vendor="The Beeline authors" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" \
      org.opencontainers.image.url="https://github.com/beeline-lb/beeline" \
      org.opencontainers.image.source="https://github.com/beeline-lb/beeline" \
      org.opencontainers.image.documentation="https://github.com/beeline-lb/beeline/blob/main/charts/beeline/README.md" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The agent loads BPF programs. Which capabilities it keeps is the chart's decision.
USER 0:0
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/beeline-agent"]
